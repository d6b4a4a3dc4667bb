"""Noise in shares: the published bound against exact divergences, the noise of a run, and its account."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import rdp
from scipy.stats import kstest, skellam

import medley as md
from medley.privacy.skellam import divergence, gaussian
from medley.secure.ring import Ring
from medley.wire.clip import LEVELS, Clip


def exact(alpha: int, variance: float, shift: int) -> float:
    """Rényi's divergence of Sk(μ) + shift from Sk(μ), by its sum over whole numbers."""
    wide = int(20 * math.sqrt(variance) + 60)
    k = np.arange(-wide, wide + 1)
    p, q = (skellam.logpmf(k - s, variance / 2, variance / 2) for s in (shift, 0))
    there = np.isfinite(p) & np.isfinite(q)
    return float(np.log(np.exp(alpha * p[there] + (1 - alpha) * q[there]).sum())) / (alpha - 1)


@pytest.mark.parametrize("variance", [8.0, 40.0, 400.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_published_bound_holds_and_is_near(variance: float, shift: int) -> None:
    """Corollary 3.6 of Agarwal et al. (2021), in one dimension."""
    for alpha in (2, 3, 8):
        true, bound = exact(alpha, variance, shift), divergence(alpha, variance, shift, shift)
        assert true < bound < (1 + (4 if variance > 8 else 7) / variance) * true


def test_the_bound_has_the_published_closed_form() -> None:
    """By hand: α = 4, Δ₂ = 3, Δ₁ = 5, μ = 2 takes the second minimum; μ = 100 the first."""
    assert divergence(4, 2.0, 3.0, 5.0) == pytest.approx(4 * 9 / 4 + min((7 * 9 + 30) / 16, 15 / 4))
    assert divergence(4, 100.0, 3.0, 5.0) == pytest.approx(4 * 9 / 200 + (7 * 9 + 30) / 40_000)


@pytest.mark.parametrize("d", [1, 10**4, 10**6])
@pytest.mark.parametrize("z", [0.3, 1.0, 8.0])
def test_gaussian_noise_of_equation_3_bounds_equation_2(z: float, d: int) -> None:
    wide = LEVELS + math.sqrt(d) / 2
    for alpha in (2, 5, 64, 1024):
        true = divergence(alpha, (z * LEVELS) ** 2, wide, math.sqrt(d) * wide)
        assert true <= alpha / (2 * gaussian(z, d) ** 2) * (1 + 1e-12)
    assert gaussian(z, d) == pytest.approx(z / (1 + math.sqrt(d) / (2 * LEVELS)), rel=1e-6)


def test_shares_of_those_that_must_stay_are_the_noise_that_is_asked_for() -> None:
    n, stay, z, d = 10, 6, 0.7, 20_000
    ring = Ring(32, 1.0, dict.fromkeys(range(n), 1 / n), Clip(0.25, z), stay)
    layout = ring.layout({"delta": torch.zeros(d)})
    assert [f.size for f in layout] == [d]  # no count of those within their bound
    total = np.zeros(d, ring.dtype)
    for i in range(stay):
        total += ring.share_of_noise(layout, np.random.default_rng(i))
    signed = total.view(np.int32) / LEVELS
    assert float(signed.std()) == pytest.approx(z, rel=0.02)
    assert kstest(signed / z, "norm").pvalue > 0.01
    decoded = ring.decoded(total, layout)["delta"]
    assert isinstance(decoded, torch.Tensor)
    assert float(decoded.std()) == pytest.approx(z * 0.25 / n, rel=0.02)  # in units of weight times bound


def federation(participation: Any = None) -> md.Federation:
    return md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.IID(10),
        participation=participation,
        weights="uniform",
    )


def private(**how: Any) -> md.Private:
    return md.Private(md.FedAvg(), **{"noise": 0.8, "clip": 0.5, "noise_at": "clients", **how})


def run(method: Any, fed: md.Federation | None = None, rounds: int = 1, **how: Any) -> md.Result:
    return md.run(method, fed or federation(), rounds, **{"secure": md.SecureSum(), "progress": False, **how})


@pytest.mark.slow
def test_the_noise_of_a_run_is_that_of_its_clients() -> None:
    """10 of 10 clients, each with 1/6 of the variance: √(10/6) times the noise that is asked for."""
    noisy, without = run(private()), run(md.Private(md.FedAvg(), noise=0.0, clip=0.5))
    sizes = (noisy.x - without.x).double()
    assert float(sizes.std()) == pytest.approx(0.8 * 0.5 / 10 * math.sqrt(10 / 6), rel=0.1)
    assert torch.equal(noisy.x, run(private()).x)  # in a simulation of named streams
    assert not torch.equal(noisy.x, run(private(), seed=1).x)


@pytest.mark.slow
def test_the_account_is_the_divergence_of_all_rounds() -> None:
    """No share is taken off for a cohort that was drawn: the server knows who takes part."""
    rounds, d = 4, 640
    got = run(private(delta=1e-6), federation(md.participation.Bernoulli(0.8)), rounds).history[-1]["epsilon"]
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    account = rdp.RdpAccountant(range(2, 400), neighboring_relation=relation)
    account.compose(dp_accounting.GaussianDpEvent(gaussian(0.8, d)), rounds)
    assert got == pytest.approx(account.get_epsilon(1e-6), rel=1e-3)
    wide = LEVELS + math.sqrt(d) / 2
    by_hand = min(
        rounds * divergence(a, (0.8 * LEVELS) ** 2, wide, math.sqrt(d) * wide)
        + math.log1p(-1 / a)
        - (math.log(1e-6) + math.log(a)) / (a - 1)
        for a in range(2, 100)
    )
    assert got == pytest.approx(by_hand, rel=1e-4)
    at_server = md.Private(md.FedAvg(), noise=0.8, clip=0.5, delta=1e-6)
    assert run(at_server, federation(md.participation.Bernoulli(0.8)), rounds).history[-1]["epsilon"] < got


@pytest.mark.slow
def test_clients_that_leave_take_no_noise_below_the_target() -> None:
    lossy = md.transports.Lossy(loss=1.0, clients=[0, 1, 2, 3])
    left = run(private(), transport=lossy)
    plain = run(md.Private(md.FedAvg(), noise=0.0, clip=0.5), transport=lossy)
    assert float((left.x - plain.x).std()) == pytest.approx(0.8 * 0.5 / 10, rel=0.1)  # 6 of 10 stayed, as must
    assert left.history[-1]["epsilon"] == run(private()).history[-1]["epsilon"]
    with pytest.raises(md.TooFewReplies, match="5 of 10 clients sent a reply"):
        run(private(), transport=md.transports.Lossy(loss=1.0, clients=[0, 1, 2, 3, 4]))


@pytest.mark.slow
def test_a_budget_ends_the_run_before_it_is_spent() -> None:
    with pytest.raises(md.BudgetSpent) as e:
        run(private(noise=4.0, epsilon=3.0), rounds=50)
    spent = e.value.result.history
    assert len(spent) > 3
    assert 2 < spent[-1]["epsilon"] <= 3.0


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"unit": "row"}, r"Private\(noise_at='clients', unit='row'\): clients add the noise to their steps already"),
        ({"noise": None, "epsilon": 3.0, "rounds": 5}, r"Private\(noise_at='clients', noise=None\): set noise="),
        ({"noise": 0.0}, r"Private\(noise_at='clients', noise=0.0\): set noise="),
        ({"clip": md.privacy.Quantile()}, r"Private\(noise_at='clients', clip=Quantile.*use a number"),
        ({"mechanism": md.privacy.Banded(3)}, r"Private\(noise_at='clients', mechanism=Banded"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(md.RecipeError, match=sentence):
        private(**how)


@pytest.mark.shapes
def test_runs_that_cannot_have_it_are_refused() -> None:
    with pytest.raises(md.Unsupported, match=r"DP-FedAvg needs secure sums, .* give run\(secure=md.SecureSum\(\)\)"):
        run(private(), secure=None)
    with pytest.raises(md.RecipeError, match=r"SecureSum\(bits=16\): noise in shares takes 65536 .* give bits=32"):
        run(private(), secure=md.SecureSum(bits=16))
