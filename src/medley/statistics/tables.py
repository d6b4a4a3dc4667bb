"""A Table 1: columns by group, with tests, from what the sites told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .describe import Cell, Describe, Found
from .fit import Test
from .formulas import needed

WITHHELD = "withheld"
"""What stands in the place of a figure that a site withholds."""


@dataclass(eq=False)
class Description:
    """A description of columns over all sites.

    Attributes:
        asked: the analysis
        groups: the groups' names
        cells: a `medley.statistics.describe.Cell` by column and group; "" is the group of all
        exchanges, bytes_down, bytes_up: the costs
    """

    asked: Describe
    found: Found
    exchanges: int
    bytes_down: int
    bytes_up: int

    @property
    def groups(self) -> list[str]:
        """The groups' names; none without ``by``."""
        return self.found.groups[1:]

    @property
    def cells(self) -> dict[str, dict[str, Cell]]:
        """Cells by column and group."""
        return self.found.cells

    def test(self, column: str) -> Test | None:
        """Whether the groups differ: Welch's t for two, one-way ANOVA for more, χ² for categories; None if withheld."""
        cells = [self.cells[column][g] for g in self.groups]
        if len(cells) < 2:
            return None
        if cells[0].counts is not None:
            return _chi2([[*(c.counts or {}).values()] for c in cells])
        if any(c.n is None or c.n < 2 or c.mean is None or c.sd is None for c in cells):
            return None
        n, m, v = (np.array([getattr(c, k) for c in cells], dtype=float) for k in ("n", "mean", "sd"))
        return _welch(n, m, v**2) if len(cells) == 2 else _anova(n, m, v**2)

    def frame(self, digits: int = 1) -> Any:
        """The table: a row for each column of numbers and each category, a column for all and for each group."""
        pandas = needed("pandas")
        rows: dict[str, list[str]] = {}
        whole = self.found.groups
        totals = [{c[g].n + c[g].missing for c in self.cells.values() if None not in (c[g].n, c[g].missing)} for g in whole]  # type: ignore[operator]
        n = [max(k) if k else WITHHELD for k in totals]
        for name, cells in self.cells.items():
            found = self.test(name)
            p = "" if found is None else f"{found.pvalue:.3f}" if found.pvalue >= 0.001 else "<0.001"
            tail = [p] if self.groups else []
            several = [cells[g] for g in whole]
            if several[0].counts is not None:
                rows[name] = [*([""] * len(whole)), *tail]
                for level in several[0].counts:
                    rows[f"  {level}, n (%)"] = [*(_share(c, level, digits) for c in several), *([""] if tail else [])]
            else:
                rows[f"{name}, mean (SD)"] = [*(_mean(c, digits) for c in several), *tail]
                if 0.5 in self.asked.quantiles:
                    rows[f"{name}, median [Q1, Q3]"] = [*(_median(c, digits) for c in several), *([""] if tail else [])]
            if any(c.missing != 0 for c in several):
                said = [WITHHELD if c.missing is None else str(c.missing) for c in several]
                rows[f"{name}, missing"] = [*said, *([""] if tail else [])]
        heads = ["all", *self.groups]
        names = [f"{h} (n = {k})" for h, k in zip(heads, n, strict=True)]
        return pandas.DataFrame.from_dict(rows, orient="index", columns=[*names, *(["p"] if self.groups else [])])

    def summary(self) -> str:
        """The table as text, with the largest errors of its quantiles and what is withheld."""
        cells = [(name, c) for name, by in self.cells.items() for c in by.values()]
        errors: dict[str, float] = {}
        for name, c in cells:
            for _, error in (c.quantiles or {}).values():
                errors[name] = max(errors.get(name, 0.0), error)
        said = ", ".join(f"{name} ±{e:.2g}" for name, e in errors.items())
        hidden = any(c.n is None or c.missing is None or None in (c.counts or {}).values() for _, c in cells)
        notes = [f"quantiles to within: {said}"] if said else []
        notes += ["withheld: a site's rows are too few, or could be told from other figures"] if hidden else []
        return "\n".join([self.frame().to_string(), *notes])

    def latex(self, digits: int = 1) -> str:
        """The table in LaTeX, for booktabs."""
        frame = self.frame(digits)
        escaped = lambda s: "".join(f"\\{c}" if c in "_%&#$" else c for c in s).replace("<", "$<$")
        rows = [
            " & ".join(map(escaped, [i, *row])) for i, row in zip(frame.index, frame.to_numpy().tolist(), strict=True)
        ]
        head = " & ".join(["", *map(escaped, frame.columns)])
        lines = [rf"\begin{{tabular}}{{l{'r' * frame.shape[1]}}}", r"\toprule", head + r" \\", r"\midrule"]
        return "\n".join([*lines, *(row + r" \\" for row in rows), r"\bottomrule", r"\end{tabular}"])


def _mean(c: Cell, digits: int) -> str:
    if c.n is None:
        return WITHHELD
    if c.mean is None:
        return "–"
    return f"{c.mean:.{digits}f}" + (f" ({c.sd:.{digits}f})" if c.sd is not None else "")


def _median(c: Cell, digits: int) -> str:
    if c.n == 0:
        return "–"
    if c.quantiles is None:
        return WITHHELD
    values = [f"{c.quantiles[q][0]:.{digits}f}" if q in c.quantiles else "" for q in (0.5, 0.25, 0.75)]
    return f"{values[0]} [{values[1]}, {values[2]}]"


def _share(c: Cell, level: str, digits: int) -> str:
    count = (c.counts or {})[level]
    if count is None:
        return WITHHELD
    return f"{count}" + (f" ({100 * count / c.n:.{digits}f})" if c.n else "")


def _welch(n: np.ndarray, m: np.ndarray, v: np.ndarray) -> Test | None:
    from scipy.stats import t

    e = v / n
    if not e.sum() > 0:
        return None
    statistic = float((m[0] - m[1]) / np.sqrt(e.sum()))
    df = float(e.sum() ** 2 / (e**2 / (n - 1)).sum())
    return Test(statistic, df, float(2 * t.sf(abs(statistic), df)))


def _anova(n: np.ndarray, m: np.ndarray, v: np.ndarray) -> Test | None:
    from scipy.stats import f

    k, whole = len(n), float(n @ m / n.sum())
    between, within = float(n @ (m - whole) ** 2) / (k - 1), float((n - 1) @ v) / (n.sum() - k)
    if not within > 0:
        return None
    return Test(between / within, k - 1, float(f.sf(between / within, k - 1, n.sum() - k)))


def _chi2(counts: Sequence[Sequence[int | None]]) -> Test | None:
    from scipy.stats import chi2_contingency

    if any(v is None for row in counts for v in row):
        return None
    table = np.array(counts, dtype=float)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    if min(table.shape) < 2:
        return None
    found = chi2_contingency(table, correction=False)
    return Test(float(found.statistic), int(found.dof), float(found.pvalue))
