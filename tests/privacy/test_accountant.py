"""ε against values that others published."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from medley.contract.errors import RecipeError
from medley.contract.sampling import Sampling
from medley.privacy import noise_for
from medley.privacy.accountant import Accountant, Release, combined, epsilon, in_shares, release, within
from support.pairs import quick

pytest.importorskip("dp_accounting")


def poisson(rate: float) -> Sampling:
    return Sampling("poisson", 10**6, rate)


EVERYONE = Sampling("everyone", 100, 1.0, 100)


# rate, noise, rounds, δ, ε, source
PUBLISHED = [
    (150 / 60_000, 1.3, 6_000, 1e-5, 0.7242234026109595, "TensorFlow Privacy, compute_dp_sgd_privacy_test"),
    (100 / 100_000, 1.0, 30_000, 1e-7, 1.4154988495444845, "TensorFlow Privacy, compute_dp_sgd_privacy_test"),
    (0.04, 1.5, 2_250, 1e-5, 7.32911117143, "Opacus, accountants_test"),
]


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta", "published", "source"), quick(1, PUBLISHED))
def test_by_renyi_divergence(
    rate: float, noise: float, rounds: int, delta: float, published: float, source: str
) -> None:
    found = epsilon([release(poisson(rate), noise, rounds)], delta, "rdp")
    assert found == pytest.approx(published, rel=3e-3), source
    assert epsilon([release(poisson(rate), noise, rounds)], delta) < found


@pytest.mark.slow
def test_opacus_noise_for_eight() -> None:
    """Opacus finds z = 1.4253 for ε = 8 by Rényi's divergence; a tighter account needs less, and spends 8."""
    z = noise_for(poisson(0.04), 8.0, 1e-5, 2_250)
    assert 1.25 < z < 1.4253
    assert epsilon([release(poisson(0.04), z, 2_250)], 1e-5) == pytest.approx(8.0, rel=2e-4)
    assert 7.9 < epsilon([release(poisson(0.04), 1.425307617, 2_250)], 1e-5, "rdp") < 8.0


def test_opacus_by_its_accountant_of_random_variables() -> None:
    """Opacus' PRVAccountant gives 6.777395712150674, which it rounds up by its errors."""
    found = epsilon([release(poisson(0.04), 1.5, 2_250)], 1e-5)
    assert 0.995 * 6.777395712150674 < found < 6.777395712150674


@pytest.mark.slow
def test_tff_finds_the_clients_of_a_round() -> None:
    """TFF's tutorial on EMNIST's 3,383 clients: for (2, 1e-5) over 100 rounds 120 a round, with z = 0.01 a client."""
    needed = next(
        n for n in range(100, 140) if epsilon([release(poisson(n / 3383), 0.01 * n, 100)], 1e-5, "rdp") <= 2.0
    )
    assert needed == 120


def test_fourier_accountant() -> None:
    """Koskela, Jälkö & Honkela's example has δ = 4.243484e-6 at ε = 1, z = 4, q = 0.01.

    Its text says 1,000 rounds; the figure is that of 10,000. Our grid rounds losses up, 1.4 % over so many rounds.
    """
    assert 1.0 <= epsilon([release(poisson(0.01), 4.0, 10_000)], 4.243484012034273e-06) < 1.02


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (2.0, 4), (100.0, 10_000)])
def test_gaussian_closed_form(z: float, rounds: int) -> None:
    """Balle & Wang, "Improving the Gaussian Mechanism", ICML 2018, Theorem 8, with μ = √rounds/z."""
    mu, at = math.sqrt(rounds) / z, epsilon([release(EVERYONE, z, rounds)], 1e-5)
    delta = norm.cdf(mu / 2 - at / mu) - math.exp(at) * norm.cdf(-mu / 2 - at / mu)
    assert delta == pytest.approx(1e-5, rel=2e-2)
    assert delta < 1e-5


EPSILONS = json.loads(Path(__file__).with_name("epsilons.json").read_text())["cases"]


