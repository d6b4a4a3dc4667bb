"""Declared settings: a field's annotation says which values it takes, and one check enforces that for every class.

```python
@dataclass(frozen=True)
class Ridge(Checked):
    mu: Annotated[float, at_least(0)] = 0.01
    lr: Annotated[float, positive] | Literal["auto"] = "auto"
    size: Annotated[int, in_range(1, 64)] | None = None
```

A float takes any finite real number, an int whole numbers only, and neither takes True or False. A Literal takes its
words, a sequence takes lists and tuples whose entries fit, a class takes its instances. None needs to be declared.
"""

from __future__ import annotations

import dataclasses
import html
import inspect
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce, wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar

from .errors import RecipeError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Bounds:
    """An interval of numbers; an end that is open does not belong to it."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __and__(self, other: Bounds) -> Bounds:
        """The numbers within both."""
        low = max((self.low, self.open_low), (other.low, other.open_low))
        high = min((self.high, not self.open_high), (other.high, not other.open_high))
        return Bounds(low[0], high[0], low[1], not high[1])

    def __contains__(self, value: Any) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        return bool(above and (value < self.high if self.open_high else value <= self.high))

    def of(self, noun: str) -> str:
        """The numbers in words: "a whole number, at least 1"."""
        if self.low == -math.inf and self.high == math.inf:
            return noun
        if self.high == math.inf:
            return f"{noun} above {self.low:g}" if self.open_low else f"{noun}, at least {self.low:g}"
        if self.low == -math.inf:
            return f"{noun} below {self.high:g}" if self.open_high else f"{noun}, at most {self.high:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"{noun} in {left}{self.low:g}, {self.high:g}{right}"


def above(low: float) -> Bounds:
    """Numbers x with x > low."""
    return Bounds(low=low, open_low=True)


def at_least(low: float) -> Bounds:
    """Numbers x with x ≥ low."""
    return Bounds(low=low)


def below(high: float) -> Bounds:
    """Numbers x with x < high."""
    return Bounds(high=high, open_high=True)


def at_most(high: float) -> Bounds:
    """Numbers x with x ≤ high."""
    return Bounds(high=high)


def in_range(low: float, high: float) -> Bounds:
    """Numbers x with low ≤ x ≤ high; for an open end annotate ``at_least(low), below(high)``."""
    return Bounds(low, high)


positive = above(0)
"""Numbers x with x > 0."""


class ValueType(NamedTuple):
    """One of the alternatives of a setting's type: a test of a value, and the values in words."""

    fits: Callable[[Any], bool]
    text: str
    words: tuple[Any, ...] = ()
    """The values of a Literal."""
    bounds: Bounds | None = None
    """The interval of a number."""


class Setting(NamedTuple):
    """One declared setting."""

    name: str
    hint: Any
    """Its annotation, resolved."""
    kinds: tuple[ValueType, ...]
    """The alternatives of its type."""
    default: Any
    """Its default; ``dataclasses.MISSING`` where a value has to be given."""
    doc: str
    """Its line in the class's docstring; empty where there is none."""

    @property
    def accepts(self) -> str:
        """The values it takes, in words: "a finite number above 0, or 'auto'"."""
        *most, last = dict.fromkeys(kind.text for kind in self.kinds)
        return f"{', '.join(most)}, or {last}" if most else last

    def check(self, value: Any, where: str) -> None:
        """Raise RecipeError, naming the call ``where``, this setting and the values it takes, unless ``value`` fits."""
        if any(kind.fits(value) for kind in self.kinds):
            return
        words = [word for kind in self.kinds for word in kind.words]
        if words and all(kind.words or kind.text == "None" for kind in self.kinds):
            raise RecipeError.unknown(str(value), map(str, words), f"{where}({self.name}=...)")
        if isinstance(value, bool | int | float | str | list | tuple | None):
            raise RecipeError(f"{where}({self.name}={value!r}): must be {self.accepts}", self.name)
        raise RecipeError(f"{where}({self.name}=...): a {type(value).__name__}; give {self.accepts}", self.name)


class Checked:
    """Base of frozen dataclasses whose fields are declared settings: all are checked when one is made.

    A class with rules between its fields writes ``__post_init__`` and calls this one first.
    """

    def __post_init__(self) -> None:
        check(self)

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(repr(self))}</b>"


def check(settings: Any, call: str = "") -> None:
    """Check every field of a dataclass against its annotation. Raises RecipeError for the first that does not fit.

    ``call`` is the constructor's name for users, by default the class's.
    """
    for setting in describe(type(settings)):  # type: ignore[arg-type]
        setting.check(getattr(settings, setting.name), call or type(settings).__name__)


def check_flags(made: object, *names: str) -> None:
    """Raise RecipeError unless these attributes are True or False; the error names the class and the attribute."""
    for name in names:
        check_flag(getattr(made, name), type(made).__name__, name)


def check_flag(value: object, call: str, name: str) -> None:
    """Raise RecipeError unless the argument ``name`` of a call is True or False."""
    if not isinstance(value, bool):
        raise RecipeError(f"{call}({name}={value!r}): must be True or False", name)


