"""Signatures and docstrings as a reader of the API pages wants them."""

from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

from gpumap.mapping.device_refs import DeviceRef
from gpumap.mapping.policy import Gpus, Scores, Strategy

_MARK = "Annotated["
# Types that are told by their names, the longest first: each is in the one before it.
_NAMES = {"Gpus": Gpus, "Scores": Scores, "Strategy": Strategy, "DeviceRef": DeviceRef}
_WRITTEN = {
    stringify_annotation(kind, mode): name
    for name, kind in _NAMES.items()
    for mode in ("smart", "fully-qualified-except-typing")
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx ask here before it writes a signature."""
    app.connect("autodoc-process-signature", _rewrite)
    app.connect("autodoc-process-docstring", _escape, priority=400)  # napoleon's is 500
    return {"parallel_read_safe": True}


def plain(text: str) -> str:
    """Return a signature in which "Annotated[int, Ge(ge=0)]" is "int"."""
    for written, name in _WRITTEN.items():
        text = text.replace(written, name)
    while _MARK in text:
        before, _, after = text.partition(_MARK)
        comma = _first(after, ",")
        end = _first(after, "]")
        text = before + after[:comma] + after[end + 1 :]
    return text


def fields(model: type[BaseModel]) -> str:
    """Return the signature of a frozen value: its fields, and what they are unset."""
    shown = [
        name if field.is_required() else f"{name}={field.get_default()!r}"
        for name, field in model.model_fields.items()
    ]
    return f"(*, {', '.join(shown)})"


def _rewrite(
    _app: Sphinx,
    what: str,
    _name: str,
    value: object,
    _options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    if what == "class" and isinstance(value, type) and issubclass(value, BaseModel):
        return fields(value), None
    return signature and plain(signature), returned and plain(returned)


def _escape(
    _app: Sphinx,
    what: str,
    _name: str,
    _value: object,
    _options: object,
    lines: list[str],
) -> None:
    """Let stars and colons be what they are: docstrings are for help(), too."""
    lines[:] = [line.replace("*", r"\*") for line in lines]
    if what == "property":  # of which napoleon takes a first "word: more" for its type
        lines[:1] = [line.replace(": ", "; ") for line in lines[:1]]


def _first(text: str, wanted: str) -> int:
    """Return where a character stands outside of all brackets."""
    depth = 0
    for place, character in enumerate(text):
        if depth == 0 and character == wanted:
            return place
        depth += (character in "([") - (character in ")]")
    return len(text)
