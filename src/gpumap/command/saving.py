"""`gpumap show --save`: the node as a JSON file, for a rehearsal."""

from pathlib import Path

from gpumap.command.report import Report

__all__ = ["saved"]


def saved(report: Report, path: Path) -> Report:
    """Save the node as JSON, atomically, from local rank 0 only."""
    if report.launch is not None and report.launch.local_rank:
        return report
    if report.node is None:
        return report.model_copy(
            update={"error": f"{report.error}\nnothing was saved: no node was read."}
        )
    try:
        beside = path.with_name(f"{path.name}.part")
        beside.write_text(report.node.model_dump_json(indent=2) + "\n", "utf-8")
        beside.replace(path)
    except (OSError, ValueError) as error:
        return report.model_copy(update={"error": f"nothing was saved: {error}"})
    if report.mask is None:
        return report
    cut = (
        f"{path} holds what {report.mask[0]} leaves visible; unset it to save the "
        "whole machine."
    )
    return report.model_copy(update={"warnings": (*report.warnings, cut)})
