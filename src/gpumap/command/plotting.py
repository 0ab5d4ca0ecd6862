"""`gpumap show --plot`: the nodes and the ranks on them as a picture."""

from pathlib import Path

from gpumap.command.report import Report
from gpumap.drawing.picture import draw
from gpumap.errors import GpumapError

__all__ = ["plotted"]


def plotted(report: Report, path: Path) -> Report:
    """Draw what is shown, from rank 0 only; an error joins the report's."""
    if report.launch is not None and report.launch.rank:
        return report
    if report.node is None or not report.placements:
        first = report.error or "the plan is only known in a session."
        return report.model_copy(update={"error": f"{first}\nnothing was drawn."})
    try:
        draw(report.cluster or (report.node,), report.placements, path)
    except (GpumapError, OSError) as error:
        return report.model_copy(update={"error": f"nothing was drawn: {error}"})
    return report
