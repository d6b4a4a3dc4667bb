"""Reads what an annotation says about a value; settings, messages and recipes all use it.

A float accepts any finite real number, an int only whole numbers, and neither accepts True or False. A Literal accepts
its words, a sequence lists and tuples whose entries fit, a class its instances, and a jaxtyping annotation tensors with
its dtypes and axes. A text in an annotation is an example for error messages:
``Annotated[Codec, "codecs.Cast('float16')"]``. A `ValueType` in an annotation replaces its test.
"""

from __future__ import annotations

import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Bounds:
    """An interval of numbers; an open end does not belong to it."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __and__(self, other: Bounds) -> Bounds:
        """The numbers in both intervals."""
        low = max((self.low, self.open_low), (other.low, other.open_low))
        high = min((self.high, not self.open_high), (other.high, not other.open_high))
        return Bounds(low[0], high[0], low[1], not high[1])

    def __contains__(self, value: Any) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        return bool(above and (value < self.high if self.open_high else value <= self.high))

    def of(self, noun: str) -> str:
        """The numbers in words: "a whole number, at least 1"."""
        low = str(self.low) if isinstance(self.low, int) else f"{self.low:g}"
        high = str(self.high) if isinstance(self.high, int) else f"{self.high:g}"
        if self.low == -math.inf and self.high == math.inf:
            return noun
        if self.high == math.inf:
            return f"{noun} above {low}" if self.open_low else f"{noun}, at least {low}"
        if self.low == -math.inf:
            return f"{noun} below {high}" if self.open_high else f"{noun}, at most {high}"
        left = "(" if self.open_low else "["
        right = ")" if self.open_high else "]"
        return f"{noun} in {left}{low}, {high}{right}"


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
    """Numbers x with low ≤ x ≤ high; for an open end, write ``at_least(low), below(high)``."""
    return Bounds(low, high)


positive = above(0)
"""Numbers x with x > 0."""


class ValueType(NamedTuple):
    """One alternative of an annotation: a test for a value, and the accepted values in words."""

    fits: Callable[[Any, dict[str, int]], bool]
    """True for a value of this type. A tensor's test adds the lengths of its named axes to the dict, and compares later
    ones with them.
    """
    text: str
    type: type
    """The class of the values: ``float`` for numbers, ``Sequence`` for lists; ``object`` if it may be any class."""
    words: tuple[Any, ...] = ()
    """The values of a Literal."""
    bounds: Bounds | None = None
    """The interval of a number."""
    axes: tuple[str, ...] | None = ()
    """A name or a length for each axis of a tensor; None for any shape."""
    typed: Callable[[Any], Any] = lambda value: value
    """A value that fits, in the declared type: JSON has a list for a tuple, and 1 for 1.0."""


def kinds(hint: Any, bounds: Bounds | None = None, such: str = "", finite: bool = True) -> list[ValueType]:
    """The alternatives of an annotation. An annotation without a test, such as Any, accepts every value.

    Args:
        hint: the annotation
        bounds: the interval of its numbers; default None: all numbers
        such: an example value; default none
        finite: whether numbers must be finite; default True
    """
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is Annotated:
        stated = [e for e in args[1:] if isinstance(e, ValueType)]
        if stated:
            return stated
        limits = reduce(Bounds.__and__, [b for b in args[1:] if isinstance(b, Bounds)], bounds or Bounds())
        return kinds(args[0], limits, next((e for e in args[1:] if isinstance(e, str)), such), finite)
    if origin in (typing.Union, types.UnionType):
        # Whole numbers are numbers.
        return [k for arg in args if arg is not int or float not in args for k in kinds(arg, bounds, such, finite)]
    if origin is Literal:
        return [_word(word) for word in args]
    if hint in (int, float):
        return [_number(hint, bounds or Bounds(), finite)]
    if hint is None or hint is type(None):
        return [ValueType(lambda value, _: value is None, "None", type(None))]
    if hint is Tensor or hasattr(hint, "dim_str"):
        return [_tensor(hint)]
    example = f" such as {such}" if such else ""
    if hint in (bool, str):
        text = "True or False" if hint is bool else f"text{example}"
        return [ValueType(lambda value, _: isinstance(value, hint), text, hint)]
    if origin in (list, tuple) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return [_sequence(origin, args, bounds)]
    if origin is type:
        base = args[0]
        text = f"a subclass of {public_name(base)}"
        return [ValueType(lambda value, _: isinstance(value, type) and issubclass(value, base), text, type)]
    if origin is not None and issubclass(origin, Callable):  # type: ignore[arg-type]
        return [ValueType(lambda value, _: callable(value), f"a function{example}", types.FunctionType)]
    cls = origin or hint
    if cls is Any or not isinstance(cls, type):
        return [ValueType(lambda value, _: True, "any value", object)]
    return [_instance(cls, example)]


def in_words(texts: Iterable[str]) -> str:
    """Alternatives as a list: "a finite number above 0, 'auto', or None"; "'draw' or 'module'"."""
    *most, last = dict.fromkeys(texts)
    comma = "" if len(most) == 1 and most[0].startswith("'") and last.startswith("'") else ","
    return f"{', '.join(most)}{comma} or {last}" if most else last


PLAIN = (bool, int, float, str, list, tuple, dict, type(None))
"""Types of values that a file can contain."""


def _instance(cls: type, example: str) -> ValueType:
    """An object of this class. A protocol that cannot be checked accepts anything except a number, text, list or
    dict.
    """
    if getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False):
        return ValueType(lambda value, _: not isinstance(value, PLAIN), f"a {public_name(cls)}", cls)
    text = f"a table{example}" if issubclass(cls, Mapping) else "a path" if cls is os.PathLike else ""
    text = text or (f"an object{example}" if example else f"a {public_name(cls)}")
    classes = cls is object or issubclass(cls, type)

    def fits(value: Any, _: dict[str, int]) -> bool:
        # The usual mistake is a class instead of an instance: to a protocol, both look the same.
        return isinstance(value, cls) and (classes or not isinstance(value, type))

    return ValueType(fits, text, cls)


def _number(kind: type, bounds: Bounds, finite: bool) -> ValueType:
    kind_of_number: Any = Integral if kind is int else Real
    every = bounds == Bounds()

    def fits(value: Any, _: dict[str, int]) -> bool:
        # Python treats a bool as an int; no setting does.
        if not isinstance(value, kind_of_number) or isinstance(value, bool):
            return False
        return (kind is int or not finite or abs(value) <= sys.float_info.max) and (every or value in bounds)

    inside = not finite or (math.isfinite(bounds.low) and math.isfinite(bounds.high))
    noun = "a whole number" if kind is int else "a number" if inside else "a finite number"
    return ValueType(fits, bounds.of(noun), kind, (), bounds, typed=float if kind is float else int)


def _word(word: Any) -> ValueType:
    return ValueType(lambda value, _: type(value) is type(word) and value == word, repr(word), type(word), (word,))


def _sequence(origin: Any, args: tuple[Any, ...], bounds: Bounds | None) -> ValueType:
    fixed = origin is tuple and args[-1:] != (...,)
    entries = [kinds(arg, bounds) for arg in (args if fixed else args[:1])]

    def fits(value: Any, lengths: dict[str, int]) -> bool:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return False
        if fixed and len(value) != len(entries):
            return False
        each = entries if fixed else entries * len(value)
        return all(any(kind.fits(v, lengths) for kind in kinds) for v, kinds in zip(value, each, strict=True))

    def typed(value: Any) -> Any:
        each = entries if fixed else entries * len(value)
        pairs = zip(value, each, strict=True)
        return origin(next(kind.typed(v) for kind in kinds if kind.fits(v, {})) for v, kinds in pairs)

    each = "; ".join(" or ".join(kind.text for kind in kinds) for kinds in entries)
    text = "an empty list" if fixed and not entries else f"a list of {len(entries)}: {each}" if fixed else ""
    text = text or f"a list, each {each}"
    return ValueType(fits, text, Sequence, typed=typed) if origin in (list, tuple) else ValueType(fits, text, Sequence)


def _tensor(hint: Any) -> ValueType:
    """A tensor; with jaxtyping's annotation of these dtypes and axes. A stack's axis, as in "*k d", must be absent."""
    if hint is Tensor:
        return ValueType(lambda value, _: isinstance(value, Tensor), "a tensor", Tensor, axes=None)
    dtypes = None if "Shaped" in str(hint) else hint.dtypes
    # A stack's axis is never sent: a message belongs to one client.
    axes = tuple(axis for axis in hint.dim_str.split() if not (axis.startswith("*") and axis != "*"))
    shape = None if "..." in axes else axes

    # Of each axis its length, or the name of a length that all its axes have, or nothing.
    sizes = [int(axis) if axis.isdigit() else axis if axis.isidentifier() else None for axis in shape or ()]

    def fits(value: Any, lengths: dict[str, int]) -> bool:
        if not isinstance(value, Tensor):
            return False
        if dtypes is not None and str(value.dtype).removeprefix("torch.") not in dtypes:
            return False
        return shape is None or (
            value.ndim == len(sizes)
            and all(
                axis is None or size == (axis if isinstance(axis, int) else lengths.setdefault(axis, size))
                for axis, size in zip(sizes, value.shape, strict=True)
            )
        )

    return ValueType(fits, str(hint).split(".")[-1].strip("'>"), Tensor, axes=shape)


def public_name(cls: type) -> str:
    """A class by the shortest module that has it: torch.nn.Module, not torch.nn.modules.module.Module."""
    path = cls.__module__.split(".")
    for k in range(1, len(path) + 1):
        module = ".".join(path[:k])
        if getattr(sys.modules.get(module), "__dict__", {}).get(cls.__name__) is cls:  # loads no lazy module
            return cls.__name__ if module in ("builtins", "medley") else f"{module}.{cls.__name__}"
    return cls.__name__
