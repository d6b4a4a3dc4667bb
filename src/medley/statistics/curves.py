"""Kaplan-Meier's curves on a grid of times, and the log-rank test.

**Reference**: Kaplan & Meier, JASA 53, 1958, with Greenwood's variance; Mantel, 1966, for the log-rank test.

**Departures**: a site moves the times of successive events, and of successive censored rows, to their mean, in steps of
its least number of rows, and unless its rules are exact rounds these means. With weights, and unless rules are exact,
steps have four times as many rows, so that the sums of their weights tell less. Errors of weighted curves, and the
weighted log-rank test, take weights as they are, as if the propensity model were known: Xie & Liu, Statistics in
Medicine 24, 2005. For most weights this makes errors a little too large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from ..contract import BadData, Client, Cohort, on_client, positive
from ..contract.arguments import known_keywords
from ..contract.text import shown
from .analysis import Moments, Report, packed, site_of, tensor, unpacked
from .cells import printed, texts
from .describe import Question, curve_may, mergers
from .extra import InNotebooks, needed
from .fit import Cost, Test, probability
from .formulas import parsed
from .glm import treatment
from .horizons import quantile_table, rmst_table
from .rounding import WIDEST
from .rules import Withheld
from .site import APART, Site, within_used
from .weights import Fit, Weighted, Weights, sent

WIDER = 4
"""How many times the least number of rows a step of a weighted curve has, unless rules are exact."""


@dataclass(frozen=True)
class KaplanMeier(Weighted):
    """Kaplan-Meier's curves.

    Attributes:
        time: the column of times, in a unit of your choice, for example months
        event: the column that is 1 if the event occurred, and 0 if the row was censored
        unit: the width of the grid of times, in the unit of ``time``; times that are multiples of it are exact
        until: the last time, in the unit of ``time``; rows beyond it are censored there. The last step may be shorter
            than ``unit``
        by: a column of groups; empty for none
        where: a condition on the rows, "age >= 18"; empty for all
        weights: `Weights(...)` of rows by the probability of a treatment; empty for none
    """

    call = "kaplan_meier"

    time: str
    event: str
    unit: Annotated[float, positive]
    until: Annotated[float, positive]
    by: str = ""
    where: str = ""
    weights: Weights | Literal[""] = ""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """See `Weighted.outcomes`."""
        return self.time, self.event

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        groups = (self.by,) if self.by else ()
        if self.weighting is None:
            return (self.time, self.event, *groups), groups
        by = parsed(self.weighting.propensity_formula)
        columns = dict.fromkeys((self.time, self.event, *groups, *by.columns))
        return tuple(columns), tuple(dict.fromkeys((*groups, *by.categorical)))

    @property
    def treatment(self) -> Any:
        """See `Weighted.treatment`."""
        return treatment(self)

    @property
    def grid(self) -> np.ndarray:
        """The times of the grid, from 0 to ``until``."""
        times = np.arange(np.floor(self.until / self.unit + 1e-9) + 1) * self.unit
        return times if times[-1] > self.until * (1 - 1e-9) else np.append(times, self.until)

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on groups, and count events and censored rows on the grid."""
        levels, rows = self.agreed(clients)
        groups = levels.get(self.by, [""])
        fit, _ = self.scored(clients, levels, rows)
        question = groups if fit is None else {"groups": groups, "levels": levels, "fit": sent(fit).tolist()}
        sums = self.summed(clients, self.count, Question(packed(question))).sums.numpy().reshape(len(groups), -1)
        steps = sums[:, :-1].reshape(len(groups), 1 if fit is None else 3, 2, -1)
        s.result = groups, np.rint(steps[:, 0]), sums[:, -1] * self.unit, steps[:, 1:]

    @on_client
    def count(self, me: Client[Any], request: Question) -> Moments:
        """Events and censored rows of each group at each time of the grid, with the sums of their weights and of the
        squares of these if there are any; and the sum of how far times were moved.
        """
        site = site_of(me)
        times = self.grid
        used, _ = self.used(site)
        question = unpacked(request.values)
        w = None
        if self.weighting:
            scored = self.scores(site, used, question["levels"], Fit.read(tensor(question["fit"])))
            used, w = within_used(used, scored.rows), scored.w[scored.rows]
            question = question["groups"]
        time = site.column(used, self.time, 0.0)
        event = site.column(used, self.event, 0.0)
        check_times(site, self.time, time, self.event, event)
        place = np.minimum(np.ceil(time / self.unit - 1e-9), len(times) - 1).astype(int)
        dead = event > 0
        event = dead & (time <= self.until * (1 + 1e-9))
        out = list[float]()
        at = np.flatnonzero(used)
        categories = texts(site.at(used), self.by, site.name) if self.by else np.full(len(time), "")
        for group in question:
            mine = categories == group
            rows = np.isin(np.arange(site.n), at[mine])
            for c in filter(None, (self.time, self.event, self.by)):
                site.admit(c, [rows], f"the group {group!r}")
            happened = np.isin(np.arange(site.n), at[mine & dead])
            site.admit_events(self.event, [happened, rows & ~happened], f"events of the group {group!r}")
            grid = f"{self.unit} until {self.until} of {self.event}"  # other grids have other steps and totals
            curve_may(site, self.time, rows, grid, f"the group {group!r}")
            both = [np.bincount(place[mine & e], minlength=len(times)) for e in (event, ~event)]
            least = max(site.rules.rows, site.rules.events)
            coarse = site.rules.rounded
            steps = least * (WIDER if coarse and w is not None else 1)
            sums = None
            if w is not None:
                sums = np.array(
                    [
                        [np.bincount(place[mine & e], w[mine & e] ** k, len(times)) for e in (event, ~event)]
                        for k in (1, 2)
                    ]
                )
            counts, moved, bits = merged(np.array(both), times, steps, coarse, sums)
            if ((counts[:2] > 0) & (counts[:2] < least)).any():
                raise Withheld(f"{site.name} withholds the curve of {group or 'all'}: too few events or censored rows")
            if coarse:
                spent = {f"curve by {grid} {site.digest(rows, np.ones(len(time[mine])))}": bits}
                site.spend(self.event, spent, int(used.sum()))
            if w is not None and coarse and mine.any():
                spread = np.stack([np.sqrt(counts[:2]) * v.std() for v in (w[mine], w[mine] ** 2)]).ravel()
                keys = [f"weights by {grid} {site.digest(rows, w[mine])} {k}" for k in range(len(spread))]
                rounded = site.rounded(self.event, counts[2:].ravel(), spread, keys, int(used.sum()), WIDEST)
                counts = np.concatenate([counts[:2], rounded.reshape(4, -1)])
            out += [*counts.ravel(), moved / self.unit]
        return Moments(tensor(out))


