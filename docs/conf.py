"""How Sphinx builds the pages: `nox -s docs`."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "gpumap"
author = "The gpumap founders"
with (HERE.parent / "pyproject.toml").open("rb") as file:
    release = version = tomllib.load(file)["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    # Our own, in docs/extensions.
    "elsewhere",
    "plans",
    "refusals_page",
    "signatures",
]
exclude_patterns = ["_build"]
nitpicky = True
# Types in signatures that have no page of their own.
nitpick_ignore_regex = [
    ("py:.*", r"gpumap\.(mapping|rendezvous|runtime|spawning|testing)\..*"),
    ("py:.*", r"\w+"),
    ("py:.*", r"typing_extensions\..*"),
]
# Docstrings write `code` so.
default_role = "code"

# Errors and commands are quoted as they are typed.
smartquotes = False

html_theme = "furo"
html_title = "gpumap"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config, raises"}
autodoc_typehints_format = "short"
# In characters; a longer signature has a line for each argument.
maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# A field is told once, in its class's docstring.
napoleon_use_ivar = True
copybutton_prompt_text = "$ "