def checked(room: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that checks the arguments of each call against the function's annotations, as those of `Checked`.

    Errors are RecipeErrors that name the function as ``room.name``. Further keywords (``**rest``) are not checked.
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
            signature, settings = declared()
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if name in settings:
                    settings[name].check(value, call)
            return function(*args, **kwargs)

        return checking

    return around


@cache
def describe(cls: type) -> tuple[Setting, ...]:
    """The settings that a dataclass declares, in order.

    A setting's ``doc`` is its line in the class's docstring, "``name``  text". Raises TypeError for an annotation with
    a name that its module does not have.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as e:
        raise TypeError(f"class {cls.__name__}: {e}, which an annotation uses; define it in the module") from e
    docs = _docs(inspect.getdoc(cls) or "")
    return tuple(
        Setting(f.name, hints[f.name], tuple(kinds(hints[f.name])), _default(f), docs.get(f.name, ""))
        for f in dataclasses.fields(cls)
        if f.init
    )


def kinds(hint: Any, bounds: Bounds | None = None) -> list[ValueType]:
    """The alternatives of an annotation, numbers within ``bounds``. An annotation without a test takes every value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        own = reduce(Bounds.__and__, [b for b in args[1:] if isinstance(b, Bounds)], bounds or Bounds())
        return kinds(args[0], own)
    if origin in (typing.Union, types.UnionType):
        return [kind for arg in args for kind in kinds(arg, bounds)]
    if origin is Literal:
        return [_word(word) for word in args]
    if hint in (int, float):
        return [_number(hint, bounds or Bounds())]
    if hint is None or hint is type(None):
        return [ValueType(lambda value: value is None, "None")]
    if hint is bool:
        return [ValueType(lambda value: isinstance(value, bool), "True or False")]
    if hint is str:
        return [ValueType(lambda value: isinstance(value, str), "text")]
    if origin in (list, tuple) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return [_sequence(origin, args, bounds)]
    if origin is not None and issubclass(origin, Callable):  # type: ignore[arg-type]
        return [ValueType(callable, "a function")]
    cls = origin or hint
    if (
        cls is not Any
        and isinstance(cls, type)
        and getattr(cls, "_is_runtime_protocol", not getattr(cls, "_is_protocol", False))
    ):
        text = "a table" if issubclass(cls, Mapping) else "a path" if cls is os.PathLike else f"a {public_name(cls)}"
        return [ValueType(lambda value: isinstance(value, cls), text)]
    return [ValueType(lambda value: True, "any value")]


def _number(kind: type, bounds: Bounds) -> ValueType:
    wanted: Any = Integral if kind is int else Real

    def fits(value: Any) -> bool:
        # To Python a bool is an int. No setting means that.
        return isinstance(value, wanted) and not isinstance(value, bool) and math.isfinite(value) and value in bounds

    finite = math.isfinite(bounds.low) and math.isfinite(bounds.high)
    return ValueType(
        fits, bounds.of("a whole number" if kind is int else "a number" if finite else "a finite number"), (), bounds
    )


def _word(word: Any) -> ValueType:
    return ValueType(lambda value: type(value) is type(word) and value == word, repr(word), (word,))


def _sequence(origin: Any, args: tuple[Any, ...], bounds: Bounds | None) -> ValueType:
    fixed = origin is tuple and args[-1:] != (...,)
    entries = [kinds(arg, bounds) for arg in (args if fixed else args[:1])]

    def fits(value: Any) -> bool:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return False
        if fixed and len(value) != len(entries):
            return False
        each = entries if fixed else entries * len(value)
        return all(any(kind.fits(v) for kind in kinds) for v, kinds in zip(value, each, strict=True))

    each = "; ".join(" or ".join(kind.text for kind in kinds) for kinds in entries)
    return ValueType(fits, f"a list of {len(entries)}: {each}" if fixed else f"a list, each {each}")


def public_name(cls: type) -> str:
    """A class by the shortest module that has it: torch.nn.Module, not torch.nn.modules.module.Module."""
    path = cls.__module__.split(".")
    for k in range(1, len(path) + 1):
        module = ".".join(path[:k])
        if getattr(sys.modules.get(module), cls.__name__, None) is cls:
            return cls.__name__ if module in ("builtins", "medley") else f"{module}.{cls.__name__}"
    return cls.__name__


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _docs(doc: str) -> dict[str, str]:
    """The entries "name: text" of a docstring's Attributes or Args, with the lines indented below them."""
    sections = re.findall(r"^(?:Attributes|Args):\n((?: {4}.*\n?)+)", doc, re.MULTILINE)
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}\S.*)*)", "\n".join(sections), re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in found}


__all__ = [
    "Bounds",
    "Checked",
    "Setting",
    "ValueType",
    "above",
    "at_least",
    "at_most",
    "below",
    "check",
    "check_flag",
    "check_flags",
    "checked",
    "describe",
    "in_range",
    "kinds",
    "positive",
    "public_name",
]
