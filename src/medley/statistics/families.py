"""Families of generalised linear models and their links, for one site's rows; SciPy has the special functions.

With η = Xβ + offset and the mean μ = g⁻¹(η), a row of weight w and outcome y adds

    score        w (y − μ) μ' / V(μ) · x
    information  w μ'² / V(μ) · x xᵀ                                     (expected)
                 w [μ'² / V − (y − μ)(μ'' / V − μ'² V' / V²)] · x xᵀ     (observed)

A family is a subclass of `Family`, and is told when it is defined which members it lacks.
"""

# ruff: noqa: D102 (the docstrings of a family's members are those of `Family`)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from ..contract import RecipeError

Rows = np.ndarray
"""One number per row [n]."""


def xlogy(x: Rows, y: Rows) -> Rows:
    """x log y, 0 where x is 0: SciPy has it, too, and takes longer to import than a fit does."""
    with np.errstate(all="ignore"):
        return np.asarray(x * np.log(np.where(x == 0, 1.0, y)))


def logistic(eta: Rows) -> Rows:
    """1 / (1 + e⁻ᶯ), never 0 or 1, which are no means."""
    small = np.exp(-np.abs(eta))
    out: Rows = np.clip(np.where(eta < 0, small, 1.0) / (1 + small), 1e-100, 1 - 2.0**-53)
    return out


class Link(NamedTuple):
    """A link g(μ), the mean g⁻¹(η), and its derivatives μ' and μ'' as functions of μ."""

    link: Callable[[Rows], Rows]
    mean: Callable[[Rows], Rows]
    slope: Callable[[Rows], Rows]
    bend: Callable[[Rows], Rows]


LINKS = {
    "identity": Link(lambda mu: mu, lambda eta: eta, np.ones_like, np.zeros_like),
    "log": Link(np.log, lambda eta: np.exp(np.minimum(eta, 700.0)), lambda mu: mu, lambda mu: mu),
    "logit": Link(
        lambda mu: np.log(mu / (1 - mu)),
        logistic,
        lambda mu: mu * (1 - mu),
        lambda mu: mu * (1 - mu) * (1 - 2 * mu),
    ),
    "inverse": Link(lambda mu: 1 / mu, lambda eta: 1 / eta, lambda mu: -(mu**2), lambda mu: 2 * mu**3),
}  # fmt: skip


def abstract_members(cls: type) -> list[str]:
    """The abstract methods that a class itself defines."""
    return [name for name, member in vars(cls).items() if getattr(member, "__isabstractmethod__", False)]


