"""Small changes to the words of messages."""

__all__ = ["one_line", "plural"]


def plural(noun: str, count: int) -> str:
    """Return the noun, in the plural unless the count is 1: "no ranks", "2 ranks"."""
    return noun if count == 1 else f"{noun}s"


def one_line(error: Exception) -> str:
    """Return an error's lines as one, for a log or a list of warnings."""
    return " ".join(str(error).split("\n"))
