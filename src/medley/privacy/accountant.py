"""Accounting: the ε that a run has spent, from the distribution of its cohorts and the noise of its sums.

`dp-accounting` (extra ``privacy``), which only this module imports, does the arithmetic. If neighbouring data sets
differ by adding or removing a client, privacy loss distributions are composed. If cohorts have a fixed size out of a
fixed number of clients, neighbours differ by replacing one, and Rényi divergence is used: a sum then moves by up to
twice its bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ..contract import RecipeError, Sampling
from ..runtime.versions import install

GRID = 1e-3
"""The step of the grid of privacy losses: larger if noise is below z = 0.3 and losses are large, and smaller, down to a
16th, if they are small.

Losses are rounded up, so that ε is a bound at any step.
"""

ACCURACY = 1e-4
"""The relative accuracy of `noise_for`."""

Accountant = Literal["pld", "rdp"]

ORDERS = (*range(2, 64), 80, 96, 128, 192, 256, 512, 1024)
"""Orders of the Rényi divergence of noise in shares, which is known only at whole orders."""


@dataclass(frozen=True)
class Release:
    """The sums that one cohort's replies entered, over some rounds.

    Attributes:
        kind, clients, rate, size, period: from the cohort's `Sampling`; the kind "shares" for noise in shares
        noise: z of all sums of one round together: standard deviation over the bound of one client's part; inf for
            rounds without a sum
    """

    kind: str
    clients: int
    rate: float
    size: int
    period: int
    noise: float
    rounds: int = 1


def release(sampling: Sampling, noise: float, rounds: int = 1) -> Release:
    """The release of ``rounds`` rounds with this sampling and noise."""
    s = sampling
    return Release(s.kind, s.clients, s.rate, s.size, s.period, noise, rounds)


def in_shares(sampling: Sampling, noise: float, rounds: int = 1) -> Release:
    """The release of sums with noise in shares; ``noise`` is the z' of `medley.privacy.skellam.gaussian`."""
    return Release("shares", sampling.clients, 1.0, 0, sampling.period, noise, rounds)


def added(releases: list[Release], new: Release) -> list[Release]:
    """The releases and one more, merged with the last if both have the same sampling and noise."""
    if releases and dataclasses.replace(releases[-1], rounds=new.rounds) == new:
        return [*releases[:-1], dataclasses.replace(new, rounds=releases[-1].rounds + new.rounds)]
    return [*releases, new]


def combined(noises: Iterable[float]) -> float:
    """z of several sums over the same clients: 1/√(Σ 1/z²); 0 if one of them has no noise, inf for no sum."""
    total = 0.0
    for z in noises:
        if z * z == 0:
            return 0.0
        total += z**-2
    return 1 / math.sqrt(total) if total else math.inf


def epsilon(releases: Iterable[Release], delta: float, by: Accountant = "pld") -> float:
    """The ε of all releases together, at this δ; inf if one has no noise, or if ε exceeds any float.

    If noise is so small that its privacy losses fit no grid, Rényi divergence is used.

    Args:
        releases: of one run in their order, all with the same kind of sampling
        delta: δ, in (0, 1)
        by: "pld", privacy loss distributions, or "rdp", Rényi divergence, which is looser; cohorts of a fixed size and
            noise in shares always use "rdp". Default "pld"

    Raises RecipeError if ``dp-accounting`` is not installed.
    """
    parts = tuple(releases)
    if any(r.noise * r.noise == 0 for r in parts if r.rounds):
        return math.inf
    most = 0.0
    for turns in _turns(parts):
        try:
            most = max(most, _epsilon(turns, delta, by))
        except OverflowError:
            most = max(most, _by_divergence(turns, delta))
    return most


def within(releases: Iterable[Release], target: float, delta: float, rounds: int | None) -> bool:
    """True if a bound shared by many rounds shows that the releases spend at most ``target``.

    The bound is the ε of a longer run in which every round has the least noise. Its length is ``rounds``, or the next
    power of 2.
    """
    releases = list(releases)
    counted = [r for r in releases if r.rounds and r.noise < math.inf]
    if not counted:
        return True
    law = dataclasses.replace(counted[0], noise=0.0, rounds=1)
    length = sum(r.rounds for r in releases)
    if any(dataclasses.replace(r, noise=0.0, rounds=1) != law for r in counted):
        return False
    worst = dataclasses.replace(law, noise=min(r.noise for r in counted))
    longer = {1 << (length - 1).bit_length()} | ({rounds} if rounds is not None and rounds >= length else set())
    return any(epsilon([dataclasses.replace(worst, rounds=n)], delta) <= target for n in sorted(longer))