class Family(ABC):
    """A family of distributions. A study takes a subclass, or for those of this module the name.

    Attributes:
        name: what a study and its tables call it
        links: its links, the default first
        outcomes: the possible values of an outcome, in words
        canonical: the link under which observed and expected information are the same; only of a `Canonical` family
        dispersed: whether the dispersion is estimated, by Pearson's χ² over the residual degrees of freedom; then
            ``loglik`` and ``most_likely`` depend on it, and must be defined
        homoscedastic: whether V is 1 for every mean, so that deviance and χ² are the sum of squares
        counts: whether outcomes are events, or counts of events
        binary: whether outcomes are 0 and 1
        weighted: whether its likelihood is a function of sums if rows have weights
        has_alpha: whether V depends on a parameter α; then ``shape`` must be defined
        power: V(c μ) is c to this power times V(μ), for outcomes that have a unit
        steps: exchanges after which a fit stops without a result
    """

    name: ClassVar[str]
    links: ClassVar[tuple[str, ...]]
    outcomes: ClassVar[str]
    canonical: ClassVar[str] = ""
    dispersed: ClassVar[bool] = False
    homoscedastic: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    binary: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    has_alpha: ClassVar[bool] = False
    power: ClassVar[int] = 0
    steps: ClassVar[int] = 25

    def __init_subclass__(cls, partial: bool = False) -> None:
        """Raise TypeError, naming the members that the family lacks; a ``partial`` one is a base of others."""
        super().__init_subclass__()
        if partial:
            return
        required = ["name", "links", "outcomes", *(m for base in cls.__mro__[::-1] for m in abstract_members(base))]
        lacking = [m for m in required if not hasattr(cls, m) or hasattr(getattr(cls, m), "__isabstractmethod__")]
        further = [*(("loglik", "most_likely") if cls.dispersed else ()), *(("shape",) if cls.has_alpha else ())]
        lacking += [m for m in further if getattr(cls, m) is getattr(Family, m)]
        if cls.canonical and not hasattr(cls, "constants"):
            raise TypeError(
                f"class {cls.__name__}: with canonical={cls.canonical!r} it must be a subclass of Canonical"
            )
        if cls.canonical and cls.dispersed and not cls.homoscedastic and cls.null_chi2 is Family.null_chi2:
            lacking.append("null_chi2")
        if lacking:
            raise TypeError(f"class {cls.__name__} lacks {', '.join(lacking)}; see `medley.statistics.families.Family`")
        unknown = [link for link in cls.links if link not in LINKS]
        if unknown:
            raise TypeError(f"class {cls.__name__}: links has {unknown[0]!r}; there are {', '.join(LINKS)}")

    @abstractmethod
    def variance(self, mu: Rows, alpha: float) -> Rows:
        """V(μ, α)."""

    @abstractmethod
    def bend(self, mu: Rows, alpha: float) -> Rows:
        """V'(μ, α), by μ."""

    @abstractmethod
    def takes(self, y: Rows) -> Rows:
        """Whether these outcomes are possible, by row."""

    @abstractmethod
    def first(self, y: Rows) -> Rows:
        """The first guess of the mean."""

    @abstractmethod
    def inside(self, mu: Rows) -> Rows:
        """Whether means are possible, by row."""

    @abstractmethod
    def deviance(self, y: Rows, mu: Rows, alpha: float) -> Rows:
        """Each row's share of the deviance."""

    @abstractmethod
    def parts(self, y: Rows, mu: Rows, w: Rows, alpha: float) -> tuple[Rows, Rows]:
        """Two numbers a row, of whose sums over all sites `loglik` computes the log-likelihood."""

    def loglik(self, sums: np.ndarray, n: float, scale: float) -> float:
        """The log-likelihood of n rows from the sums [2] of `parts`: here the first sum."""
        return float(sums[0])

    def most_likely(self, sums: np.ndarray, n: float, scale: float) -> float:
        """The log-likelihood at the most likely dispersion, by which fits are compared."""
        return self.loglik(sums, n, scale)

    def shape(self, y: Rows, mu: Rows, alpha: float) -> tuple[Rows, Rows, Rows]:
        """Each row's part of log α =: t of the likelihood l: dl/dt, d²l/dt² and d²l/dt dη, each [n].

        A family with ``has_alpha`` defines it, and others are never asked: they raise TypeError.
        """
        raise TypeError(f"the family {self.name} has no α to estimate, so it defines no shape")

    def null_chi2(self, outcome: OutcomeSums, n: int, mean: float) -> float:
        """χ² of one mean for all n rows, where the likelihood needs a dispersion; elsewhere TypeError."""
        raise TypeError(f"the family {self.name} needs no χ² of one mean, so it defines no null_chi2")

    def pearson(self, y: Rows, mu: Rows) -> Rows:
        """Each row's share of Pearson's χ²."""
        out: Rows = (y - mu) ** 2 / self.variance(mu, 1.0)
        return out

    @property
    def scaled(self) -> bool:
        """Whether the likelihood of the null model needs a dispersion of its own."""
        return self.dispersed and not self.homoscedastic

    def sums(self, y: Rows, mu: Rows, w: Rows, alpha: float) -> np.ndarray:
        """The sums [2] of `parts`."""
        return np.array([float(v.sum()) for v in self.parts(y, mu, w, alpha)])


class OutcomeSums(NamedTuple):
    """What a site tells of its outcome for a fit under the canonical link, all of it rounded.

    Attributes:
        sums: of the two numbers a row of `Canonical.constants` [2]
        total, along: Σ w y, and Σ w y η at the fit
        squares, null_squares: what the outcome's part within the columns adds to the squares of residuals, of the fit
            and of one mean for all
    """

    sums: np.ndarray
    total: float
    along: float
    squares: float
    null_squares: float


