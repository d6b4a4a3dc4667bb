"""Typed messages: frozen dataclasses of tensors and scalars.

No other field can be declared. So a message is metered to the byte, and decoding it runs no code of the sender.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Collection
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from torch import Tensor

from .errors import MedleyError, WireError

LIMIT = 1 << 32
"""The largest payload of a message, in bytes."""

Scalar = bool | int | float

Packed = dict[str, Tensor | Scalar | None]
"""A message on the wire: field -> tensor, scalar, or None for an optional field that is not sent."""

Form = frozenset[tuple[str, str]]
"""Names and shapes of a message's fields, see `form_of`."""

T = TypeVar("T", bound="Message")


@dataclass_transform(frozen_default=True)
class Message:
    """Base of every message. Declare fields; the base makes the class a frozen dataclass.

    Fields named in ``exact`` pass by the codec of replies, as scalars do. An example are losses that a line search
    compares: rounded, they would decide nothing.
    """

    exact: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        dataclasses.dataclass(frozen=True, eq=False)(cls)

    def pack(self) -> Packed:
        """Fields by name, with tensors contiguous. Raises WireError for a field that is neither tensor nor scalar."""
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
    def unpack(cls: type[T], packed: Packed, d: int | None = None, where: str = "a message", finite: bool = True) -> T:
        """The message with these fields, which may come from anywhere: see `check`, also for the arguments."""
        cls.check(packed, d, where, finite)
        return cls(**packed)

    @classmethod
    def zeros(cls, like: Tensor) -> Packed:
        """The fields of a message of zeros; vectors have the shape [d], dtype and device of ``like``.

        Raises MedleyError for a field that is neither a vector [d] nor a number.
        """
        packed: Packed = {}
        for name, kinds in _declared(cls).items():  # type: ignore[arg-type]
            if any(kind.axes == ("d",) for kind in kinds):
                packed[name] = like.new_zeros(like.shape)
            elif any(kind.scalar in (int, float) for kind in kinds):
                packed[name] = 0.0
            else:
                raise MedleyError(f"{cls.__name__}.{name} is neither a vector [d] nor a number")
        return packed

    @classmethod
    def has_one_form(cls) -> bool:
        """True where all messages of this class have the same fields and, for one d, the same shapes."""
        kinds = _declared(cls).values()  # type: ignore[arg-type]
        return all(len(k) == 1 and not k[0].open and all(a == "d" or a.isdigit() for a in k[0].axes) for k in kinds)

    @classmethod
    def check(cls, packed: Packed, d: int | None = None, where: str = "a message", finite: bool = True) -> None:
        """Raise WireError unless ``packed`` has the fields that the annotations declare.

        Args:
            packed: the fields
            d: length of the axis d; default None: any
            where: begins the error's text
            finite: False leaves out the search for NaN and infinities; default True

        Names, types, dtypes, shapes and size are checked. An axis has one length in all fields. A stack's axis, as in
        "*k d", must be absent.
        """
        declared = _declared(cls)  # type: ignore[arg-type]
        if declared.keys() != packed.keys():
            raise WireError(
                f"{where}: a {cls.__name__} has fields {sorted(declared)}, but {sorted(map(str, packed))} came"
            )
        lengths = {} if d is None else {"d": d}
        for name, value in packed.items():
            if not any(kind.fits(value, lengths) for kind in declared[name]):
                raise WireError(
                    f"{where}: {cls.__name__}.{name} is {_said(value)}, but is declared as "
                    f"{' or '.join(kind.text for kind in declared[name])}{'' if d is None else f' with d = {d}'}"
                )
            if finite and not is_finite(value):
                raise WireError(f"{where}: {cls.__name__}.{name} holds numbers that are not finite")
        if (size := nbytes(packed)) > LIMIT:
            raise WireError(f"{where}: a {cls.__name__} of {size} bytes came; {LIMIT} is the limit")


class FieldType(NamedTuple):
    """One alternative of a field's annotation: a scalar type, or a tensor with its dtypes and axes.

    Attributes:
        text: the annotation, for errors
        scalar: the type of a scalar, or None for a tensor
        dtypes: names of the dtypes; None for any
        axes: a name or a length for each axis
        open: True for any shape
    """

    text: str
    scalar: type | None = None
    dtypes: Collection[str] | None = None
    axes: tuple[str, ...] = ()
    open: bool = False

    @classmethod
    def of(cls, hint: Any) -> FieldType:
        """Read an annotation without alternatives. Raises MedleyError for a type that messages cannot carry."""
        if hint in (bool, int, float, type(None)):
            return cls("None" if hint is type(None) else hint.__name__, hint)
        if hint is Tensor:
            return cls("a tensor", open=True)
        try:
            axes = hint.dim_str.split()
        except AttributeError:
            raise MedleyError(f"a message cannot carry a {hint}: declare tensors, numbers, bools and None") from None
        dtypes = None if "Shaped" in str(hint) else hint.dtypes
        # A stack's axis is never on the wire: a message belongs to one client.
        kept = tuple(axis for axis in axes if not (axis.startswith("*") and axis != "*"))
        return cls(str(hint).split(".")[-1].strip("'>"), None, dtypes, kept, "..." in axes)

    def fits(self, value: Any, lengths: dict[str, int]) -> bool:
        """True if ``value`` has this type. Adds the lengths of new axes to ``lengths``."""
        if self.scalar is not None:
            # To Python a bool is an int. On the wire it is not, but an int passes as a float.
            return type(value) is self.scalar or (
                isinstance(value, self.scalar if self.scalar is not float else int | float)
                and not isinstance(value, bool)
            )
        if not isinstance(value, Tensor) or (
            self.dtypes is not None and str(value.dtype).removeprefix("torch.") not in self.dtypes
        ):
            return False
        if self.open:
            return True
        return len(value.shape) == len(self.axes) and all(
            size == (int(axis) if axis.isdigit() else lengths.setdefault(axis, size) if axis.isidentifier() else size)
            for axis, size in zip(self.axes, value.shape, strict=True)
        )


@cache
def _declared(cls: type[Message]) -> dict[str, tuple[FieldType, ...]]:
    hints = typing.get_type_hints(cls)
    out = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        hint = hints[f.name]
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        out[f.name] = tuple(FieldType.of(h) for h in (typing.get_args(hint) if union else (hint,)))
    return out


def is_finite(value: Tensor | Scalar | None) -> bool:
    """True if ``value`` holds neither NaN nor an infinity, nor a whole number that no float can hold."""
    if isinstance(value, Tensor):
        # One pass for the sum; only an overflow of finite numbers needs the second look.
        return not value.is_floating_point() or math.isfinite(value.sum().item()) or bool(value.isfinite().all())
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max


def form_of(packed: Packed) -> Form:
    """The fields of a message, each with a tensor's shape, "a number", or "absent"."""

    def said(v: Tensor | Scalar | None) -> str:
        return str(list(v.shape)) if isinstance(v, Tensor) else "absent" if v is None else "a number"

    return frozenset((name, said(v)) for name, v in packed.items())


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    # repr: text of a client's comes here, and may hold anything.
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
