"""A Table 1: columns by group, with tests, from the sites' figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract.arguments import known_keywords
from ..contract.text import shown
from .cells import printed
from .describe import Cell, Describe, Grid
from .extra import InNotebooks, needed
from .fit import Cost, Test, probability
from .formulas import latex
from .ranks import RankTest, difference, rank_test

WITHHELD = "withheld"
"""Printed instead of a figure that a site withholds."""

UNNAMED = "(not named)"
"""Printed for the rows of categories that no site names."""


@dataclass(eq=False)
class TableOne(InNotebooks):
    """A description of columns over all sites; ``cells`` has a `Cell` by column and group, "" being all."""

    _is_table = True

    analysis: Describe
    sites: tuple[str, ...]
    result: tuple[list[str], dict[str, dict[str, Cell]]]
    cost: Cost

    def __post_init__(self) -> None:
        self.groups, self.cells = self.result

    @known_keywords
    def test(self, column: str) -> Test | None:
        """Whether the groups differ: Welch's t for two, one-way ANOVA for more, χ² for categories; None if withheld."""
        from scipy import stats

        cells = [self.cells[column][g] for g in self.groups[1:]]
        if len(cells) < 2:
            return None
        if cells[0].counts is not None:
            counts = [[*(c.counts or {}).values(), c.unnamed] for c in cells]
            if any(v is None for row in counts for v in row):
                return None
            table = np.array(counts, dtype=float)
            table = table[table.sum(1) > 0][:, table.sum(0) > 0]
            if min(table.shape) < 2:
                return None
            result = stats.chi2_contingency(table, correction=False)
            return Test(float(result.statistic), int(result.dof), float(result.pvalue))
        if any(c.n is None or c.n < 2 or not c.sd for c in cells):
            return None
        n, m, sd = (np.array([getattr(c, k) for c in cells], dtype=float) for k in ("n", "mean", "sd"))
        if len(cells) == 2:
            e = sd**2 / n
            result = stats.ttest_ind_from_stats(m[0], sd[0], n[0], m[1], sd[1], n[1], equal_var=False)
            return Test(float(result.statistic), float(e.sum() ** 2 / (e**2 / (n - 1)).sum()), float(result.pvalue))
        k = len(n) - 1
        rest = int(n.sum()) - len(n)
        F = float(n @ (m - n @ m / n.sum()) ** 2) / k / (float((n - 1) @ sd**2) / rest)
        return Test(F, k, float(stats.f.sf(F, k, rest)))

    @known_keywords
    def rank_test(self, column: str, whole: bool | None = None) -> RankTest | None:
        """Whether the groups differ by ranks: Mann and Whitney's test of two, Kruskal and Wallis' of more.

        SciPy's figures for all rows lie within the intervals, which are as wide as the bins of the sites' histograms
        leave the ranks open. None if a figure is withheld, or fewer than two groups have rows.

        Args:
            column: a column of numbers
            whole: whether all its numbers are whole; by default whether the description's ``whole`` has it
        """
        cells = [self.cells[column][g] for g in self.groups[1:] if self.cells[column][g].n != 0]
        if len(cells) < 2 or any(c.histogram is None for c in cells):
            return None
        ends = [c.histogram[0] for c in cells if c.histogram is not None]
        grid: Grid = cells[0].histogram[1]  # type: ignore[index]
        single = np.full(
            ends[0].shape[1], grid.power <= 0 and (column in self.analysis.whole if whole is None else whole)
        )
        single[[0, grid.bins - 1]] = False  # the outer bins are open
        return rank_test(ends, single)

    @known_keywords
    def smd(self, column: str) -> float | None:
        """The standardised mean difference of two groups, the largest between two of several; None if withheld."""
        return difference([c for g, c in self.cells[column].items() if g and c.n != 0])

    @known_keywords
    def frame(self, digits: int = 1) -> Any:
        """The table: a row for each column of numbers and each category, a column for all and for each group."""
        # Lines are a list, not a mapping: columns may have categories, and even labels, of the same names.
        lines: list[tuple[str, list[str], str, str]] = []
        n = [max(c[g].rows for c in self.cells.values()) or WITHHELD for g in self.groups]
        for name, cells in self.cells.items():
            result = self.test(name)
            p = "" if result is None else probability(result.pvalue)
            ranks = self._ranks(name) if name in self.analysis.ranks else ""
            smd = self._smd(name) if self.analysis.smd else ""
            several = [cells[g] for g in self.groups]
            if several[0].counts is not None:
                lines.append((name, [""] * len(self.groups), p, smd))
                shares = [(f"  {v}, n (%)", [(c.counts or {})[v] for c in several]) for v in several[0].counts]
                if any(c.unnamed for c in several):
                    shares.append((f"  {UNNAMED}, n (%)", [c.unnamed for c in several]))
                lines += [
                    (label, [*map(_share, several, counts, [digits] * len(counts))], "", "") for label, counts in shares
                ]
            else:
                median = 0.5 in self.analysis.quantiles
                first = p if not ranks else "" if median else ranks
                lines.append((f"{name}, mean (SD)", [_mean(c, digits) for c in several], first, smd))
                if median:
                    lines.append((f"{name}, median [Q1, Q3]", [_median(c, digits) for c in several], ranks, ""))
            if any(c.missing != 0 for c in several):
                missing = [WITHHELD if c.missing is None else str(c.missing) for c in several]
                lines.append((f"{name}, missing", missing, "", ""))
        heads = [f"{h} (n = {k})" for h, k in zip(["all", *self.groups[1:]], n, strict=True)]
        more = [*("p",) * bool(self.groups[1:]), *("SMD",) * self.analysis.smd]
        rows = [[*cells, *([p] if self.groups[1:] else []), *([smd] if self.analysis.smd else [])]
                for _, cells, p, smd in lines]  # fmt: skip
        return needed("pandas").DataFrame(rows, [label for label, *_ in lines], [*heads, *more])

    def _ranks(self, name: str) -> str:
        """The p-value of a test by ranks in words, with the two between which it lies."""
        result = self.rank_test(name)
        if result is None:
            return WITHHELD if len([g for g in self.groups[1:] if self.cells[name][g].n != 0]) > 1 else "–"
        low, likely, high = map(probability, (result.pvalue[0], result.middle[1], result.pvalue[1]))
        return low if low == high else f"{likely} ({low} to {high})"

    def _smd(self, name: str) -> str:
        value = self.smd(name)
        return "" if value is None else f"{value:.3f}"

    def summary(self) -> str:
        """The table as text, with the largest errors of its quantiles and what is withheld."""
        cells = [(name, c) for name, by in self.cells.items() for c in by.values()]
        errors: dict[str, float] = {}
        for name, c in cells:
            for _, error in (c.quantiles or {}).values():
                errors[name] = max(errors.get(name, 0.0), error)
        bounds = ", ".join(f"{shown(name)} ±{e:.2g}" for name, e in errors.items())
        hidden = any(c.n is None or c.missing is None or None in (c.counts or {}).values() for _, c in cells)
        notes = [f"quantiles to within: {bounds}"] if bounds else []
        vague = [name for name, by in self.cells.items() if any(c.unnamed for c in by.values())]
        if vague:
            notes.append(
                f"{UNNAMED}: in {', '.join(map(shown, vague))}, rows of categories that have too few rows at "
                "each site, as free text has; merge categories, or leave the column out"
            )
        level = [name for name, by in self.cells.items() if any(c.sd == 0 and (c.n or 0) > 1 for c in by.values())]
        if level:
            notes.append(f"SD 0: in {', '.join(map(shown, level))}, a group's values are all alike")
        if self.analysis.ranks:
            which = "Mann-Whitney" if len(self.groups) == 3 else "Kruskal-Wallis"
            ranked = ", ".join(map(shown, self.analysis.ranks))
            notes.append(f"p of {ranked}: {which}; in brackets between which two it lies, as far as bins tell")
        if self.analysis.smd and len(self.groups) > 3:
            notes.append("SMD: the largest between two groups")
        notes += ["withheld: a site's rows are too few, or could be told from other figures"] if hidden else []
        return "\n".join([printed(self.frame()), *notes])

    @known_keywords
    def latex(self, digits: int = 1) -> str:
        """The table in LaTeX, for booktabs."""
        return latex(self.frame(digits), digits)


def _number(value: float, digits: int) -> str:
    """A number with this many decimals; with two significant digits instead, if it would look like 0 and is not."""
    text = f"{value:.{digits}f}"
    return f"{value:.2g}" if value and not float(text) else text


def _mean(c: Cell, digits: int) -> str:
    if c.n is None:
        return WITHHELD
    if c.mean is None:
        return "–"
    return _number(c.mean, digits) + (f" ({_number(c.sd, digits)})" if c.sd is not None else "")


def _median(c: Cell, digits: int) -> str:
    if c.n == 0:
        return "–"
    if c.quantiles is None:
        return WITHHELD
    values = [_number(c.quantiles[q][0], digits) if q in c.quantiles else "" for q in (0.5, 0.25, 0.75)]
    return f"{values[0]} [{values[1]}, {values[2]}]"


def _share(c: Cell, count: int | None, digits: int) -> str:
    if count is None:
        return WITHHELD
    return f"{count}" + (f" ({100 * count / c.n:.{digits}f})" if c.n else "")