Figures = tuple[tuple[float, float, float], tuple[float, float, float]]
"""Deviance and the two sums of `Family.parts`: of the means μ, and of one mean for all."""


class Canonical(Family, partial=True):
    """A family with a canonical link, under which likelihood and deviance follow from a few rounded sums."""

    @abstractmethod
    def constants(self, y: Rows, w: Rows, rest: Rows) -> tuple[Rows, Rows]:
        """Two numbers a row of the outcome alone, whose sums leave; ``rest`` is what its columns leave of √w y."""

    @abstractmethod
    def figures(self, outcome: OutcomeSums, mu: Rows, w: Rows, mean: float) -> Figures:
        """Deviance and parts of the likelihood, from what a site tells."""


class Gaussian(Canonical):
    """Normal outcomes. Its likelihood is at the most likely variance."""

    name = "gaussian"
    links = ("identity", "log", "inverse")
    canonical = "identity"
    outcomes = "numbers"
    dispersed = True
    homoscedastic = True

    def variance(self, mu: Rows, alpha: float) -> Rows:
        return np.ones_like(mu)

    def bend(self, mu: Rows, alpha: float) -> Rows:
        return np.zeros_like(mu)

    def takes(self, y: Rows) -> Rows:
        out: Rows = np.isfinite(y)
        return out

    def first(self, y: Rows) -> Rows:
        return y

    def inside(self, mu: Rows) -> Rows:
        out: Rows = np.isfinite(mu)
        return out

    def deviance(self, y: Rows, mu: Rows, alpha: float) -> Rows:
        out: Rows = (y - mu) ** 2
        return out

    def parts(self, y: Rows, mu: Rows, w: Rows, alpha: float) -> tuple[Rows, Rows]:
        return w * (y - mu) ** 2, np.log(np.where(w > 0, w, 1.0))

    def loglik(self, sums: np.ndarray, n: float, scale: float) -> float:
        first, second = map(float, sums)
        return -n / 2 * (math.log(2 * math.pi * first / n) + 1) + second / 2 if first > 0 else math.inf

    def most_likely(self, sums: np.ndarray, n: float, scale: float) -> float:
        return self.loglik(sums, n, scale)

    def constants(self, y: Rows, w: Rows, rest: Rows) -> tuple[Rows, Rows]:
        return rest**2, 0 * y

    def figures(self, outcome: OutcomeSums, mu: Rows, w: Rows, mean: float) -> Figures:
        logs = float(np.log(np.where(w > 0, w, 1.0)).sum())
        rss = float(outcome.sums[0] + outcome.squares)
        rss0 = float(outcome.sums[0] + outcome.null_squares)
        return (rss, rss, logs), (rss0, rss0, logs)


class Binomial(Canonical):
    """Events."""

    name = "binomial"
    links = ("logit", "log", "identity")
    canonical = "logit"
    outcomes = "0 and 1, or True and False"
    counts = True
    binary = True

    def variance(self, mu: Rows, alpha: float) -> Rows:
        out: Rows = mu * (1 - mu)
        return out

    def bend(self, mu: Rows, alpha: float) -> Rows:
        return 1 - 2 * mu

    def takes(self, y: Rows) -> Rows:
        out: Rows = (y == 0) | (y == 1)
        return out

    def first(self, y: Rows) -> Rows:
        return (y + 0.5) / 2

    def inside(self, mu: Rows) -> Rows:
        return (mu > 0) & (mu < 1)

    def deviance(self, y: Rows, mu: Rows, alpha: float) -> Rows:
        out: Rows = -2 * (xlogy(y, mu) + xlogy(1 - y, 1 - mu))
        return out

    def parts(self, y: Rows, mu: Rows, w: Rows, alpha: float) -> tuple[Rows, Rows]:
        return w * (xlogy(y, mu) + xlogy(1 - y, 1 - mu)), 0 * y

    def constants(self, y: Rows, w: Rows, rest: Rows) -> tuple[Rows, Rows]:
        return 0 * y, 0 * y

    def figures(self, outcome: OutcomeSums, mu: Rows, w: Rows, mean: float) -> Figures:
        flat = np.full(len(mu), mean)
        fit = outcome.along + w @ np.log1p(-mu)
        null = np.log(mean / (1 - mean)) * outcome.total + w @ np.log1p(-flat)
        return (-2 * fit, fit, 0.0), (-2 * null, null, 0.0)


