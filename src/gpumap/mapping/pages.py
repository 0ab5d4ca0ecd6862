"""Classes whose help() is a page of ours, without what other packages bring."""

from abc import ABCMeta

__all__ = ["OwnPage"]


class OwnPage(ABCMeta):
    """A metaclass whose classes tell help() and dir() their own public names only.

    Methods of pydantic's models and of abstract base classes work, and are found on an
    instance; in help() they would hide the fields.

    Source: inspect.classify_class_attrs, by which pydoc goes, asks dir(cls).
    """

    def __dir__(cls) -> list[str]:
        """Return the public names that no class of another package has."""
        others = (base for base in cls.__mro__ if not _is_ours(base))
        theirs = {name for base in others for name in dir(base)}
        return [
            name
            for name in super().__dir__()
            if name not in theirs and not name.startswith("_")
        ]


def _is_ours(base: type) -> bool:
    return base.__module__.partition(".")[0] == __name__.partition(".")[0]
