"""Methods whose server sums changes keep their fixed point under every codec that is a default somewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import medley as md
from medley.codecs import Cast, Codec, Delta, Plain, Quantise, TwoWay

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)) + np.eye(3).repeat(n // 3, 0) * 2, RNG.normal(size=n)) for n in (21, 6, 12)]
BEST = np.linalg.solve(sum(x.T @ x for x, _ in CLIENTS), sum(x.T @ y for x, y in CLIENTS))

METHODS = (
    (md.SCAFFOLD(), 60),
    (md.FedDyn(alpha=1.0), 100),
    (md.FedDC(alpha=1.0), 60),
    (md.FedADMM(prox=1.0, server_lr="share"), 100),
    (md.FedNorton(), 40),
    (md.FedNorton(flows="client"), 40),
)
"""Methods, and rounds in which they get within 1e-7 of the optimum."""


def distance(method: md.Algorithm, rounds: int, codec: Codec | None) -> float:
    pace = md.scenarios.Pace(lr=0.1, epochs=2, batch=None)
    fed = md.Federation(md.problems.LeastSquares(), clients=CLIENTS, pace=pace)
    r = md.run(method, fed, rounds, codec=codec, eval_every=rounds, progress=False)
    return float(np.abs(r.x.numpy() - BEST).max())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rounds"), METHODS, ids=str)
def test_the_fixed_point_is_the_optimum_under_default_codecs(method: md.Algorithm, rounds: int) -> None:
    plain = distance(method, rounds, None)
    assert plain < 1e-7
    for codec in (Delta(), TwoWay(down=Plain())):
        assert distance(method, rounds, codec) < 2 * plain + 1e-12, codec
    # The model goes down in float16: its rounding is all that is left.
    for codec in (Cast(), TwoWay()):
        assert distance(method, rounds, codec) < 2.0**-11, codec


@pytest.mark.parametrize("inner", [Quantise(), Quantise(3), Quantise(4, "stochastic"), Cast()], ids=str)
def test_a_sum_of_replies_through_delta_lacks_the_last_error_alone(inner: Quantise | Cast) -> None:
    g = torch.Generator().manual_seed(0)
    codec = Delta(inner)
    state = {}
    sent = torch.zeros(9, dtype=torch.float64)
    received = torch.zeros(9, dtype=torch.float64)
    for k in range(60):
        v = torch.randn(9, generator=g, dtype=torch.float64) * 0.7**k
        draws = lambda k=k: torch.Generator().manual_seed(k)
        decoded = codec.decode(codec.encode({"v": v}, state, draws), state, torch.float64)
        state = codec.keep({"v": v}, decoded, state)
        sent = sent + v
        received = received + decoded["v"]
        assert torch.allclose(sent - received, state["v~"], atol=1e-12)
    assert float((sent - received).abs().max()) < 1e-7
