"""Typed messages: frozen dataclasses of tensors and scalars, and nothing else.

Nothing else can be declared, so a message can be metered to the byte and decoded without running anybody's code.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

from torch import Tensor

from .errors import WireError

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
        """Fields by name. Raises WireError for a field that is neither tensor nor scalar."""
        fields = dict(vars(self))
        for name, value in fields.items():
            if not isinstance(value, Tensor | bool | int | float | None):
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
