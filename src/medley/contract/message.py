"""Typed messages: frozen dataclasses of tensors and scalars.

No other fields are allowed. So Medley counts a message's exact bytes, and decoding it runs none of the sender's code.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from functools import cache
from typing import Any, ClassVar, TypeVar, dataclass_transform

import torch
from torch import Tensor

from .annotation import ValueType, in_words, kinds
from .errors import MedleyError, WireError

LIMIT = 1 << 32
"""The largest payload of a message, in bytes."""

Scalar = bool | int | float

Packed = dict[str, Tensor | Scalar | None]
"""A message on the wire: field -> tensor, scalar, or None for an omitted optional field."""

Form = frozenset[tuple[str, str]]
"""Names and shapes of a message's fields, see `form_of`."""

T = TypeVar("T", bound="Message")


@dataclass_transform(frozen_default=True)
class Message:
    """Base of every message. Declare the fields; the base makes the class a frozen dataclass.

    Like scalars, fields named in ``exact`` skip codecs. For example, a line search compares losses, and
    rounding would make the comparison meaningless.
    """

    exact: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        dataclasses.dataclass(frozen=True, eq=False)(cls)

    def pack(self) -> Packed:
        """Fields by name, with contiguous tensors. Raises WireError for a field that is neither a tensor nor a
        scalar.
        """
        fields = dict(vars(self))
        for name, value in fields.items():
            if isinstance(value, Tensor):
                fields[name] = value.contiguous()
            elif not isinstance(value, bool | int | float | None):
                raise WireError(
                    f"{type(self).__name__}.{name} is a {type(value).__name__}; messages carry tensors, numbers, "
                    "bools and None only"
                )
        return fields

    @classmethod
    def unpack(
        cls: type[T],
        packed: Packed,
        d: int | None = None,
        where: str = "a message",
        finite: bool = True,
        dtype: torch.dtype | None = None,
    ) -> T:
        """The message with these fields, which may come from an untrusted source. See `check`, also for the
        arguments.
        """
        cls.check(packed, d, where, finite, dtype)
        return cls(**packed)

    @classmethod
    def zeros(cls, like: Tensor) -> Packed:
        """The fields of a message of zeros; vectors have the shape [d], dtype and device of ``like``.

        Raises MedleyError for a field that is neither a vector [d] nor a number.
        """
        packed: Packed = {}
        for name, alternatives in _declared(cls).items():  # type: ignore[arg-type]
            if any(kind.axes == ("d",) for kind in alternatives):
                packed[name] = like.new_zeros(like.shape)
            elif any(kind.type in (int, float) for kind in alternatives):
                packed[name] = 0.0
            else:
                raise MedleyError(f"{cls.__name__}.{name} is neither a vector [d] nor a number")
        return packed

    @classmethod
    def has_one_form(cls) -> bool:
        """True if all messages of this class have the same fields and, for the same d, the same shapes."""
        forms = [k[0].axes if len(k) == 1 else None for k in _declared(cls).values()]  # type: ignore[arg-type]
        return all(axes is not None and all(a == "d" or a.isdigit() for a in axes) for axes in forms)

    @classmethod
    def check(
        cls,
        packed: Packed,
        d: int | None = None,
        where: str = "a message",
        finite: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Raise WireError unless ``packed`` has the fields that the annotations declare.

        Args:
            packed: the fields
            d: length of the axis d; default None: any
            where: the beginning of the error's text
            finite: False skips the check for NaN and infinities; default True
            dtype: the type of floating-point tensors with an axis d, since another one would change the model's;
                default None: any

        It checks names, types, dtypes, shapes and size. An axis must have the same length in all fields. A stack's
        axis, as in
        "*k d", must be absent.
        """
        declared = _declared(cls)  # type: ignore[arg-type]
        if declared.keys() != packed.keys():
            came = str(sorted(str(name)[:40] for name in packed))
            raise WireError(f"{where}: a {cls.__name__} has fields {sorted(declared)}, but this one has {came:.200}")
        lengths = {} if d is None else {"d": d}
        for name, value in packed.items():
            alternatives = declared[name]
            if not (alternatives[0].fits(value, lengths) or any(kind.fits(value, lengths) for kind in alternatives)):
                raise WireError(
                    f"{where}: {cls.__name__}.{name} is {_value_text(value)}, but is declared as "
                    f"{in_words(kind.text for kind in declared[name])}{'' if d is None else f' with d = {d}'}"
                )
            other = isinstance(value, Tensor) and value.dtype != dtype and value.is_floating_point()
            if dtype is not None and other and any("d" in (kind.axes or ()) for kind in alternatives):
                raise WireError(f"{where}: {cls.__name__}.{name} is {_value_text(value)}, but the model is of {dtype}")
            if finite and not is_finite(value):
                raise WireError(f"{where}: {cls.__name__}.{name} contains numbers that are not finite")
        size = nbytes(packed)
        if size > LIMIT:
            raise WireError(f"{where}: this {cls.__name__} has {size} bytes; the limit is {LIMIT}")


@cache
def _declared(cls: type[Message]) -> dict[str, list[ValueType]]:
    """The types of each field. Raises MedleyError for a type that messages cannot carry."""
    hints = typing.get_type_hints(cls)
    out = {f.name: kinds(hints[f.name], finite=False) for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name, alternatives in out.items():
        if any(kind.words or kind.type not in (Tensor, bool, int, float, type(None)) for kind in alternatives):
            raise MedleyError(
                f"{cls.__name__}.{name}: a message cannot carry a {hints[name]}: declare tensors, numbers, bools and "
                "None"
            )
    return out


def is_finite(value: Tensor | Scalar | None) -> bool:
    """True if ``value`` contains no NaN, no infinity and no whole number that overflows a float."""
    if isinstance(value, Tensor):
        # One pass for the sum; a second pass is needed only if finite numbers overflow.
        some = value.is_floating_point() and value.numel()
        return not some or math.isfinite(value.sum().item()) or bool(value.isfinite().all())
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max


def form_of(packed: Packed) -> Form:
    """The fields of a message, each with a tensor's shape, "a number", or "absent"."""

    def form(value: Tensor | Scalar | None) -> str:
        return str(list(value.shape)) if isinstance(value, Tensor) else "absent" if value is None else "a number"

    return frozenset((name, form(v)) for name, v in packed.items())


def _value_text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    # repr, because this may be a client's text with any content.
    return "None" if value is None else f"the {type(value).__name__} {repr(value)[:40]}"


def nbytes(packed: Packed) -> int:
    """Payload in bytes: a tensor's own, 8 for an int or a float, 1 for a bool, 0 for None."""
    total = 0
    for value in packed.values():
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, bool):
            total += 1
        elif value is not None:
            total += 8
    return total
