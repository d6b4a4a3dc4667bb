"""A Table 1: columns by group, with tests, from the sites' figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract.arguments import known_keywords
from ..contract.text import shown
from .cells import printed
from .describe import Cell, Describe
from .extra import InNotebooks, needed
from .fit import Cost, Test, probability
from .formulas import latex

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
    def frame(self, digits: int = 1) -> Any:
        """The table: a row for each column of numbers and each category, a column for all and for each group."""
        # Lines are a list, not a mapping: columns may have categories, and even labels, of the same names.
        lines: list[tuple[str, list[str], str]] = []
        n = [max(c[g].rows for c in self.cells.values()) or WITHHELD for g in self.groups]
        for name, cells in self.cells.items():
            result = self.test(name)
            p = "" if result is None else probability(result.pvalue)
            several = [cells[g] for g in self.groups]
            if several[0].counts is not None:
                lines.append((name, [""] * len(self.groups), p))
                shares = [(f"  {v}, n (%)", [(c.counts or {})[v] for c in several]) for v in several[0].counts]
                if any(c.unnamed for c in several):
                    shares.append((f"  {UNNAMED}, n (%)", [c.unnamed for c in several]))
                lines += [
                    (label, [*map(_share, several, counts, [digits] * len(counts))], "") for label, counts in shares
                ]
            else:
                lines.append((f"{name}, mean (SD)", [_mean(c, digits) for c in several], p))
                if 0.5 in self.analysis.quantiles:
                    lines.append((f"{name}, median [Q1, Q3]", [_median(c, digits) for c in several], ""))
            if any(c.missing != 0 for c in several):
                missing = [WITHHELD if c.missing is None else str(c.missing) for c in several]
                lines.append((f"{name}, missing", missing, ""))
        heads = [f"{h} (n = {k})" for h, k in zip(["all", *self.groups[1:]], n, strict=True)]
        tests = bool(self.groups[1:])
        rows = [[*cells, p] if tests else cells for _, cells, p in lines]
        return needed("pandas").DataFrame(rows, [label for label, _, _ in lines], [*heads, "p"] if tests else heads)

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
