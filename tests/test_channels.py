from __future__ import annotations

import math

import numpy as np
import pytest

from medley.contract.errors import RecipeError
from medley.distributions import Bandwidth, Rayleigh, Uniform
from medley.runtime.streams import rng
from medley.scenarios import Pace


def test_sh_12_the_fading_channel_carries_3_814_pairs():
    law = Rayleigh()
    stream = rng(0, "channel")
    values = np.array([law.draw(stream) for _ in range(200_000)])
    # E⌊X⌋ = Σ_k P(X ≥ k), and X ≥ k iff γ ≥ (2^(k/2) − 1)/5.
    tail = [math.exp(-(2 ** (k / 2) - 1) / 5) for k in range(1, 40)]
    assert sum(tail) == pytest.approx(3.814, abs=1e-3)
    assert values.mean() == pytest.approx(sum(tail), abs=4 * values.std() / len(values) ** 0.5)
    assert 1 - tail[0] == pytest.approx(0.0795, abs=5e-5)
    assert (values == 0).mean() == pytest.approx(1 - tail[0], abs=0.003)
    assert (values > 10).mean() == pytest.approx(1.4e-4, abs=1e-4)


def test_a_pace_draws_it_for_every_client_and_round():
    pace = Pace(pairs=Rayleigh(), redraw=True)
    pairs = {(i, t): pace.of(0, i, t).pairs for i in range(5) for t in range(1, 40)}
    assert pairs == {(i, t): pace.of(0, i, t).pairs for i in range(5) for t in range(1, 40)}
    assert len({tuple(pairs[i, t] for t in range(1, 40)) for i in range(5)}) == 5
    assert min(pairs.values()) == 0


def test_bandwidth_is_a_gradient_and_so_many_pairs():
    gradient = 300 * 8 + 16
    pair = 301 * 8
    for bytes, pairs in (
        (0, 0),
        (gradient, 0),
        (gradient + pair - 1, 0),
        (gradient + pair, 1),
        (gradient + 7 * pair, 7),
    ):
        assert Bandwidth(bytes, d=300).draw(rng(0, "bytes")) == pairs
    assert Bandwidth(300 + 16 + 3 * 308, d=300, width=1).draw(rng(0, "bytes")) == 3
    varying = {Bandwidth(Uniform(0, 20 * pair), d=300).draw(rng(0, "bytes", k)) for k in range(200)}
    assert varying == set(range(19))


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Rayleigh(d0=0), "d0"),
        (lambda: Rayleigh(snr=math.nan), "snr"),
        (lambda: Bandwidth(-1, d=3), "bytes"),
        (lambda: Bandwidth(100, d=0), "d"),
        (lambda: Bandwidth(100, d=3, width=0), "width"),
    ],
)
def test_refuses_links_that_make_no_sense(make, key):
    with pytest.raises(RecipeError, match=key) as e:
        make()
    assert e.value.key == key