def _turns(releases: tuple[Release, ...]) -> set[tuple[Release, ...]]:
    """The sums that each group of clients took part in, without groups that took part in only some of another group's
    sums.

    A group's turns come every ``period`` rounds, and the rounds of a release follow the previous release's.
    """
    counts = list[dict[Release, int]]()
    for group in range(max((r.period for r in releases), default=0)):
        turns = dict[Release, int]()
        round = 0
        for r in releases:
            first, last = (-((group - t) // r.period) for t in (round, round + r.rounds))
            if r.noise < math.inf and last > first:
                law = dataclasses.replace(r, rounds=1)
                turns[law] = turns.get(law, 0) + last - first
            round += r.rounds
        counts.append(turns)
    out = set[tuple[Release, ...]]()
    for turns in counts:
        if turns and not any(turns != other and _includes(other, turns) for other in counts):
            out.add(tuple(dataclasses.replace(law, rounds=n) for law, n in turns.items()))
    return out


def _includes(turns: dict[Release, int], others: dict[Release, int]) -> bool:
    """Whether a group takes part in all sums of another."""
    return all(n <= turns.get(law, 0) for law, n in others.items())


@cache
def _epsilon(releases: tuple[Release, ...], delta: float, by: Accountant) -> float:
    if by == "rdp" or releases[0].kind in ("without replacement", "shares"):
        return _by_divergence(releases, delta)
    total: Any = None
    step = _step(releases)
    for r in releases:
        part = _losses(r.noise, _rate(r), step).self_compose(r.rounds)
        total = part if total is None else total.compose(part)
    return max(0.0, float(total.get_epsilon_for_delta(delta)))


def _rate(r: Release) -> float:
    """The probability that a client takes part, if it may."""
    return r.rate if r.kind == "poisson" else 1.0


def _step(releases: tuple[Release, ...]) -> float:
    """The step of the grid, which adds at most about a quarter to the losses' variance.

    A loss is about rate·(e^l − 1) with the loss l of the sum without sampling; rounding one to a multiple of the step
    adds the step times its mean size to its variance.
    """
    least = min(r.noise for r in releases)
    if least < 0.3:
        return GRID * max(1.0, 0.1 * least**-2)
    variance = sum(r.rounds * _rate(r) ** 2 * math.expm1(r.noise**-2) for r in releases)
    size = sum(r.rounds * _rate(r) * 2 * math.erf(1 / (math.sqrt(8) * r.noise)) for r in releases)
    return min(GRID, max(variance / size / 4, GRID / 16))


@cache
def _losses(noise: float, probability: float, step: float) -> Any:
    """The privacy loss distribution of one sum that a client takes part in with this probability."""
    loss = _library().pld.privacy_loss_distribution
    return loss.from_gaussian_mechanism(noise, sampling_prob=probability, value_discretization_interval=step)


def _by_divergence(releases: tuple[Release, ...], delta: float) -> float:
    dp = _library()
    fixed = releases[0].kind == "without replacement"
    relation = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    orders = ORDERS if releases[0].kind == "shares" else None
    accountant = dp.rdp.RdpAccountant(orders, neighboring_relation=relation)
    for r in releases:
        if fixed:
            event = dp.SampledWithoutReplacementDpEvent(r.clients, r.size, dp.GaussianDpEvent(r.noise / 2))
        else:
            event = dp.PoissonSampledDpEvent(_rate(r), dp.GaussianDpEvent(r.noise))
        accountant.compose(event, r.rounds)
    return float(accountant.get_epsilon(delta))


@cache
def noise_for(sampling: Sampling, target: float, delta: float, rounds: int, exchanges: int = 1) -> float:
    """The smallest noise z per sum with which a run spends at most ``target``.

    Args:
        sampling: the distribution of the cohorts
        target: ε
        delta: δ
        exchanges: sums in one round; default 1

    Raises RecipeError for an ε that no noise up to 10⁴ reaches.
    """

    def spent(z: float) -> float:
        return epsilon([release(sampling, z / math.sqrt(exchanges), rounds)], delta)

    # From 1 on, since losses under little noise take long to compose.
    low = 0.5
    high = 1.0
    while low > 0.05 and spent(low) <= target:
        high = low
        low = low / 2
    while spent(high) > target:
        low = high
        high = 2 * high
        if high > 1e4:
            raise RecipeError(
                f"no noise gives ε = {target:g} at δ = {delta:g} over {rounds} rounds: raise epsilon, or delta",
                "epsilon",
            )
    while high > (1 + ACCURACY) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) > target else (low, middle)
    return high


@cache
def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise RecipeError(f"privacy accounting needs dp-accounting: {install('privacy')}", "epsilon") from None
    return dp_accounting