def law(said: float | str) -> Sampling:
    """The sampling that a case of epsilons.py names."""
    if isinstance(said, float):
        return poisson(said) if said < 1 else EVERYONE
    if said.startswith("cyclic/"):
        period = int(said.removeprefix("cyclic/"))
        return Sampling("cyclic", 100, 1 / period, 100 // period, period)
    size, clients = map(int, said.split(" of "))
    return Sampling("without replacement", clients, size / clients, size)


@pytest.mark.parametrize("case", quick(3, EPSILONS), ids=lambda c: f"{c['rounds']}, {c['delta']}")
def test_the_librarys_own_accountants(case: dict[str, Any]) -> None:
    """22 settings, see epsilons.py: by Rényi's divergence to rounding, by losses never less and at most 1.5 % more."""
    spent = [release(law(said), z, n) for said, z, n in case["rounds"]]
    assert epsilon(spent, case["delta"], "rdp") == pytest.approx(case["rdp"], rel=1e-9)
    if "pld" in case:
        assert case["pld"] <= epsilon(spent, case["delta"]) <= 1.015 * case["pld"]


@pytest.mark.parametrize("case", [c for c in EPSILONS if all(said == 1.0 for said, *_ in c["rounds"])])
def test_noise_in_shares_is_that_of_all_rounds(case: dict[str, Any]) -> None:
    """Whole orders of Rényi's divergence alone: never less, and at most 2 % more."""
    spent: list[Release] = [in_shares(EVERYONE, z, n) for _, z, n in case["rounds"]]
    assert case["rdp"] * (1 - 1e-12) <= epsilon(spent, case["delta"]) <= 1.02 * case["rdp"]


def test_cohorts_of_fixed_size_cost_more() -> None:
    """Replacing a client moves a sum by twice its bound: at z a fixed cohort of everyone spends what z/2 does."""
    fixed = Sampling("without replacement", 50, 1.0, 50)
    twice = epsilon([release(fixed, 2.0, 3)], 1e-5)
    assert twice == pytest.approx(epsilon([release(EVERYONE, 1.0, 3)], 1e-5, "rdp"), rel=1e-9)


def test_turns_of_a_cycle() -> None:
    """A client with every tenth round has 1, 1, ..., 2 turns; each is one sum of everyone."""
    cycle = Sampling("cyclic", 100, 0.1, 10, 10)
    once, twice = (epsilon([release(EVERYONE, 1.5, n)], 1e-5) for n in (1, 2))
    assert [epsilon([release(cycle, 1.5, t)], 1e-5) for t in (1, 10, 11)] == [once, once, twice]


@pytest.mark.slow
def test_sums_of_one_round() -> None:
    assert combined([1.0, 1.0]) == pytest.approx(1 / math.sqrt(2))
    assert combined([3.0, 4.0]) == pytest.approx(12 / 5)
    assert combined([1.0, 0.0]) == 0.0
    two = noise_for(EVERYONE, 2.0, 1e-5, 5, exchanges=2)
    assert two == pytest.approx(math.sqrt(2) * noise_for(EVERYONE, 2.0, 1e-5, 5), rel=2e-4)


@pytest.mark.slow
def test_within_is_never_more_than_the_account() -> None:
    """The quick bound says yes only where the account does: over lengths, partial rounds and other noise."""
    law, z = poisson(0.05), 1.2
    for target in (0.5, 1.0, 2.0):
        for n in (1, 3, 8, 20, 50):
            spent = [release(law, z, n), release(law, 2 * z)]
            assert epsilon(spent, 1e-5) <= target or not within(spent, target, 1e-5, 51)
    assert within([release(law, z, 20)], epsilon([release(law, z, 50)], 1e-5), 1e-5, 50)
    assert not within([release(law, z, 20), release(EVERYONE, z)], 100.0, 1e-5, 50)
    assert within([], 1e-9, 1e-5, None)


@pytest.mark.slow
def test_ends() -> None:
    by: Accountant = "pld"
    assert epsilon([], 1e-5, by) == 0.0
    assert epsilon([release(EVERYONE, 0.0)], 1e-5) == math.inf
    assert epsilon([release(EVERYONE, math.inf)], 1e-5) == 0.0
    with pytest.raises(RecipeError, match=r"no noise gives ε = 1e-09"):
        noise_for(EVERYONE, 1e-9, 1e-12, 1_000)


@pytest.mark.parametrize("kind", ["poisson", "all"])
def test_noise_too_small_for_a_grid_still_has_an_epsilon(kind: str) -> None:
    law = Sampling(kind, clients=20, rate=0.5, size=10, period=1)
    spent = [epsilon([release(law, z, 3)], 1e-3) for z in (1e-2, 1e-3, 1e-4, 1e-6)]
    assert all(b > 50 * a > 0 for a, b in pairwise(spent))  # about 1/z²
    assert math.isfinite(spent[-1])
    assert epsilon([release(law, 1e-200, 3)], 1e-3) == math.inf
    assert combined([1e-200, 1.0]) == 0.0
