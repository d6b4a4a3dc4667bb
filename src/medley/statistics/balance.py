"""Balance: the treated and the untreated before and after weighting, as standardised mean differences.

**Reference**: Austin & Stuart, Statistics in Medicine 34, 2015. A difference of means is divided by the root of the
mean of both groups' variances before weighting, also after it, so that only the means move.

**One round sends** (floats per site, p columns): the propensity model, as `GLM`; then 4p + 6 and 4p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract import Client, Cohort, on_client
from ..contract.arguments import known_keywords
from .analysis import Moments, Report, packed, site_of, tensor, unpacked
from .cells import printed
from .describe import Question
from .extra import InNotebooks, needed
from .fit import Cost
from .formulas import design, latex, parsed, within
from .glm import bases, design_names, treatment
from .scales import banded, exponents_of
from .site import Site, within_used
from .weights import Fit, Scored, Weighted, Weights, sent


@dataclass(frozen=True)
class Balance(Weighted):
    """A comparison of the treated and the untreated before and after weighting.

    Attributes:
        weights: `Weights(...)` of rows by the probability of a treatment
        columns: what is compared, "age + C(sex)"; empty for what the propensity model has
        where: a condition on the rows, "age >= 18"; empty for all
    """

    call = "balance"

    weights: Weights
    columns: str = ""
    where: str = ""

    @property
    def compared(self) -> str:
        """The columns that are compared, as a formula."""
        return (
            f"{self.weights.formula.partition('~')[0]} ~ {self.columns}"
            if self.columns
            else self.weights.propensity_formula
        )

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        both = parsed(self.weights.propensity_formula), parsed(self.compared)
        columns, categorical = (
            dict.fromkeys(c for f in both for c in getattr(f, k)) for k in ("columns", "categorical")
        )
        return tuple(columns), tuple(categorical)

    @property
    def treatment(self) -> Any:
        """See `Weighted.treatment`."""
        return treatment(self)

    def round(self, s: Report, clients: Cohort) -> None:
        """Fit the propensity model, sum by treatment, and sum squares about the means."""
        levels, rows = self.agreed(clients)
        fit, _ = self.scored(clients, levels, rows)
        assert fit is not None
        mine = {c: levels[c] for c in parsed(self.compared).categorical}
        names = [name for name in design_names(self.compared, mine) if name != "Intercept"]
        question: dict[str, Any] = {"levels": levels, "fit": sent(fit).tolist(), "units": [0] * len(names)}

        def ask(method: Any, **more: Any) -> np.ndarray:
            sums: np.ndarray = self.summed(clients, method, Question(packed(question | more))).sums.numpy()
            return sums

        if self.masked(clients):
            table = ask(self.magnitudes).reshape(len(names), -1)
            question["units"] = [int(k) for k in exponents_of(table)]
        unit = 2.0 ** np.array(question["units"])[:, None, None]
        sums = ask(self.sums)
        totals = sums[:6].reshape(3, 2)  # rows, weights and their squares, untreated and treated
        means = sums[6:].reshape(-1, 2, 2) / totals[:2]  # by column: before and after, untreated and treated
        squares = ask(self.sums, means=means.tolist()).reshape(-1, 2, 2)
        sd = np.sqrt(np.maximum(squares / totals[:2], 0.0) * totals[0] / np.maximum(totals[0] - 1, 1)) * unit
        s.result = names, mine, totals, means * unit, sd

    @on_client
    def magnitudes(self, me: Client[Any], request: Question) -> Moments:
        """The site's table of the columns' magnitudes."""
        return Moments(tensor(banded(self._rows(site_of(me), unpacked(request.values))[1]).ravel()))

    @on_client
    def sums(self, me: Client[Any], request: Question) -> Moments:
        """By column, before and after weighting, of the untreated and the treated: sums, after rows, weights and their
        squares; or squares about means.
        """
        site, question = site_of(me), unpacked(request.values)
        scored, X = self._rows(site, question)
        X = X / 2.0 ** np.array(question["units"])
        ways = np.stack([np.ones(len(X)), scored.w[scored.rows]])
        treated = scored.treated[scored.rows]
        arms = np.stack([~treated, treated])
        means = question.get("means")
        terms = X[:, :, None, None] if means is None else (X[:, :, None, None] - np.array(means)) ** 2
        terms = (terms * (ways[:, None] * arms[None]).transpose(2, 0, 1)[:, None]).reshape(len(X), -1)  # fmt: skip
        if means is None:
            weight = ways[1]
            terms = np.column_stack([*arms, *(weight * arms), *(weight**2 * arms), terms])
        values = terms.sum(0)
        if site.rules.rounded:
            of = f"balance {site.digest(self._used(site, scored), ways[1])} {means}"
            keys = [f"{of} {k}" for k in range(len(values))]
            spread = np.sqrt(len(X)) * terms.std(0)
            values = site.rounded(self.weights.account, values, spread, keys, np.inf)
        return Moments(tensor(values))

    def _used(self, site: Site, scored: Scored) -> np.ndarray:
        return within_used(self.used(site)[0], scored.rows)

    def _rows(self, site: Site, question: dict[str, Any]) -> tuple[Scored, np.ndarray]:
        """The site's rows and columns, once they may leave; they are kept for the next exchange."""
        key = repr(self), packed([question["levels"], question["fit"]]).numpy().tobytes()
        if key not in site.kept:
            levels = question["levels"]
            scored = self.scores(site, self.used(site)[0], levels, Fit.read(tensor(question["fit"])))
            used = self._used(site, scored)
            f = parsed(self.compared)
            names, X = design(f, site.at(used), levels, site.name)
            others = {"the weights": scored.w[scored.rows]} | within(f, site.at(used), levels, site.name, names, X)
            site.check_size(X.shape[1], len(X), len(X))
            treated = scored.treated[scored.rows]
            site.admit_fit(used, X, names, f.columns, treated, beside=others, outcome_column=f.response)
            site.effective(scored.w[scored.rows], X)
            site.kept = {key: (scored, X[:, [name != "Intercept" for name in names]])}
        rows: tuple[Scored, np.ndarray] = site.kept[key]
        return rows


