"""Links from signatures to the pages of torch and Python, without asking the network.

Sphinx's intersphinx would fetch both sites' inventories at each build; what gpumap's
signatures name is a short list.
"""

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

_PYTHON = "https://docs.python.org/3/library"
_TORCH = "https://docs.pytorch.org/docs/stable"
_HOMES = {
    "collections.abc": f"{_PYTHON}/collections.abc.html#collections.abc.",
    "contextlib": f"{_PYTHON}/contextlib.html#contextlib.",
    "datetime": f"{_PYTHON}/datetime.html#datetime.",
    "os": f"{_PYTHON}/os.html#os.",
    "pathlib": f"{_PYTHON}/pathlib.html#pathlib.",
    "typing": f"{_PYTHON}/typing.html#typing.",
}
_TORCH_PAGES = {
    "torch.device": f"{_TORCH}/tensor_attributes.html#torch.device",
    "torch.nn.Module": f"{_TORCH}/generated/torch.nn.Module.html",
    "torch.nn.parallel.DistributedDataParallel": (
        f"{_TORCH}/generated/torch.nn.parallel.DistributedDataParallel.html"
    ),
    "torch.distributed.Store": f"{_TORCH}/distributed.html#torch.distributed.Store",
    "torch.utils.data.Sampler": f"{_TORCH}/data.html#torch.utils.data.Sampler",
}
# By which names torch's objects call themselves.
_PAGES = _TORCH_PAGES | {
    "torch.nn.modules.module.Module": _TORCH_PAGES["torch.nn.Module"],
    "torch.nn.parallel.distributed.DistributedDataParallel": _TORCH_PAGES[
        "torch.nn.parallel.DistributedDataParallel"
    ],
    "torch.distributed.distributed_c10d.Store": _TORCH_PAGES["torch.distributed.Store"],
    "torch.utils.data.sampler.Sampler": _TORCH_PAGES["torch.utils.data.Sampler"],
}
_BUILT_IN = {
    "Exception": "exceptions",
    "IndexError": "exceptions",
    "TypeError": "exceptions",
    "ValueError": "exceptions",
    "bool": "functions",
    "bytes": "stdtypes",
    "dict": "stdtypes",
    "float": "functions",
    "int": "functions",
    "list": "stdtypes",
    "object": "functions",
    "str": "stdtypes",
    "tuple": "stdtypes",
}
_CONSTANTS = {"None", "True", "False"}


def address(target: str) -> str | None:
    """Return the page of a name that is not gpumap's, if it is known."""
    if target in _CONSTANTS:
        return f"{_PYTHON}/constants.html#{target}"
    if target in _BUILT_IN:
        return f"{_PYTHON}/{_BUILT_IN[target]}.html#{target}"
    home, _, name = target.rpartition(".")
    if home in _HOMES:
        return f"{_HOMES[home]}{name}"
    return _PAGES.get(target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx ask here for what it does not find."""
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True}


def _resolve(
    _app: Sphinx,
    _env: BuildEnvironment,
    node: pending_xref,
    shown: nodes.TextElement,
) -> nodes.reference | None:
    found = address(node["reftarget"])
    if found is None:
        return None
    return nodes.reference("", "", shown, internal=False, refuri=found)
