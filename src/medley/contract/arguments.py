"""Calls that take the arguments of a class of settings: their names, types, defaults and meanings are in the class."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from .errors import RecipeError
from .keywords import refuse_missing, refuse_unknown
from .settings import describe

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


def called_with(settings: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """A decorator: the function accepts the arguments of a class of settings, and receives an instance made from them.

    So the names, types, defaults and meanings of its arguments are declared only in the class.
    """

    def around(function: Callable[[T], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            _refuse_missing(function.__name__, settings, len(args), kwargs)
            return function(settings(*args, **kwargs))

        _show(call, function, settings)
        return call

    return around


def method_with(settings: Callable[P, T]) -> Callable[[Callable[[S, T], R]], Callable[Concatenate[S, P], R]]:
    """`called_with` for a method: it accepts the arguments of a class of settings, and receives an instance of it."""

    def around(method: Callable[[S, T], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def call(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
            _refuse_missing(method.__name__, settings, len(args), kwargs)
            return method(self, settings(*args, **kwargs))

        _show(call, method, settings)
        return cast("Callable[Concatenate[S, P], R]", call)

    return around


def known_keywords(method: Callable[P, R]) -> Callable[P, R]:
    """A decorator of a method: for an unknown keyword, and for a missing one, the error lists those that it has."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown(method, method.__name__, kwargs)
        refuse_missing(method, method.__name__, len(args) - 1, kwargs)  # the first is the object
        return method(*args, **kwargs)

    return call


def _refuse_missing(call: str, settings: Any, count: int, named: Mapping[str, Any]) -> None:
    """Raise RecipeError, with the meaning of each, for required arguments of a call that has ``count`` by position."""
    declared = describe(settings)
    if not named.keys() <= {s.name for s in declared}:
        return  # the class of settings says which keyword it does not know
    required = [s for s in declared[count:] if s.default is dataclasses.MISSING and s.name not in named]
    if required:
        docs = [(s.name, (s.doc or s.accepts).partition("; ")[0].replace("``", "")) for s in required]
        meanings = "; and ".join(f"{name}=, {doc}" for name, doc in docs)
        raise RecipeError(f"{call}(): give {meanings}", required[0].name)


def _show(call: Any, function: Callable[..., Any], settings: Any) -> None:
    """Give a call the signature of a class of settings, after a method's ``self``, and their meanings as docstring."""
    settings.__init__.__qualname__ = function.__name__  # for Python's errors about too many arguments
    del call.__wrapped__  # its one argument is not the user's
    first, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
    entries = [f"    {s.name} ({s.accepts}): {s.doc}" for s in describe(settings)]
    lines = [textwrap.fill(line, 118, subsequent_indent=" " * 8) for line in entries]
    call.__doc__ = "\n".join([first, "", "Args:", *lines, *(["", rest] if rest else []), ""])
    declared = inspect.signature(function)
    itself = [p for p in declared.parameters.values() if p.name == "self"]
    signature = inspect.signature(settings)
    shown = [p.replace(annotation=_bare(p.annotation)) for p in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=[*itself, *shown], return_annotation=declared.return_annotation)
    call.__annotations__ = {s.name: s.hint for s in describe(settings)}


class _Bare(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        annotated = ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple)
        return node.slice.elts[0] if annotated else node  # type: ignore[attr-defined]


@cache
def _bare(annotation: str) -> str:
    """The text of an annotation without bounds and examples, for a readable signature."""
    return ast.unparse(_Bare().visit(ast.parse(annotation, mode="eval")))
