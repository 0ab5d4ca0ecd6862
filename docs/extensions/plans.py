"""The directive that shows a plan: the call, which rank goes where, and a picture."""

import base64
import tempfile
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import gpumap


class ShownPlan(SphinxDirective):
    """Show the call that is the directive's content, its table and its picture."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the call, the picture and the table."""
        call = "\n".join(self.content)
        found = evaluated(call)
        code = nodes.literal_block(call, call, language="python")
        table = nodes.literal_block(found.explain(), found.explain(), language="text")
        return [code, _picture(found), table]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("plan", ShownPlan)
    return {"parallel_read_safe": True}


def evaluated(call: str) -> gpumap.Plan:
    """Return the plan that a call in a page makes."""
    found = eval(call, {"gpumap": gpumap})  # noqa: S307 - our own pages' examples
    if not isinstance(found, gpumap.Plan):
        message = f"this is no plan: {call}"
        raise TypeError(message)
    return found


def _picture(plan: gpumap.Plan) -> nodes.raw:
    """Return the plan's picture as part of the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.svg"
        gpumap.picture(plan, path)
        data = base64.b64encode(path.read_bytes()).decode()
    image = f'<img class="plan" alt="" src="data:image/svg+xml;base64,{data}">'
    return nodes.raw("", image, format="html")
