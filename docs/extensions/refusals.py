"""Every error that gpumap raises, out of its source: what it says, and what to do."""

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CLASSES", "Refusal", "notes", "refusals"]

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src" / "gpumap"
# Each class of errors, and what it is about.
CLASSES = {
    "LaunchError": "What started this process: the launcher's variables.",
    "DeviceError": "Which device is meant, and whether it is there.",
    "PlacementError": "Which rank goes where.",
    "RollCallError": "What the ranks found when they compared, before training.",
    "SessionError": "The life of a session: opening, using and closing it.",
    "GpumapError": "The rest.",
}
# What the ranks tell each other, and the error that each raises of it.
_TOLD = {"Verdict": "RollCallError", "Fault": "SessionError"}
_PARTS = ("happened", "seen", "hint")
_NAMES = {"text": "happened"}


@dataclass(frozen=True)
class Refusal:
    """An error as its source has it; "…" stands for what differs each time."""

    error: str
    happened: str
    seen: str
    hint: str


def refusals(source: Path = SOURCE) -> list[Refusal]:
    """Return every error, by class, in the order of their words."""
    found = {
        refusal
        for path in sorted(source.rglob("*.py"))
        for refusal in _in_module(ast.parse(path.read_text()))
    }
    order = list(CLASSES)
    return sorted(found, key=lambda r: (order.index(r.error), words(r.happened)))


def notes() -> dict[str, str]:
    """Return what some errors mean in other words, by the begin of their message."""
    return tomllib.loads((HERE / "refusals.toml").read_text())


def words(text: str) -> str:
    """Return a message's words alone, in small letters."""
    kept = (c if c.isalnum() or c.isspace() else " " for c in text.casefold())
    return " ".join("".join(kept).split())


def _in_module(module: ast.Module) -> Iterator[Refusal]:
    """Yield what the module's functions raise or tell, with the names they use."""
    everywhere = _assigned(module.body)
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            known = everywhere | _assigned(ast.walk(function))
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                    yield from _of_call(call, call.func.id, known)


def _assigned(statements: Iterable[ast.AST]) -> dict[str, ast.expr]:
    return {
        target.id: statement.value
        for statement in statements
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _of_call(
    call: ast.Call, name: str, known: Mapping[str, ast.expr]
) -> Iterator[Refusal]:
    error = _TOLD.get(name, name)
    if error not in CLASSES:
        return
    parts = dict(zip(_PARTS, call.args, strict=False))
    parts |= {_NAMES.get(k.arg, k.arg): k.value for k in call.keywords if k.arg}
    texts = [_text(parts[part], known) if part in parts else "" for part in _PARTS]
    if words(texts[0]):  # else it says another error's words again
        yield Refusal(error, *texts)


def _text(node: ast.expr, known: Mapping[str, ast.expr]) -> str:  # noqa: PLR0911 - a line for each kind
    """Return the words of an expression, with "…" for what is not written there."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(
                _text(value, known) if isinstance(value, ast.Constant) else "…"
                for value in node.values
            )
        case ast.BinOp(op=ast.Add()):
            return "".join(
                _text(part.body if isinstance(part, ast.IfExp) else part, known)
                for part in (node.left, node.right)
            )
        case ast.IfExp():
            both = [_text(node.body, known), _text(node.orelse, known)]
            return " Or: ".join(text.removeprefix(": ") for text in both if words(text))
        case ast.BoolOp():
            return next(filter(words, (_text(v, known) for v in node.values)), "…")
        case ast.Name() if node.id in known:
            return _text(known[node.id], {})
        case ast.Call(func=ast.Attribute(value=value)):
            return _text(value, known)
        case ast.Call(func=ast.Name(), args=[ast.ListComp(elt=each)]):
            return _text(each, known)
        case _:
            return "…"
