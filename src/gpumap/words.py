"""Words of messages."""

__all__ = ["plural"]


def plural(noun: str, count: int) -> str:
    """Return a noun as it is said of so many: "1 rank", "no ranks", "2 ranks"."""
    return noun if count == 1 else f"{noun}s"
