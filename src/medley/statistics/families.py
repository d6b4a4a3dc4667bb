"""Families of generalised linear models and their links, for one site's rows; SciPy has the special functions.

With η = Xβ + offset and the mean μ = g⁻¹(η), a row of weight w and outcome y adds

    score        w (y − μ) μ' / V(μ) · x
    information  w μ'² / V(μ) · x xᵀ                                     (expected)
                 w [μ'² / V − (y − μ)(μ'' / V − μ'² V' / V²)] · x xᵀ     (observed)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Rows = np.ndarray
"""One number per row [n]."""


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
        lambda eta: np.clip(np.exp(-np.logaddexp(0, -eta)), 1e-100, 1 - 2.0**-53),  # never 0 or 1, which are no means
        lambda mu: mu * (1 - mu),
        lambda mu: mu * (1 - mu) * (1 - 2 * mu),
    ),
    "inverse": Link(lambda mu: 1 / mu, lambda eta: 1 / eta, lambda mu: -(mu**2), lambda mu: 2 * mu**3),
}  # fmt: skip


class Family(NamedTuple):
    """A family.

    Attributes:
        links: its links, the default first
        canonical: the link under which observed and expected information are the same
        variance: V(μ, α)
        bend: V'(μ, α)
        outcome: the possible values of an outcome, in words
        takes: whether these outcomes are possible, by row
        first: the first guess of the mean
        inside: whether means are possible, by row
        dispersed: whether the dispersion is estimated, by Pearson's χ² over the residual degrees of freedom
    """

    links: tuple[str, ...]
    canonical: str
    variance: Callable[[Rows, float], Rows]
    bend: Callable[[Rows, float], Rows]
    outcome: str
    takes: Callable[[Rows], Rows]
    first: Callable[[Rows], Rows]
    inside: Callable[[Rows], Rows]
    dispersed: bool


FAMILIES = {
    "gaussian": Family(
        ("identity", "log", "inverse"), "identity", lambda mu, a: np.ones_like(mu), lambda mu, a: np.zeros_like(mu),
        "numbers", np.isfinite, lambda y: y, np.isfinite, True,
    ),
    "binomial": Family(
        ("logit", "log", "identity"), "logit", lambda mu, a: mu * (1 - mu), lambda mu, a: 1 - 2 * mu,
        "0 and 1, or True and False", lambda y: (y == 0) | (y == 1), lambda y: (y + 0.5) / 2,
        lambda mu: (mu > 0) & (mu < 1), False,
    ),
    "poisson": Family(
        ("log", "identity"), "log", lambda mu, a: mu, lambda mu, a: np.ones_like(mu),
        "counts, 0 or more", lambda y: y >= 0, lambda y: y + 0.1, lambda mu: mu > 0, False,
    ),
    "gamma": Family(
        ("inverse", "log", "identity"), "inverse", lambda mu, a: mu**2, lambda mu, a: 2 * mu,
        "numbers above 0", lambda y: y > 0, lambda y: y, lambda mu: mu > 0, True,
    ),
    "negative_binomial": Family(
        ("log",), "", lambda mu, a: mu + a * mu**2, lambda mu, a: 1 + 2 * a * mu,
        "counts, whole numbers from 0 on", lambda y: (y >= 0) & (y == np.round(y)), lambda y: y + 0.1,
        lambda mu: mu > 0, False,
    ),
}  # fmt: skip


def deviance(name: str, y: Rows, mu: Rows, alpha: float) -> Rows:
    """Each row's share of the deviance."""
    from scipy.special import xlogy

    if name == "gaussian":
        out: Rows = (y - mu) ** 2
    elif name == "binomial":
        out = -2 * (xlogy(y, mu) + xlogy(1 - y, 1 - mu))
    elif name == "poisson":
        out = 2 * (xlogy(y, y / mu) - (y - mu))
    elif name == "gamma":
        out = 2 * (-np.log(y / mu) + (y - mu) / mu)
    else:
        out = 2 * (xlogy(y, y / mu) - (y + 1 / alpha) * np.log((1 + alpha * y) / (1 + alpha * mu)))
    return out


def parts(name: str, y: Rows, mu: Rows, w: Rows, alpha: float) -> np.ndarray:
    """Sums [2] from which `llf` computes the log-likelihood."""
    from scipy.special import gammaln, xlogy

    if name == "gaussian":
        found = (w * (y - mu) ** 2, np.log(np.where(w > 0, w, 1.0)))
    elif name == "binomial":
        found = (w * (xlogy(y, mu) + xlogy(1 - y, 1 - mu)), 0 * y)
    elif name == "poisson":
        found = (w * (xlogy(y, mu) - mu - gammaln(y + 1)), 0 * y)
    elif name == "gamma":
        found = (np.log(y / mu) - y / mu, np.log(y))
    else:
        r = 1 / alpha
        p = alpha * mu / (1 + alpha * mu)
        whole = gammaln(y + r) - gammaln(r) - gammaln(y + 1) + xlogy(y, p) - r * np.log1p(alpha * mu)
        found = (w * whole, 0 * y)
    return np.array([float(v.sum()) for v in found])


def llf(name: str, sums: np.ndarray, n: float, scale: float) -> float:
    """The log-likelihood of n rows from the `parts` of all sites; for Gaussians at the most likely variance."""
    first, second = map(float, sums)
    if name == "gaussian":
        return -n / 2 * (math.log(2 * math.pi * first / n) + 1) + second / 2 if first > 0 else math.inf
    if name == "gamma":
        if not scale:
            return math.inf
        k = 1 / scale
        return n * (k * math.log(k) - math.lgamma(k)) + k * first - second
    return first


def most_likely(sums: np.ndarray, n: float) -> float:
    """The gamma's log-likelihood of n rows from the `parts` of all sites, at the most likely dispersion."""
    from scipy.special import digamma, polygamma

    c = -1 - float(sums[0]) / n  # log k − ψ(k) at the most likely k = 1/φ
    if c <= 0:
        return math.inf
    k = (3 - c + math.sqrt((c - 3) ** 2 + 24 * c)) / (12 * c)  # to 1.5 %: Minka, 2002
    for _ in range(6):
        k = 1 / (1 / k + (math.log(k) - digamma(k) - c) / (k - k**2 * polygamma(1, k)))
    return llf("gamma", sums, n, 1 / k)


def shape(y: Rows, mu: Rows, alpha: float) -> tuple[Rows, Rows, Rows]:
    """Each row's part of log α =: t of the negative binomial's likelihood l: dl/dt, d²l/dt² and d²l/dt dη."""
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
