from __future__ import annotations

import dataclasses

import pytest
import torch

from medley.core.errors import WireError
from medley.core.message import Message, nbytes
from medley.core.types import Vec


class Mixed(Message):
    x: Vec
    n: int
    f: float
    yes: bool
    maybe: Vec | None = None


def mixed() -> Mixed:
    return Mixed(torch.zeros(5, dtype=torch.float32), 3, 1.5, True)


def test_bytes_are_tensors_at_their_width_and_8_a_number_1_a_bool_0_a_none():
    assert nbytes(mixed().pack()) == 5 * 4 + 8 + 8 + 1 + 0
    sizes = {torch.float64: 8, torch.float16: 2, torch.bool: 1, torch.int8: 1, torch.int64: 8}
    assert {t: nbytes({"x": torch.zeros(3, 2, dtype=t)}) // 6 for t in sizes} == sizes
    assert nbytes({"x": torch.zeros(0, 4), "y": torch.zeros((), dtype=torch.float64)}) == 8


def test_unpack_is_the_inverse_of_pack():
    again = Mixed.unpack(mixed().pack())
    assert torch.equal(again.x, torch.zeros(5))
    assert (again.n, again.f, again.yes, again.maybe) == (3, 1.5, True, None)


def test_messages_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        mixed().n = 4  # type: ignore[misc]


@pytest.mark.parametrize("value", [[1.0], "text", {"a": 1}, (1, 2), object()])
def test_anything_else_in_a_field_is_refused_by_name(value: object):
    bad = object.__new__(Mixed)
    bad.__dict__.update({**mixed().pack(), "f": value})
    with pytest.raises(WireError, match=rf"Mixed\.f is a {type(value).__name__}"):
        bad.pack()


@pytest.mark.parametrize("change", [{"more": 1}, {"x": None}])
def test_other_fields_than_declared_are_refused(change: dict[str, object]):
    packed = mixed().pack()
    for k, v in change.items():
        if v is None:
            del packed[k]
        else:
            packed[k] = 1
    with pytest.raises(WireError, match="a Mixed has fields"):
        Mixed.unpack(packed)
