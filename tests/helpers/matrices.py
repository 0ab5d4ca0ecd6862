"""The captured topology matrices."""

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "topologies"
CUT = {"62_dgx2_16xV100_first_4_rows_cut", "63_8xB200_one_gpu_off_nvlink_cut"}
WHOLE = sorted(path.stem for path in FOLDER.glob("*.txt") if path.stem not in CUT)


def text(name: str) -> str:
    """Return a matrix as it was pasted."""
    return (FOLDER / f"{name}.txt").read_text()
