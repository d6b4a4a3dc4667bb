"""Names the settings in which two runs differ, for an error message."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ..runtime import renamed
from .identity import PREFIX


def earlier(recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """A sentence on the first setting that has another name or another method today; empty if there is none.

    A run with such a setting cannot go on.
    """
    for key in sorted(recorded.keys() - requested.keys() - renamed.RECORDED.keys()):
        head, dot, last = key.rpartition(".")
        if word := renamed.word(last, [k.rpartition(".")[2] for k in requested]):
            return f"{key} is {head}{dot}{word} now, and a run of before the new name cannot go on: start it again"
    method = str(recorded.get("method", "")).rpartition("-")[2]  # a wrapper's name stands before the hyphen
    other, settings = renamed.MOVED.get(method, ("", ()))
    moved = ", ".join(f"method.{key}" for key in settings if f"method.{key}" in recorded)
    return (
        f"{moved} are settings of {other} now, and a run of before that cannot go on: start it again" if moved else ""
    )


def difference(recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """A clause on the first setting that differs, readable settings first; empty if all are equal."""
    recorded = {renamed.RECORDED.get(key, key): value for key, value in recorded.items()}
    for key in sorted({**requested, **recorded}, key=lambda k: k.startswith(PREFIX)):
        old = recorded.get(key)
        new = requested.get(key)
        if old == new:
            continue
        if not key.startswith(PREFIX):
            return _changed(key, old, new)
        if old is None or new is None:
            return (
                f"the identity of its {key.removeprefix(PREFIX)} was not recorded {'there' if old is None else 'here'}"
            )
        return (
            f"the content of its {key.removeprefix(PREFIX)} differs (values, code or weights: {old[:12]} there, "
            f"{new[:12]} here)"
        )
    return ""


def _changed(key: str, old: Any, new: Any) -> str:
    """A clause on a setting; of two objects of one class only the arguments that differ."""
    kind, before = _arguments(old)
    other, after = _arguments(new)
    if kind and kind == other and before != after:
        names = [k for k in {**before, **after} if before.get(k) != after.get(k)]
        return ", ".join(f"{key}.{k} was {before.get(k)} there and is {after.get(k)} here" for k in names)
    return f"{key} was {old!r} there and is {new!r} here"


def _arguments(text: Any) -> tuple[str, dict[str, str]]:
    """Class and arguments of a text such as "Pace(lr=0.3, batch=None)"; none for any other value."""
    try:
        call = ast.parse(text, mode="eval").body if isinstance(text, str) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", {}
    if not isinstance(call, ast.Call) or call.args:
        return "", {}
    return ast.unparse(call.func), {str(k.arg): ast.unparse(k.value) for k in call.keywords}
