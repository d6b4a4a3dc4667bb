"""Functions that check their arguments against their annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from .annotation import kinds
from .keywords import refuse_missing, refuse_unknown
from .settings import Setting

P = ParamSpec("P")
R = TypeVar("R")


def checked(room: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that checks the arguments of each call against the function's annotations, like the fields of
    `Checked`.

    Errors are RecipeErrors that name the function as ``room.name``. It does not check further keywords (``**rest``).
    """

    def around(function: Callable[P, R]) -> Callable[P, R]:
        call = f"{room}.{function.__qualname__.removesuffix('.__init__')}"

        @cache
        def declared() -> tuple[inspect.Signature, dict[str, Setting]]:
            signature = inspect.signature(function)
            hints = typing.get_type_hints(function, include_extras=True)
            fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD and p.name in hints]
            return signature, {
                p.name: Setting(p.name, hints[p.name], tuple(kinds(hints[p.name])), p.default, "") for p in fixed
            }

        @wraps(function)
        def checking(*args: P.args, **kwargs: P.kwargs) -> R:
            refuse_unknown(function, call, kwargs)
            signature, settings = declared()
            refuse_missing(function, call, len(args) - ("self" in signature.parameters), kwargs)
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name in settings:
                    settings[name].check(value, call)
            return function(*args, **kwargs)

        return checking

    return around
