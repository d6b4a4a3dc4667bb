"""Participation rules: which clients form the cohort of each round.

Side: the server's, which draws each round's cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64, Real

from .contract import Checked, RecipeError, Sampling, Settings, at_least
from .contract.public import public
from .contract.text import unquoted
from .distributions import Number, is_number, plain
from .runtime.streams import rng

__all__ = [
    "Availability", "Bernoulli", "Cyclic", "Everyone", "Fixed", "Fraction", "Participation", "rule_of",
]  # fmt: skip

Ids = Int64[np.ndarray, " a"]
"""Client ids, ascending."""

Sizes = Real[np.ndarray, " n"]
"""Rows of each client, index = client id."""


@runtime_checkable
class Participation(Protocol):
    """A participation rule. A cohort depends only on the seed, the round (1, 2, ...) and the sizes."""

    def draw(self, round: int, sizes: Sizes, seed: int) -> Ids:
        """The ids of a cohort [a], each once. Medley sorts them.

        Args:
            round: From 1.
            sizes: Rows of each client [n].
            seed: Seed of the run; the stream is (seed, round, "cohort").
        """


def draw_cohort(rule: Participation, round: int, sizes: Sizes, seed: int) -> Ids:
    """The cohort of any rule, a user's own too: a list or an array of ids, which are sorted here.

    Raises RecipeError, naming the rule, for anything else, for a client that occurs twice, and for one that does not
    exist.
    """
    cohort = np.asarray(rule.draw(round, sizes, seed))
    n = len(sizes)
    where = f"{type(rule).__name__}.draw() of round {round}"
    if cohort.ndim != 1 or (cohort.size and cohort.dtype.kind not in "iu"):
        raise RecipeError(
            f"{where} returns {cohort.dtype} {list(cohort.shape)}; return the clients' ids, whole numbers such as "
            "[0, 7]; np.flatnonzero(mask) makes them from a mask",
            "participation",
        )
    ids = np.sort(cohort.astype(np.int64))
    if ids.size and not 0 <= ids.item(0) <= ids.item(-1) < n:
        unknown = ids[(ids < 0) | (ids >= n)].item(0)
        raise RecipeError(f"{where} names client {unknown}, but ids go from 0 to {n - 1}", "participation")
    is_twice = ids[1:] == ids[:-1]
    if is_twice.any():
        twice = ids[1:][is_twice].item(0)
        raise RecipeError(f"{where} names client {twice} more than once; name each client once", "participation")
    return ids


def sampling_of(rule: Participation, clients: int) -> Sampling | None:
    """The distribution of a rule's cohorts out of ``clients``; None if privacy accounting does not know it."""
    law = getattr(rule, "sampling", None)
    return None if law is None else law(clients)


def rule_of(value: Participation | Number | None) -> Participation:
    """A rule from a share of the clients in (0, 1]; None and 1 mean everyone; a rule is returned unchanged."""
    if value is None or (is_number(value) and value == 1):
        return Everyone()
    return value if isinstance(value, Participation) else Fraction(value)


def _share(rule: object, key: str, value: object) -> None:
    if not is_number(value) or not 0 < value <= 1:  # type: ignore[operator]
        raise RecipeError(
            f"{type(rule).__name__}({key}={value!r}): {key} must be in (0, 1]. "
            f"1.0 is everyone; for k of n clients write k / n{unquoted(value)}.",
            key,
        )


def _cohort_size(fraction: Number, n: int) -> int:
    return max(1, round(fraction * n))


@dataclass(frozen=True)
class Everyone(Settings):
    """Every client, every round."""

    def draw(self, round: int, sizes: Sizes, seed: int) -> Ids:
        """All ids."""
        return np.arange(len(sizes), dtype=np.int64)

    def sampling(self, clients: int) -> Sampling:
        """The distribution of the cohorts."""
        return Sampling("everyone", clients, 1.0, clients)


@dataclass(frozen=True)
class Fraction(Checked):
    """max(1, round(fraction * n)) of n clients, drawn without replacement.

    Draws are uniform, which suits a mean of replies weighted by size. With ``weighted``, clients are drawn one after
    the other with probability proportional to size among those left (Efraimidis and Spirakis, Information Processing
    Letters 97, 2006), which suits a plain mean of replies. Clients of size 0 then come last.
    """

    fraction: Number
    weighted: bool = False

    def __post_init__(self) -> None:
        _share(self, "fraction", self.fraction)
        super().__post_init__()

    def draw(self, round: int, sizes: Sizes, seed: int) -> Ids:
        """The cohort of ``round``."""
        g = rng(seed, round, "cohort")
        n = len(sizes)
        a = _cohort_size(self.fraction, n)
        if not self.weighted:
            return np.sort(g.choice(n, size=a, replace=False)).astype(np.int64)
        # The first a arrivals of exponential clocks whose rates are the sizes.
        arrival = np.full(n, np.inf)
        np.divide(g.standard_exponential(n), sizes, out=arrival, where=np.asarray(sizes) > 0)
        return np.sort(np.argpartition(arrival, a - 1)[:a]).astype(np.int64)

    def sampling(self, clients: int) -> Sampling | None:
        """The distribution of the cohorts; None for draws by size."""
        size = _cohort_size(self.fraction, clients)
        return None if self.weighted else Sampling("without replacement", clients, size / clients, size)


