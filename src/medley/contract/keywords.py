"""The keywords of a call: what it does not accept, what it lacks, and what only an earlier version accepted."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from .errors import RecipeError, UnknownSetting


def refuse_gone(kind: Any, settings: Mapping[str, Any], where: str = "") -> None:
    """Raise RecipeError for a setting, or the value of one, that only an earlier version of ``kind`` had.

    Args:
        kind: what is called; a class may have ``gone``, see `Settings`
        where: text before the message
    """
    gone = getattr(kind, "gone", {})
    for key, value in settings.items():
        spelt = key if key in gone or not isinstance(value, str) else f"{key}={value}"
        if spelt in gone:
            raise RecipeError(where + gone[spelt], key)


def refuse_unknown(
    function: Callable[..., Any], call: str, names_given: Iterable[str], also: Iterable[str] = ()
) -> None:
    """Raise UnknownSetting for the first keyword that a function does not accept.

    Args:
        function: the function; with ``**rest`` it accepts all keywords, unless there is ``also``
        call: its name for users
        names_given: the keywords
        also: the keywords of ``**rest``
    """
    names, rest = _keywords(function)
    allowed = [*dict.fromkeys((*names, *also))]
    unknown = next((key for key in names_given if key not in allowed), None)
    if unknown is not None and (also or not rest):
        raise UnknownSetting.unknown(unknown, allowed, f"{call}()", in_recipe=False)


def refuse_missing(
    function: Callable[..., Any], call: str, count: int, names_given: Iterable[str], doc: str = ""
) -> None:
    """Raise RecipeError if a required argument is missing: one without a default that the caller neither names nor
    passes among the first ``count``; UnknownSetting if ``count`` is too large. The error has its entry in ``doc``.
    """
    given_by_name = {*names_given}
    parameters = _parameters(function)
    refuse_many(call, parameters, count)
    for k, p in enumerate(parameters):
        named = p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if (
            named
            and p.default is p.empty
            and p.name not in given_by_name
            and not (k < count and p.kind is not p.KEYWORD_ONLY)
        ):
            names = ", ".join(f"{q.name}=" for q in parameters if q.kind not in (q.VAR_KEYWORD, q.VAR_POSITIONAL))
            meaning, _, _ = entries(doc).get(p.name, "").partition(". ")
            is_this = f": {meaning.rstrip('.')}" if meaning else ""
            raise RecipeError(
                f"{call}(): {p.name}= is missing; it has no default{is_this}. The settings are {names}", p.name
            )


def entries(doc: str) -> dict[str, str]:
    """The entries "name: text" of a docstring's Attributes or Args, with the lines indented below them."""
    sections = re.findall(r"^(?:Attributes|Args):\n((?: {4}.*\n?)+)", inspect.cleandoc(doc), re.MULTILINE)
    matches = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}\S.*)*)", "\n".join(sections), re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in matches}


def refuse_many(call: str, parameters: Iterable[inspect.Parameter], count: int) -> None:
    """Raise UnknownSetting if more than all parameters that may go without their names are passed so."""
    kinds = {p.name: p.kind for p in parameters}
    by_place = [name for name, kind in kinds.items() if kind in PLACED]
    if count > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds.values():
        most = f"only {', '.join(by_place)} may go without a name" if by_place else "none may go without its name"
        others = [f"{name}=" for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
        raise UnknownSetting(
            f"{call}() got {count} arguments without names; {most}. Write the names of the others: "
            f"{', '.join(others) or 'there are none'}"
        )


PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """The parameters of a function, ``self`` apart. Kept, because `inspect.signature` takes 60 µs."""
    return tuple(p for p in inspect.signature(function).parameters.values() if p.name != "self")


@cache
def _keywords(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """The keywords of a function by name, and whether it accepts others."""
    parameters = _parameters(function)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return tuple(names), any(p.kind is p.VAR_KEYWORD for p in parameters)