class Poisson(Canonical):
    """Counts."""

    name = "poisson"
    links = ("log", "identity")
    canonical = "log"
    outcomes = "counts, 0 or more"
    counts = True

    def variance(self, mu: Rows, alpha: float) -> Rows:
        return mu

    def bend(self, mu: Rows, alpha: float) -> Rows:
        return np.ones_like(mu)

    def takes(self, y: Rows) -> Rows:
        return y >= 0

    def first(self, y: Rows) -> Rows:
        return y + 0.1

    def inside(self, mu: Rows) -> Rows:
        return mu > 0

    def deviance(self, y: Rows, mu: Rows, alpha: float) -> Rows:
        out: Rows = 2 * (xlogy(y, y / mu) - (y - mu))
        return out

    def parts(self, y: Rows, mu: Rows, w: Rows, alpha: float) -> tuple[Rows, Rows]:
        from scipy.special import gammaln

        return w * (xlogy(y, mu) - mu - gammaln(y + 1)), 0 * y

    def constants(self, y: Rows, w: Rows, rest: Rows) -> tuple[Rows, Rows]:
        from scipy.special import gammaln

        return w * xlogy(y, y), w * gammaln(y + 1)

    def figures(self, outcome: OutcomeSums, mu: Rows, w: Rows, mean: float) -> Figures:
        flat = np.full(len(mu), mean)
        S = outcome.sums
        ends = [(outcome.along, float(w @ mu)), (np.log(mean) * outcome.total, float(w @ flat))]
        fit, null = [(2 * (S[0] - on - outcome.total + s), on - s - S[1], 0.0) for on, s in ends]
        return fit, null


class Gamma(Canonical):
    """Outcomes above 0 whose deviation grows with their mean."""

    name = "gamma"
    links = ("inverse", "log", "identity")
    canonical = "inverse"
    outcomes = "numbers above 0"
    dispersed = True
    weighted = False
    power = 2

    def variance(self, mu: Rows, alpha: float) -> Rows:
        return mu**2

    def bend(self, mu: Rows, alpha: float) -> Rows:
        return 2 * mu

    def takes(self, y: Rows) -> Rows:
        return y > 0

    def first(self, y: Rows) -> Rows:
        return y

    def inside(self, mu: Rows) -> Rows:
        return mu > 0

    def deviance(self, y: Rows, mu: Rows, alpha: float) -> Rows:
        out: Rows = 2 * (-np.log(y / mu) + (y - mu) / mu)
        return out

    def pearson(self, y: Rows, mu: Rows) -> Rows:
        out: Rows = (y / mu - 1) ** 2
        return out

    def parts(self, y: Rows, mu: Rows, w: Rows, alpha: float) -> tuple[Rows, Rows]:
        return np.log(y / mu) - y / mu, np.log(y)

    def loglik(self, sums: np.ndarray, n: float, scale: float) -> float:
        if not scale:
            return math.inf
        first, second = map(float, sums)
        k = 1 / scale
        return n * (k * math.log(k) - math.lgamma(k)) + k * first - second

    def most_likely(self, sums: np.ndarray, n: float, scale: float) -> float:
        from scipy.special import digamma, polygamma

        c = -1 - float(sums[0]) / n  # log k − ψ(k) at the most likely k = 1/φ
        if c <= 0:
            return math.inf
        k = (3 - c + math.sqrt((c - 3) ** 2 + 24 * c)) / (12 * c)  # to 1.5 %: Minka, 2002
        for _ in range(6):
            k = 1 / (1 / k + (math.log(k) - digamma(k) - c) / (k - k**2 * polygamma(1, k)))
        return self.loglik(sums, n, 1 / k)

    def constants(self, y: Rows, w: Rows, rest: Rows) -> tuple[Rows, Rows]:
        return np.log(np.maximum(y, 1e-300)), y**2

    def figures(self, outcome: OutcomeSums, mu: Rows, w: Rows, mean: float) -> Figures:
        n = len(mu)
        S = outcome.sums
        ends = [(outcome.along, float(np.log(mu).sum())), (outcome.total / mean, n * float(np.log(mean)))]
        fit, null = [(2 * (s - S[0] + on - n), S[0] - s - on, S[0]) for on, s in ends]
        return fit, null

    def null_chi2(self, outcome: OutcomeSums, n: int, mean: float) -> float:
        return float(outcome.sums[1] / mean**2 - 2 * outcome.total / mean + n)


