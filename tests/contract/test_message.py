"""Messages: packing, declarations, checks, sizes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from medley.contract import message
from medley.contract.errors import MedleyError, WireError
from medley.contract.message import Message, Packed, nbytes
from medley.contract.types import Num, Vec


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


def test_a_hundred_thousand_fields_make_a_short_error():
    """They made a line of 1 MB a round; an error that quotes what came is bounded, whatever it quotes."""
    with pytest.raises(WireError, match="a Mixed has fields") as caught:
        Mixed.check(dict.fromkeys(map(str, range(100_000)), 1))
    assert len(str(caught.value)) < 500
    assert len(str(WireError("x" * 1_000_000))) == 2000


class Typed(Message):
    x: Vec
    n: int
    f: float
    yes: bool
    t: Num
    rows: Float[Tensor, "q d"]
    which: Int[Tensor, " q"]
    raw: Shaped[Tensor, "q ..."]
    maybe: Vec | None


def typed(**changes: object) -> Packed:
    q, d = 2, 5
    fields = {"x": torch.zeros(d), "n": 3, "f": 1, "yes": True, "t": torch.zeros(1, 1), "rows": torch.zeros(q, d)}
    fields |= {"which": torch.arange(q), "raw": torch.zeros(q, 7, dtype=torch.int8), "maybe": None}
    return fields | changes  # type: ignore[return-value]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"f": 1.5},
        {"t": 0.5},
        {"maybe": torch.ones(5, dtype=torch.float16)},
        {"raw": torch.zeros(2)},
        {"rows": torch.zeros(0, 5), "which": torch.arange(0), "raw": torch.zeros(0)},
    ],
)
def test_what_is_declared_passes(changes: dict[str, object]):
    Typed.check(typed(**changes), 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": torch.zeros(4)}, r"Typed\.x is a tensor of float32\[4\], but is declared as .*d.* with d = 5"),
        ({"x": torch.zeros(1, 5)}, r"Typed\.x is a tensor of float32\[1, 5\]"),
        ({"x": torch.zeros(5, dtype=torch.int64)}, r"Typed\.x is a tensor of int64\[5\]"),
        ({"x": 1.0}, r"Typed\.x is the float 1\.0"),
        ({"x": None}, r"Typed\.x is None"),
        ({"n": 1.5}, r"Typed\.n is the float 1\.5, but is declared as a whole number"),
        ({"n": True}, r"Typed\.n is the bool True"),
        ({"n": torch.tensor(3)}, r"Typed\.n is a tensor of int64\[\]"),
        ({"yes": 1}, r"Typed\.yes is the int 1, but is declared as True or False"),
        ({"t": torch.zeros(1, 2)}, r"Typed\.t is a tensor"),
        ({"rows": torch.zeros(5, 2)}, r"Typed\.rows is a tensor"),
        ({"which": torch.arange(3)}, r"Typed\.which is a tensor of int64\[3\]"),
        ({"maybe": torch.zeros(3)}, r"Typed\.maybe is a tensor of float32\[3\], but is declared as .* or None"),
        ({"x": torch.tensor([0, 0, 0, 0, torch.inf])}, r"Typed\.x contains numbers that are not finite"),
        ({"f": float("nan")}, r"Typed\.f contains numbers that are not finite"),
    ],
)
def test_anything_else_than_declared_is_refused_with_who_where_and_which_field(changes: dict[str, object], said: str):
    with pytest.raises(WireError, match=rf"^client 7: {said}"):
        Typed.check(typed(**changes), 5, "client 7")


def test_finite_numbers_whose_sum_is_not_are_finite():
    Mixed.check({**mixed().pack(), "x": torch.full((5,), 3e38)})


def test_size_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    packed = mixed().pack()
    monkeypatch.setattr(message, "LIMIT", nbytes(packed) - 1)
    with pytest.raises(WireError, match=r"this Mixed has 37 bytes; the limit is 36"):
        Mixed.unpack(packed)


def test_a_declaration_that_no_message_can_carry_is_refused():
    class Odd(Message):
        names: list[str]

    with pytest.raises(MedleyError, match=r"Odd\.names: a message cannot carry a list\[str\]"):
        Odd.check({"names": 1})
