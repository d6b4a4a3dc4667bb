"""Messages as bytes: exact round trips, and nothing but WireError for bytes that are no message."""

from __future__ import annotations

import contextlib
import json
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from medley.contract.errors import WireError
from medley.contract.message import Packed, nbytes
from medley.wire import framing
from medley.wire.framing import from_bytes, seal, to_bytes, unseal

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    t = torch.randint(-100, 100, shape, generator=g)
    return (t % 2 == 0) if dtype is torch.bool else (t / 7).to(dtype) if dtype.is_floating_point else t.to(dtype)


values = st.one_of(tensors(), st.integers(), st.floats(), st.booleans(), st.none())
messages = st.dictionaries(st.text(max_size=8), values, max_size=5)


def same(a: Packed, b: Packed) -> bool:
    if list(a) != list(b):
        return False
    for x, y in zip(a.values(), b.values(), strict=True):
        if isinstance(x, Tensor):
            assert isinstance(y, Tensor)
            if x.dtype != y.dtype or x.shape != y.shape or not torch.equal(x, y):
                return False
        elif type(x) is not type(y) or (x != y and not (x != x and y != y)):
            return False
    return True


@given(messages)
@example({"x": torch.tensor([float("nan"), float("inf"), -0.0])[1:]})
@example({"x": torch.tensor(3.0), "y": torch.zeros(0, 7), "z": torch.zeros(0, dtype=torch.bool), "n": 10**30})
def test_bytes_and_back_is_the_same_message(packed: Packed):
    assert same(packed, from_bytes(to_bytes(packed)))


def test_special_floats_keep_their_bits():
    t = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 5e-324], dtype=torch.float64)
    back = from_bytes(to_bytes({"x": t, "f": float("inf"), "g": float("nan")}))
    assert isinstance(back["x"], Tensor)
    assert torch.equal(back["x"].view(torch.int64), t.view(torch.int64))
    assert back["f"] == float("inf")
    assert back["g"] != back["g"]


def test_a_large_message_and_one_that_is_not_contiguous():
    big = torch.arange(1_000_003, dtype=torch.float64)
    matrix = torch.arange(6.0).reshape(2, 3)
    back = from_bytes(to_bytes({"big": big, "turned": matrix.T, "some": big[::3]}))
    assert same(back, {"big": big, "turned": matrix.T.contiguous(), "some": big[::3].contiguous()})


def test_an_empty_tensor_of_numpys_travels():
    """Its stride is 0."""
    packed: Packed = {"x": torch.from_numpy(np.array([])), "y": torch.ones(2)}
    assert same(from_bytes(to_bytes(packed)), packed)


def test_what_came_in_can_be_written_to_and_does_not_share_the_received_bytes():
    raw = bytearray(to_bytes({"x": torch.ones(3), "y": torch.ones(3)}))
    packed = from_bytes(raw)
    raw[-12:] = bytes(12)
    x = packed["x"]
    y = packed["y"]
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    x.add_(1)
    assert x.tolist() == [2, 2, 2]
    assert y.tolist() == [1, 1, 1]


@pytest.mark.shapes
def test_framing_is_a_line_and_the_payload_is_exactly_the_metered_bytes():
    packed: Packed = {"x": torch.zeros(7, dtype=torch.float16), "y": torch.zeros(2, 2, dtype=torch.bool)}
    raw = to_bytes(packed)
    assert len(raw) - raw.index(b"\n") - 1 == nbytes(packed) == 18


def test_a_type_that_cannot_travel_is_refused_where_it_is_sent():
    with pytest.raises(WireError, match=r"'x'.*complex64"):
        to_bytes({"x": torch.zeros(2, dtype=torch.complex64)})


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_but_nothing_else_happens(raw: bytes):
    with contextlib.suppress(WireError):
        from_bytes(raw)


def head(*fields: object) -> bytes:
    return json.dumps(list(fields)).encode() + b"\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"[]",
        head(["x"]),
        head([]),
        head("ab"),
        head(7),
        head([["x"], 1]),
        head(["x", "1.0"]),
        head(["x", {"a": 1}]),
        head(["x", 1], ["x", 2]),
        head(["x", "float32", [-1]]),
        head(["x", "float32", [-1, -1]]) + bytes(4),
        head(["x", "float32", [2]]) + bytes(7),
        head(["x", "float32", [2]]) + bytes(9),
        head(["x", "float32", [1 << 40]]),
        head(["x", "float32", [1 << 62, 1 << 62]]),
        head(["x", "float32", [0, 1 << 62, 1 << 62]]),
        head(["x", "float32", [0, 10**30]]),
        head(["x", "float32", 3]),
        head(["x", "float32", [None]]),
        head(["x", "float32", ["3"]]) + bytes(12),
        head(["x", "float32", [1.5]]) + bytes(4),
        head(["x", "float32", [1], "more"]) + bytes(4),
        head(["x", "float31", [1]]),
        head(["x", ["float32"], [1]]),
        head(["x", "complex64", [1]]) + bytes(8),
        head(["x", "bool", [3]]) + b"\x00\x01\x02",
        b"[" * 100_000 + b"\n",
        b"9" * 5000 + b"\n",
        b'{"x": 1}\n',
        b"null\n",
        b'"x"\n',
        b"\xff\xfe\n",
        b'[["x", 1e999, []]]\n',
        b" " * (1 << 20) + b"[]\n",
    ],
)
def test_forged_messages_are_refused(raw: bytes):
    with pytest.raises(WireError):
        from_bytes(raw)


def test_twenty_thousand_mutations_of_good_messages_never_do_worse_than_a_wire_error():
    rng = random.Random(0)
    good = [
        to_bytes({"x": torch.arange(5.0), "n": 3, "f": 1.5, "yes": True, "none": None}),
        to_bytes({"a": torch.zeros(2, 3, dtype=torch.int64), "b": torch.ones((), dtype=torch.bfloat16)}),
        to_bytes({"e": torch.zeros(0, 4), "m": torch.tensor([True, False])}),
    ]
    read = 0
    for _ in range(20_000):
        raw = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(raw) or 1)
            match rng.randint(0, 4):
                case 0:
                    raw[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del raw[at : at + rng.randint(1, 8)]
                case 2:
                    raw[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 4)))
                case 3:
                    raw[at : at + 1] = rng.choice(b'0123456789-[]{},"\n').to_bytes(1, "little")
                case 4:
                    raw = raw[:at]
            if not raw:
                break
        try:
            packed = from_bytes(raw)
        except WireError:
            continue
        read += 1
        # NaNs may have come in, so bytes are compared: what was read is a message like any other.
        assert to_bytes(from_bytes(to_bytes(packed))) == to_bytes(packed)
    assert read > 100


@given(st.binary(max_size=60), st.data())
def test_a_seal_notices_every_other_byte_and_every_other_length(raw: bytes, data: st.DataObject):
    sealed = seal(raw)
    assert bytes(unseal(sealed)) == raw
    at = data.draw(st.integers(0, len(sealed) - 1))
    other = bytearray(sealed)
    other[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(other), sealed[:at], sealed + b"x"):
        with pytest.raises(WireError, match="damaged"):
            unseal(damaged)


def test_a_message_beyond_the_limit_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch):
    raw = to_bytes({"x": torch.zeros(100)})
    monkeypatch.setattr(framing, "LIMIT", len(raw) - 1)
    with pytest.raises(WireError, match=f"{len(raw)} bytes arrived; a message has at most {len(raw) - 1}"):
        from_bytes(raw)
