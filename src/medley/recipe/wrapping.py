"""The tables ``private`` and ``rule`` of a method: reads and writes the wrappers around it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, cast

from .. import privacy, robust
from ..contract import Algorithm, Tuned, Wrapper
from .build import Builder
from .schema import RULES, methods

WRAPPING = ("private", "rule")
"""Keys of a method's table that wrap it, innermost first."""


def wrapped(build: Builder, path: str, table: Mapping[str, Any], method: Algorithm[Any, Any]) -> Algorithm[Any, Any]:
    """The method in the wrappers of its table. Raises RecipeError for wrong keys and values."""
    if "private" in table:
        settings = build.typed(f"{path}.private", table["private"], dict)
        inner = {"Banded": privacy.Banded, "Quantile": privacy.Quantile}
        arguments = {k: build.nested(f"{path}.private.{k}", v, inner) for k, v in settings.items()}
        arguments["method"] = method
        method = cast("Algorithm[Any, Any]", build.call(f"{path}.private", privacy.Private, arguments))
    if "rule" in table:
        settings = build.typed(f"{path}.rule", table["rule"], dict)
        rule = build.kind(f"{path}.rule", settings, RULES, inner=RULES)
        method = cast("Algorithm[Any, Any]", build.call(path, robust.Robust, {"method": method, "rule": rule}))
    return method


def written(t: Tuned) -> dict[str, Any]:
    """The table of a method with its factor on learning rates, in a recipe's form."""
    if isinstance(t.method, Wrapper):
        outer = {k: v for k, v in vars(t.method).items() if k in inspect.signature(type(t.method)).parameters}
        table = {k: _table(v) for k, v in outer.items() if v is not None and k != "method"}
        inner = written(Tuned(t.method.method, t.lr))
        return {**inner, **(table if isinstance(t.method, robust.Robust) else {"private": table})}
    parameters = inspect.signature(type(t.method)).parameters
    changed = {k: v for k, v in t.method.settings().items() if v is not None and v != parameters[k].default}
    cls = type(t.method)
    kind = t.name if methods([t.name]).get(t.name) is cls else f"{cls.__module__}:{cls.__qualname__}"
    return {"kind": kind, "lr": t.lr, **changed}


def _table(value: Any) -> Any:
    """A dataclass as a table with its kind; any other value unchanged."""
    if not dataclasses.is_dataclass(value):
        return value
    return {"kind": type(value).__name__, **{k: _table(v) for k, v in vars(value).items() if v is not None}}