class NegativeBinomial(Family):
    """Counts that are more dispersed than Poisson's: V = μ + α μ²."""

    name = "negative_binomial"
    links = ("log",)
    outcomes = "counts, whole numbers from 0 on"
    counts = True
    has_alpha = True
    steps = 50

    def variance(self, mu: Rows, alpha: float) -> Rows:
        return mu + alpha * mu**2

    def bend(self, mu: Rows, alpha: float) -> Rows:
        return 1 + 2 * alpha * mu

    def takes(self, y: Rows) -> Rows:
        out: Rows = (y >= 0) & (y == np.round(y))
        return out

    def first(self, y: Rows) -> Rows:
        return y + 0.1

    def inside(self, mu: Rows) -> Rows:
        return mu > 0

    def deviance(self, y: Rows, mu: Rows, alpha: float) -> Rows:
        out: Rows = 2 * (xlogy(y, y / mu) - (y + 1 / alpha) * np.log((1 + alpha * y) / (1 + alpha * mu)))
        return out

    def parts(self, y: Rows, mu: Rows, w: Rows, alpha: float) -> tuple[Rows, Rows]:
        from scipy.special import gammaln

        r = 1 / alpha
        p = alpha * mu / (1 + alpha * mu)
        likelihood = gammaln(y + r) - gammaln(r) - gammaln(y + 1) + xlogy(y, p) - r * np.log1p(alpha * mu)
        return w * likelihood, 0 * y

    def shape(self, y: Rows, mu: Rows, alpha: float) -> tuple[Rows, Rows, Rows]:
        from scipy.special import digamma, polygamma  # heavy

        r = 1 / alpha
        x = y + 1 / alpha
        # In r: dl/dr = ψ(y+r) − ψ(r) + log(r/(r+μ)) + (μ − y)/(r+μ), and dr/dt = −r.
        if r < 1e3:
            first = digamma(x) - digamma(r)
            second = polygamma(1, x) - polygamma(1, r)
        else:  # digits would be lost; these are the series of both for large numbers
            first = np.log1p(y / r) + y / (2 * r * x) - (x**-2 - r**-2) / 12 + (x**-4 - r**-4) / 120
            second = -y / (r * x) + (x**-2 - r**-2) / 2 + (x**-3 - r**-3) / 6 - (x**-5 - r**-5) / 30
        d1 = first - np.log1p(mu / r) + (mu - y) / (r + mu)
        d2 = second + mu / (r * (r + mu)) + (y - mu) / (r + mu) ** 2
        return -r * d1, r * d1 + r**2 * d2, -r * (y - mu) * mu / (r + mu) ** 2


FAMILIES: dict[str, Family] = {
    cls.name: cls() for cls in (*Canonical.__subclasses__(), *Family.__subclasses__()) if cls is not Canonical
}
"""The families of this module, by name."""


def refuse_unknown(family: object, call: str) -> None:
    """Raise RecipeError, with the nearest name, for a family's name that there is not."""
    if isinstance(family, str) and family not in FAMILIES:
        raise RecipeError.unknown(family, FAMILIES, f"{call}(family=...)")


if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[tuple(FAMILIES)]