def merged(
    counts: np.ndarray, times: np.ndarray, least: int, coarse: bool = False, sums: np.ndarray | None = None
) -> tuple[np.ndarray, float, float]:
    """Counts [2, times] in steps of at least ``least``, each at the mean of its places; how far all times moved; bits.

    ``sums`` [m, 2, times] are added up in the same steps, and come after the counts [2 + 2 m, times].

    Whoever knows the times finds the only rows with a mean that is known to many digits. So means are ``coarse``: on
    grids of a quarter to a half of a step's width, and what moved has four bits.
    """
    out = np.zeros((2 + 2 * (0 if sums is None else len(sums)), counts.shape[1]))
    moved = 0.0
    bits = 0.0
    for row, of in enumerate(counts):
        places = np.repeat(np.arange(len(of)), of)
        starts, stops = mergers(places, least)
        if not len(starts):
            continue
        first = places[starts]
        last = places[stops - 1]
        size = stops - starts
        mean = np.add.reduceat(places, starts) / size
        squares = np.add.reduceat((places - np.repeat(mean, size)) ** 2, starts)
        width = np.log2(np.maximum(last - first, 1)).astype(int)
        grid = 2 ** np.maximum(width - 1, 0) if coarse else np.ones(len(size), int)
        k = np.minimum(np.rint(mean / grid).astype(int) * grid, last)
        np.add.at(out[row], k, size)
        for m, values in enumerate([] if sums is None else sums):
            np.add.at(out[2 * m + 2 + row], k, np.add.reduceat(values[row], first))
        moved += float(np.abs(times[places] - times[np.repeat(k, size)]).sum())
        bits += float(np.log2(1 + APART * np.sqrt(squares) / size / grid).sum())
    if coarse and moved:
        size = 2.0 ** (np.floor(np.log2(moved)) - 4)
        moved = round(moved / size) * size
        bits = bits + 4
    return out, moved, bits


