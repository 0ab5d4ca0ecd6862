"""The environments that real launchers gave to each rank, as captured."""

from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "launcher_envs"


def environment(name: str) -> dict[str, str]:
    """Return the variables of one captured process, and its host as #HOSTNAME."""
    lines = (FOLDER / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def jobs() -> dict[str, list[dict[str, str]]]:
    """Return every captured job: the environments of its ranks, by file name."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for path in sorted(FOLDER.glob("*.env")):
        found[path.stem.rpartition("-rank")[0]].append(environment(path.stem))
    return dict(found)
