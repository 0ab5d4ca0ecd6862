"""Singular and plural in messages."""

__all__ = ["plural"]


def plural(noun: str, count: int) -> str:
    """Return the noun, in the plural unless the count is 1: "no ranks", "2 ranks"."""
    return noun if count == 1 else f"{noun}s"