@dataclass(frozen=True)
class Bernoulli(Settings):
    """Each client takes part with probability ``p``, independently of the others; a cohort may be empty."""

    p: Number

    def __post_init__(self) -> None:
        _share(self, "p", self.p)

    def draw(self, round: int, sizes: Sizes, seed: int) -> Ids:
        """The cohort of ``round``."""
        return np.flatnonzero(rng(seed, round, "cohort").random(len(sizes)) < self.p).astype(np.int64)

    def sampling(self, clients: int) -> Sampling:
        """The distribution of the cohorts."""
        return Sampling("poisson", clients, float(self.p))


@dataclass(frozen=True)
class Cyclic(Checked):
    """Groups take turns: client i is in group i mod ``groups``, and each group has every ``groups``-th round.

    A client's turns are ``groups`` rounds apart, which correlated noise (`medley.privacy.Banded`) exploits.
    """

    groups: Annotated[int, at_least(1)]

    def draw(self, round: int, sizes: Sizes, seed: int) -> Ids:
        """The cohort of ``round``."""
        return np.arange((round - 1) % self.groups, len(sizes), self.groups, dtype=np.int64)

    def sampling(self, clients: int) -> Sampling:
        """The distribution of the cohorts."""
        return Sampling("cyclic", clients, 1 / self.groups, -(-clients // self.groups), self.groups)


@dataclass(frozen=True)
class Availability(Settings):
    """Periodic availability: each client is awake for a share of every period, with its own phase.

    Phases are uniform, drawn once per run. The cohort is max(1, round(fraction * n)) of the clients that are awake, or
    all of them if fewer are; it may be empty.

    Attributes:
        fraction: The share of all n clients in a cohort, in (0, 1].
        period: Rounds of a period, above 0; default 24.
        on: The share of a period that a client is awake, in (0, 1]; default 0.5.
    """

    fraction: Number
    period: Number = 24
    on: Number = 0.5

    def __post_init__(self) -> None:
        _share(self, "fraction", self.fraction)
        _share(self, "on", self.on)
        if not is_number(self.period) or self.period <= 0:
            raise RecipeError(f"{self!r}: period, in rounds, must be above 0.", "period")

    def awake(self, round: int, n: int, seed: int) -> Bool[np.ndarray, " n"]:
        """A mask [n] of the clients that are awake in ``round`` of the run of ``seed``."""
        phase = rng(seed, "phase").random(n)
        return (phase + (round - 1) / self.period) % 1.0 < self.on

    def draw(self, round: int, sizes: Sizes, seed: int) -> Ids:
        """The cohort of ``round``."""
        n = len(sizes)
        awake = np.flatnonzero(self.awake(round, n, seed))
        a = min(_cohort_size(self.fraction, n), len(awake))
        return np.sort(rng(seed, round, "cohort").choice(awake, size=a, replace=False)).astype(np.int64)


@dataclass(frozen=True)
class Fixed(Settings):
    """Given cohorts, lists of ids: ``cohorts[0]`` in round 1 and so on, then from the start again."""

    cohorts: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        given = plain(self.cohorts)
        if not isinstance(given, tuple) or not all(isinstance(plain(cohort), tuple | range) for cohort in given):
            raise RecipeError(
                f"Fixed(cohorts={given!r}): give a list of ids for each round, such as [[0, 7]].", "cohorts"
            )
        if not given:
            raise RecipeError("Fixed(cohorts=[]): give at least one cohort.", "cohorts")
        for k, cohort in enumerate(self.cohorts):
            if any(not is_number(i) or i != int(i) or i < 0 for i in cohort) or len(set(cohort)) < len(cohort):
                raise RecipeError(
                    f"Fixed(cohorts=...): cohort {k} is {list(cohort)}: client ids are 0, 1, ..., each once.", "cohorts"
                )
        object.__setattr__(self, "cohorts", tuple(tuple(sorted(map(int, cohort))) for cohort in self.cohorts))

    def draw(self, round: int, sizes: Sizes, seed: int) -> Ids:
        """The cohort of ``round``. Raises RecipeError if it, or a later one, names a client that does not exist."""
        coming = [(t, self.cohorts[(t - 1) % len(self.cohorts)]) for t in range(round, round + len(self.cohorts))]
        for t, cohort in coming:
            if cohort and cohort[-1] >= len(sizes):
                raise RecipeError(
                    f"Fixed: the cohort of round {t} names client {cohort[-1]}, but ids end at {len(sizes) - 1}.",
                    "cohorts",
                )
        return np.array(coming[0][1], dtype=np.int64)

    def sampling(self, clients: int) -> Sampling:
        """The distribution of the cohorts: nothing is drawn, and every round counts as a turn of every client."""
        return Sampling("fixed", clients, sum(map(len, self.cohorts)) / len(self.cohorts) / clients)


public(__name__)
