"""Typed messages: frozen dataclasses of tensors and scalars, and nothing else.

Nothing else can be declared, so a message can be metered to the byte and decoded without running anybody's code.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

from torch import Tensor

from .errors import MedleyError, WireError

Scalar = bool | int | float
Packed = dict[str, Tensor | Scalar | None]
"""A message on its way: field -> tensor, scalar, or None for an optional field that is not sent."""

T = TypeVar("T", bound="Message")


@dataclass_transform(frozen_default=True)
class Message:
    """Base of every payload. Declare fields; the base makes the class a frozen dataclass."""

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        dataclasses.dataclass(frozen=True, eq=False)(cls)

    def pack(self) -> Packed:
        """Fields by name, tensors contiguous: strides do not travel, and products of views can differ in their bits.

        Raises WireError for a field that is neither tensor nor scalar.
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
    def unpack(cls: type[T], packed: Packed) -> T:
        """The message of these fields. Raises WireError when they are not the declared ones."""
        declared = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        if declared != packed.keys():
            raise WireError(f"a {cls.__name__} has fields {sorted(declared)}, but {sorted(packed)} came")
        return cls(**packed)


def nbytes(packed: Packed) -> int:
    """Payload bytes: tensors as they travel, 8 per int or float, 1 per bool, nothing for None."""
    total = 0
    for value in packed.values():
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, bool):
            total += 1
        elif value is not None:
            total += 8
    return total


def accumulate(total: Packed | None, packed: Packed, weight: float) -> Packed:
    """``total`` + ``weight``·``packed``, in place where there is a total already. bools cannot be summed."""
    if total is None:
        total = {}
        for name, v in packed.items():
            if isinstance(v, bool):
                raise MedleyError(f"{name!r} is a bool and has no mean; read these replies with .each()")
            # An integer tensor times a float would be float32, whatever the run's dtype.
            if isinstance(v, Tensor) and not v.is_floating_point():
                v = v.double()
            total[name] = None if v is None else v * weight
        return total
    for name, v in packed.items():
        into = total[name]
        if (into is None) != (v is None):
            raise WireError(f"{name!r} came from some clients and not from others: read these replies with .each()")
        if isinstance(into, Tensor):
            assert isinstance(v, Tensor)
            if into.shape != v.shape:
                raise WireError(f"{name!r} has shape {tuple(v.shape)} at one client and {tuple(into.shape)} at another")
            into.add_(v, alpha=weight)
        elif into is not None:
            assert not isinstance(v, Tensor | None)
            total[name] = into + v * weight
    return total
