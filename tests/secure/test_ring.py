"""The ring: the stated error, no overflow, and values beyond the bound refused with client and field."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import medley as md
from medley.secure.ring import WITHIN, Ring
from medley.wire.clip import Clip


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.sampled_from([32, 64]), st.sampled_from([1e-3, 1.0, 1e4]), st.integers(0, 1000))
def test_the_error_of_a_sum_is_within_what_is_stated(n: int, bits: int, bound: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(n, 0.3))
    ring = Ring(bits, bound, dict(enumerate(p.tolist())))
    replies = [{"v": torch.tensor(rng.uniform(-bound, bound, 5)), "k": float(rng.uniform(-bound, bound))} for _ in p]
    layout = ring.layout(replies[0])
    total = np.sum([ring.encoded(i, r, layout) for i, r in enumerate(replies)], axis=0, dtype=ring.dtype)
    got = ring.decoded(total, layout)
    error = ring.error(bound) + 1e-15 * bound  # of the plain sum in double precision
    assert isinstance(v := got["v"], torch.Tensor)
    assert float((v - sum(w * r["v"] for w, r in zip(p, replies, strict=True))).abs().max()) <= error
    assert abs(got["k"] - sum(w * r["k"] for w, r in zip(p, replies, strict=True))) <= error  # type: ignore[operator]
    assert ring.error(bound) <= n * bound / 2 ** (bits - 2) * 1.01  # at most one bit is lost to the power of two


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_the_largest_entries_of_all_clients_do_not_overflow(bits: int) -> None:
    n, bound = 50, 3.0
    ring = Ring(bits, bound, dict.fromkeys(range(n), 2.0))
    for sign in (1, -1):
        reply = {"v": torch.full((4,), sign * bound, dtype=torch.float64)}
        layout = ring.layout(reply)
        total = np.sum([ring.encoded(i, reply, layout) for i in range(n)], axis=0, dtype=ring.dtype)
        v = ring.decoded(total, layout)["v"]
        assert isinstance(v, torch.Tensor)
        assert torch.allclose(v, torch.full((4,), sign * 2.0 * n * bound, dtype=torch.float64), rtol=1e-2)


def test_an_entry_beyond_the_bound_is_refused_with_client_and_field() -> None:
    ring = Ring(32, {"delta": 2.0}, {3: 0.5, 4: 0.5})
    reply = {"delta": torch.tensor([0.0, -2.5])}
    with pytest.raises(md.MedleyError, match=r"client 4: 'delta' has an entry of magnitude 2.5, beyond .*bound=2\)"):
        ring.encoded(4, reply, ring.layout(reply))
    with pytest.raises(md.MedleyError, match="client 4: 'delta' has an entry of magnitude nan"):
        ring.encoded(4, {"delta": torch.tensor([0.0, torch.nan])}, ring.layout(reply))
    with pytest.raises(md.RecipeError, match="has no 'T'"):
        ring.layout({"T": 1.0})


def test_too_few_bits_and_fields_without_a_sum_are_refused() -> None:
    with pytest.raises(md.RecipeError, match=r"bits=16\): a sum of 300 clients leaves each 108 levels.*bits=32"):
        Ring(16, 1.0, dict.fromkeys(range(300), 1.0)).layout({"v": torch.zeros(2)})
    ring = Ring(32, 1.0, {0: 1.0, 1: 1.0})
    with pytest.raises(md.MedleyError, match="'ok' is a bool"):
        ring.layout({"ok": True})
    with pytest.raises(md.WireError, match="client 1's reply has other fields or shapes"):
        ring.encoded(1, {"v": torch.zeros(3)}, ring.layout({"v": torch.zeros(2)}))
    with pytest.raises(md.WireError, match="client 1's reply has other fields"):
        ring.encoded(1, {"v": None}, ring.layout({"v": torch.zeros(2)}))
    layout = ring.layout({"v": None, "w": torch.ones(2, dtype=torch.int64)})
    total = sum(ring.encoded(i, {"v": None, "w": torch.ones(2, dtype=torch.int64)}, layout) for i in (0, 1))
    got = ring.decoded(np.asarray(total, np.uint32), layout)
    assert got["v"] is None
    assert got["w"].tolist() == [2.0, 2.0]  # type: ignore[union-attr]


@pytest.mark.shapes
def test_under_a_clip_replies_are_scaled_down_and_counted() -> None:
    ring = Ring(32, 1e-6, dict.fromkeys(range(3), 0.25), Clip(2.0))
    replies = [{"v": torch.tensor([3.0, 4.0])}, {"v": torch.tensor([0.5, 0.0])}, {"v": torch.tensor([0.0, 1e6])}]
    layout = ring.layout(replies[0])
    got = ring.decoded(
        np.sum([ring.encoded(i, r, layout) for i, r in enumerate(replies)], axis=0, dtype=np.uint32), layout
    )
    assert got[WITHIN] == 1.0
    want = 0.25 * torch.tensor([1.2 + 0.5, 1.6 + 2.0])
    assert float((got["v"] - want).abs().max()) < 1e-8 + 1e-7  # type: ignore[operator, arg-type]