class BalanceTable(InNotebooks):
    """The treated and the untreated before and after weighting.

    Attributes:
        balance, sites, cost: the analysis, the sites' names, and its exchanges and bytes
        rows: the numbers of rows, untreated and treated
        effective: the numbers of rows that unweighted means of the same precision would need, (Σw)²/Σw²
    """

    _is_table = True

    def __init__(self, balance: Balance, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        names, levels, totals, means, sd = result
        self.balance, self.sites, self.cost = balance, sites, cost
        pandas = needed("pandas")
        arms = [f"{balance.weights.treatment} = {k}" for k in (0, 1)]
        self.rows = pandas.Series(np.rint(totals[0]).astype(int), arms)
        self.effective = pandas.Series(totals[1] ** 2 / totals[2], arms)
        every = [(name, means[k], sd[k]) for k, name in enumerate(names)]
        for base, places in bases(["Intercept", *names], levels).items():
            mean = 1 - means[[k - 1 for k in places]].sum(0)
            share = np.sqrt(np.maximum(mean * (1 - mean), 0.0) * totals[0] / np.maximum(totals[0] - 1, 1))
            every.insert(min(places) - 1 + len(every) - len(names), (base.removesuffix(" (the base)"), mean, share))
        self._every = every

    def frame(self) -> Any:
        """By column: means and standard deviations without and with the treatment, and the standardised mean
        difference, before and after weighting.
        """
        lines = {}
        for name, mean, sd in self._every:
            spread = np.sqrt((sd[0] ** 2).mean())
            smd = (mean[:, 1] - mean[:, 0]) / spread if spread else np.zeros(2)
            lines[name] = [v for k in (0, 1) for v in (mean[k, 0], sd[k, 0], mean[k, 1], sd[k, 1], smd[k])]
        figures = ("mean, 0", "SD, 0", "mean, 1", "SD, 1", "SMD")
        columns = needed("pandas").MultiIndex.from_product([("before", "after"), figures])
        return needed("pandas").DataFrame([*lines.values()], index=[*lines], columns=columns)

    @property
    def smd(self) -> Any:
        """The standardised mean differences, before and after weighting: what a love plot shows."""
        return self.frame().xs("SMD", axis=1, level=1)

    @known_keywords
    def latex(self, digits: int = 2) -> str:
        """The table in LaTeX, for booktabs."""
        frame = self.frame()
        return latex(frame.set_axis([", ".join(c) for c in frame.columns], axis=1), digits)

    def summary(self) -> str:
        """The table as text, with the rows and the effective numbers of rows."""
        treated = self.balance.weights.treatment
        lines = [f"Means by {treated}, before and after weighting for {self.balance.weights.estimand}"]
        lines += [printed(self.frame(), float_format=lambda v: f"{v:.3f}")]
        pairs = zip(self.rows, self.effective, strict=True)
        lines += [f"{treated} = {k}: {n} rows, as good as {e:.0f} after weighting" for k, (n, e) in enumerate(pairs)]
        return "\n".join(lines)
