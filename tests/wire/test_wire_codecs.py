"""Codecs: their errors, their state, and its agreement at both ends whatever is lost on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import medley as md
from medley.codecs import Cast, Delta, Plain, Quantise, TopK, TwoWay
from medley.contract.message import Packed, nbytes
from medley.runtime import streams
from medley.testing.faults import Rewired, losing, one_by_one, twice
from medley.transports import InProcess, Processes
from medley.wire.codec import Codec
from support.pairs import quick

f64 = torch.float64


def rng():
    return streams.generator(0, "codec")


def through(codec, packed, state=None):
    encoded = codec.encode(packed, state or {}, rng)
    decoded = codec.decode(encoded, state or {}, f64)
    return encoded, decoded, codec.keep(packed, decoded, state or {})


MATRIX = torch.randn(6, 50, generator=torch.Generator().manual_seed(0), dtype=f64) * torch.logspace(-6, 6, 6)[:, None]
PACKED = {"V": MATRIX, "n": 7, "x": 0.25, "ok": True, "none": None, "at": torch.arange(5), "e": torch.zeros(0)}


def no_draws() -> torch.Generator:
    raise AssertionError("this codec draws nothing")


@pytest.mark.parametrize(("dtype", "width"), [("float16", 2), ("bfloat16", 2), ("float32", 4)])
def test_cast_narrows_floats_and_nothing_else(dtype: str, width: int):
    x = torch.linspace(-3, 3, 101, dtype=torch.float64)
    packed: Packed = {"x": x, "i": torch.arange(4), "n": 3, "f": 0.1, "yes": True, "none": None}
    sent = Cast(dtype).encode(packed, {}, no_draws)
    assert nbytes(packed) - nbytes(sent) == 101 * (8 - width)
    back = Cast(dtype).decode(sent, {}, torch.float64)
    assert isinstance(back["x"], Tensor)
    assert back["x"].dtype == torch.float64
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    assert ((back["x"] - x).abs() <= unit * x.abs() + 1e-8).all()
    assert {k: v for k, v in back.items() if k not in "xi"} == {k: v for k, v in packed.items() if k not in "xi"}
    assert isinstance(back["i"], Tensor)
    assert back["i"].dtype == torch.int64
    assert torch.equal(back["i"], torch.arange(4))


def test_cast_knows_three_types_and_plain_changes_nothing():
    with pytest.raises(md.RecipeError, match=r"has no 'float8'. .* It knows: bfloat16, float16, float32"):
        Cast("float8")
    packed: Packed = {"x": torch.ones(3)}
    assert Plain().decode(Plain().encode(packed, {}, no_draws), {}, torch.float64) is packed


@pytest.mark.parametrize(
    ("bits", "rounding", "share"), [(8, "nearest", 0.5), (8, "stochastic", 1.0), (3, "nearest", 0.5)]
)
@pytest.mark.shapes
def test_quantise_is_off_by_a_share_of_a_level_in_every_row(bits, rounding, share):
    encoded, decoded, state = through(Quantise(bits, rounding), PACKED)
    level = MATRIX.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert bool(((decoded["V"] - MATRIX).abs() <= share * level * (1 + 1e-5)).all())
    assert nbytes(encoded) == 6 * 50 + 6 * 4 + 8 + 8 + 1 + 5 * 8
    assert state == {}
    rest = {k: v for k, v in PACKED.items() if k != "V"}
    assert all(decoded[k] is rest[k] for k in rest)
    assert decoded.keys() == PACKED.keys()


@pytest.mark.slow
def test_zeros_are_zeros_and_stochastic_rounding_is_right_in_the_mean():
    assert through(Quantise(), {"v": torch.zeros(4, dtype=f64)})[1]["v"].equal(torch.zeros(4, dtype=f64))
    v = torch.tensor([1.0, 0.3, -0.123], dtype=f64)
    codec = Quantise(3, "stochastic")
    total = torch.zeros(3, dtype=f64)
    for k in range(4000):
        total += codec.decode(codec.encode({"v": v}, {}, lambda k=k: streams.generator(0, k)), {}, f64)["v"]
    torch.testing.assert_close(total / 4000, v, rtol=0, atol=0.01)


@pytest.mark.shapes
def test_topk_sends_the_largest_and_owes_the_rest():
    codec = TopK(0.4)
    v = torch.tensor([[3.0, -0.1, 0.2], [-4.0, 0.5, 0.0]], dtype=f64)
    encoded, decoded, state = through(codec, {"v": v})
    assert decoded["v"].equal(torch.tensor([[3.0, 0, 0], [-4.0, 0.5, 0]], dtype=f64))
    assert nbytes(encoded) == 3 * 8 + 3 * 4 + 2 * 4
    sent = decoded["v"].clone()
    for _ in range(30):
        _, decoded, state = through(codec, {"v": v}, state)
        sent += decoded["v"]
    torch.testing.assert_close(sent + state["v"], 31 * v, rtol=1e-12, atol=1e-12)
    assert float(state["v"].abs().max()) < 5


@pytest.mark.parametrize("inner", [Quantise(), Cast("float16"), TopK(0.3, feedback=False)], ids=str)
@pytest.mark.shapes
def test_delta_forgets_its_error_as_replies_settle(inner):
    v = MATRIX / MATRIX.abs().max()
    state = {}
    codec = Delta(inner)
    errors = []
    for _ in range(6):
        _, decoded, state = through(codec, {"v": v}, state)
        assert state["v"].equal(decoded["v"])
        errors.append(float((decoded["v"] - v).norm() / v.norm()))
    assert errors[-1] < 1e-9 * max(errors[0], 1e-9) or errors[-1] < 1e-6


def test_a_shape_that_changes_begins_anew():
    codec = Delta()
    _, _, state = through(codec, {"v": torch.ones(3, dtype=f64)})
    assert through(codec, {"v": torch.ones(5, dtype=f64)}, state)[1]["v"].shape == (5,)


@pytest.mark.parametrize(
    "make",
    [lambda: Quantise(9), lambda: TopK(0.0), lambda: Delta(TopK(0.1)), lambda: TwoWay(down=Delta())],
)
def test_settings_that_make_no_sense(make):
    with pytest.raises(md.RecipeError):
        make()


TOY = md.problems.synthetic_quadratics(clients=5, d=20, rows=(20, 30))


def fed(**options):
    pace = md.scenarios.Pace(lr=0.02, epochs=2, batch=None)
    return md.Federation(TOY.problem, clients=TOY.clients, f_star=TOY.f_star, pace=pace, **options)


CODECS = [Quantise(feedback=True), Quantise(8, "stochastic"), TopK(0.25), Delta(), Delta(Quantise(4)), TwoWay()]


@pytest.mark.parametrize("codec", quick(1, CODECS), ids=str)
def test_state_survives_resume_workers_and_second_requests(codec, tmp_path):
    def go(rounds=3, **options):
        return md.run(md.SCAFFOLD(), fed(), rounds, codec=codec, progress=False, **options)

    uninterrupted = go(transport=Rewired(InProcess(), one_by_one))
    others = [go(transport=Rewired(t, d)) for t, d in ((InProcess(), twice), (Processes(2), one_by_one))]
    for other in others:
        assert other.x.equal(uninterrupted.x)
        assert [*other.ledger] == [*uninterrupted.ledger]
    plain = go()
    go(2, checkpoint=tmp_path)
    assert go(resume=tmp_path).x.equal(plain.x)


@pytest.mark.parametrize("codec", quick(2, CODECS), ids=str)
def test_a_lost_reply_is_one_never_asked_for(codec):
    lost = {(1, 0, 1), (2, 0, 2), (3, 0, 1)}
    both = [Rewired(InProcess(), losing(lost, requests_arrive=arrive)) for arrive in (True, False)]
    a, b = (md.run(md.SCAFFOLD(), fed(), 5, codec=codec, progress=False, transport=t) for t in both)
    assert a.x.equal(b.x)


def test_the_ledger_counts_what_travels():
    ups = {}
    for codec in (None, Cast("float32"), Quantise(), TopK(0.25), Delta()):
        r = md.run(md.FedAvg(), fed(), 1, codec=codec, progress=False)
        ups[str(codec)] = {e.up for e in r.ledger}
        assert {e.down for e in r.ledger} == {80 if isinstance(codec, Cast) else 160}
    assert list(ups.values()) == [{160}, {80}, {24}, {5 * 8 + 5 * 4 + 4}, {24}]


@pytest.mark.parametrize(("down", "width"), [(Cast("float16"), 2), (Cast("float32"), 4), (Plain(), 8)])
@pytest.mark.shapes
def test_eight_bits_up_and_sixteen_down(down: Codec, width: int):
    r = md.run(md.FedAvg(), fed(), 2, codec=TwoWay(Delta(), down), progress=False)
    assert {e.up for e in r.ledger} == {20 + 4}
    assert {e.down for e in r.ledger} == {20 * width}


@pytest.mark.slow
def test_a_codec_of_two_ways_is_its_parts():
    def go(codec):
        return md.run(md.SCAFFOLD(), fed(), 4, codec=codec, progress=False).x

    assert go(TwoWay(Delta(), Plain())).equal(go(Delta()))
    assert go(TwoWay(Cast(), Cast())).equal(go(Cast()))
    assert not go(TwoWay(Delta(), Cast())).equal(go(Delta()))


@dataclass(frozen=True)
class Running:
    """A codec of one's own: both ways, with state. Replies travel as differences to a running sum of replies."""

    both_ways: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def encode(self, packed, state, rng):
        return {k: v - state[k] if k in state else v for k, v in packed.items()}

    def decode(self, encoded, state, dtype):
        return {k: v + state[k] if k in state else v for k, v in encoded.items()}

    def keep(self, packed, decoded, state):
        return {k: v for k, v in decoded.items() if isinstance(v, Tensor)}


@pytest.mark.slow
def test_a_codec_of_ones_own_may_go_both_ways_and_remember(tmp_path):
    def go(rounds=4, **options):
        return md.run(md.SCAFFOLD(), fed(), rounds, codec=Running(), progress=False, **options)

    assert isinstance(Running(), Codec)
    uninterrupted = go()
    exact = md.run(md.SCAFFOLD(), fed(), 4, progress=False)
    torch.testing.assert_close(uninterrupted.x, exact.x, rtol=1e-10, atol=1e-12)
    assert not uninterrupted.x.equal(exact.x)
    assert go(transport=Processes(2)).x.equal(uninterrupted.x)
    go(2, checkpoint=tmp_path)
    assert go(resume=tmp_path).x.equal(uninterrupted.x)