class Curves(InNotebooks):
    """Kaplan-Meier's curves.

    Attributes:
        deaths, at_risk: by group and time of the grid [groups, times]; sums of weights if rows have any
        events, rows: the numbers of events, and of rows at risk
        moved: how far the sites' rules moved a time, on average, by group; 0 if rules allow single rows
    """

    def __init__(self, analysis: KaplanMeier, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        self.analysis, self.sites, self.cost, (self.groups, counts, moved, sums) = analysis, sites, cost, result
        self.events, leave = counts[:, 0], counts.sum(1)
        self.rows = _from_then(leave)
        weighted, squares = (sums[:, 0], sums[:, 1]) if sums.shape[1] else (counts, counts)
        self.deaths = weighted[:, 0]
        self.at_risk = _from_then(weighted.sum(1))
        self._squares = _from_then(squares.sum(1))
        self.moved = {g: float(m / max(n, 1)) for g, m, n in zip(self.groups, moved, leave.sum(1), strict=True)}

    @known_keywords
    def frame(self, group: str = "", alpha: float = 0.05) -> Any:
        """A row for each time with an event: at risk, events, survival, Greenwood's error, the interval of log −log.

        With weights, the numbers are of rows, and survival and its error by weights.
        """
        from scipy.stats import norm

        k = self.groups.index(group)
        at = np.flatnonzero(self.deaths[k])
        d = self.deaths[k, at]
        n = self.at_risk[k, at]
        S = np.cumprod(1 - d / n)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.sqrt(np.cumsum(d * self._squares[k, at] / (n**2 * (n - d))))
            ends = [S ** np.exp(z * norm.isf(alpha / 2) * spread / np.log(S)) for z in (-1, 1)]
            columns = {
                "at_risk": self.rows[k, at],
                "events": self.events[k, at],
                "survival": S,
                "se": S * spread,
                "lower": ends[0],
                "upper": ends[1],
            }
        return needed("pandas").DataFrame(columns, index=needed("pandas").Index(self.analysis.grid[at], name="time"))

    def logrank(self) -> Test:
        """The log-rank test of the groups."""
        from scipy.stats import chi2

        d = self.events.sum(0)
        n = self.rows.sum(0)
        at = (d > 0) & (n > 1)
        weight = self.at_risk.sum(0)
        share = self.at_risk[:, at] / weight[at]
        left = d[at] * (n[at] - d[at]) / (n[at] - 1) / n[at]
        mean = np.divide(self.deaths.sum(0), weight, where=weight > 0, out=np.zeros(len(n)))
        gap = (self.deaths.sum(1) - (self.at_risk * mean).sum(1))[:-1]
        away = np.eye(len(share))[:, :, None] - share  # of a row in each group [groups, groups, times]
        V = np.einsum("gt,gat,gbt->ab", self._squares[:, at] * left, away, away)[:-1, :-1]
        statistic, df = float(gap @ np.linalg.pinv(V) @ gap), len(gap)  # without events V is 0
        return Test(statistic, df, float(chi2.sf(statistic, df)))

    @known_keywords
    def rmst(self, until: float, alpha: float = 0.05) -> Any:
        """Restricted mean survival times: a frame with the mean of the lesser of time and ``until``, by group.

        Further rows have each group's difference from the first, with its p-value. They are of the curve's times: if
        sites moved these, means are about as far from those of all times as `moved` says. Raises RecipeError for a time
        at which no row of a group is at risk any more.
        """
        return rmst_table(self, until, alpha)

    @known_keywords
    def quantile(self, share: float = 0.5, alpha: float = 0.05) -> Any:
        """A frame with the time by which this share of a group has had the event, by group: the median by default.

        Ends of the interval are where the bands of `frame` reach the level; infinite if they do not.
        """
        return quantile_table(self, share, alpha)

    def summary(self) -> str:
        """The curves as text, with how far their times were moved, medians, and the log-rank test."""
        texts = [
            f"{shown(g or 'all')} (times moved by {self.moved[g]:.2g} on average)\n{printed(self.frame(g))}"
            for g in self.groups
        ]
        medians = self.quantile().rename(index=lambda g: g or "all")
        texts.append(f"medians\n{printed(medians, float_format=lambda v: f'{v:.4g}')}")
        if len(self.groups) > 1:
            test = self.logrank()
            p = probability(test.pvalue)
            texts.append(f"log-rank of these times: {test.statistic:.2f}, df = {test.df}, p = {p}")
        return "\n\n".join(texts)


def _from_then(leave: np.ndarray) -> np.ndarray:
    """What is left at each time, from what leaves then [groups, times]."""
    return leave[:, ::-1].cumsum(1)[:, ::-1]


def check_times(site: Site, name: str, time: np.ndarray, column: str, event: np.ndarray) -> None:
    """Raise BadData, naming site and column, for times below 0 and events that are neither 0 nor 1."""
    if (time < 0).any() or not np.isin(event, (0, 1)).all():
        raise BadData(f"{site.name}: times in {name} must be at least 0, and events in {column} must be 0 or 1")
