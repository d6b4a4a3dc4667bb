"""Describe: counts, means, deviations, quantiles and categories of columns over all sites, by group: a Table 1.

**Reference**: this library's own; sums are Chan, Golub & LeVeque's two passes, "Algorithms for Computing the Sample
Variance", The American Statistician 37, 1983.

**Departures**: a site merges the bins of a histogram until each has its least number of rows, and sends the first and
the last bin of each merger: quantiles lie between the two, and the error that is stated has both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import Client, Cohort, Message, RecipeError, WireError, on_client
from .analysis import Agreement, Analysis, Hello, Json, Moments, Report, named_by, packed, site_of, tensor, unpacked
from .cells import is_text, missing, numbers, texts
from .formulas import check_columns
from .levels import sketched
from .rules import Withheld
from .scales import FINER, banded, exponents_of
from .site import Site

BINS = 1024
"""The most bins of a histogram, over twelve standard deviations."""


FAR = 1e-3
"""A deviation below this share of the mean is not computed from Σx² under secure sums."""


class Question(Message):
    """Down: plain values."""

    values: Json


class Tables(Message):
    """Up: tables of categories, see `medley.statistics.levels`."""

    levels: Float[Tensor, "k m w"]


class Spread(Message):
    """Up: squares and, under secure sums, Σ(x − mean), whether they and quantiles are withheld [cells, 4]; histograms
    [2, cells, bins], see `ends`."""

    squares: Float[Tensor, "c 4"]
    bins: Float[Tensor, "2 c b"]


class Grid(NamedTuple):
    """A histogram's bins: ``bins`` of width 2**``power`` from the ``first``-th on; the outer ones are open."""

    power: int
    first: int
    bins: int


@dataclass
class Cell:
    """One column in one group: rows with and without a value, mean and deviation, quantiles with their largest
    error, rows by category. A figure that a site withholds is None. ``histogram`` has the rows by the first and by the
    last bin in which they may be [2, bins], and the bins.
    """

    n: int | None
    missing: int | None
    mean: float | None = None
    sd: float | None = None
    quantiles: dict[float, tuple[float, float]] | None = None
    counts: dict[str, int | None] | None = None
    histogram: tuple[np.ndarray, Grid] | None = field(default=None, compare=False, repr=False)

    @property
    def rows(self) -> int:
        """Rows with and without a value; 0 if either is withheld."""
        return 0 if self.n is None or self.missing is None else self.n + self.missing

    @property
    def unnamed(self) -> int | None:
        """Rows of categories that no site names, because each has too few rows; None if that is withheld."""
        counts = [] if self.counts is None else [*self.counts.values()]
        if self.counts is None or self.n == 0:
            return 0
        return None if self.n is None or None in counts else self.n - sum(v or 0 for v in counts)


@dataclass(frozen=True)
class Describe(Analysis):
    """A description of columns.

    Attributes:
        columns: their names; "C(name)" for numbers that are categories
        by: a column of groups; empty for none
        where: a condition on the rows, "age >= 18"; empty for all
        quantiles: which quantiles of numbers to compute, as shares of rows between 0 and 1
        ranks: columns of numbers whose groups are compared by a test of ranks, as skewed ones are
        whole: those of ``ranks`` that have whole numbers alone, which may be tied
        smd: whether the table has standardised mean differences
    """

    call = "describe"

    columns: Sequence[str]
    by: str = ""
    where: str = ""
    quantiles: Sequence[float] = (0.25, 0.5, 0.75)
    ranks: Sequence[str] = ()
    whole: Sequence[str] = ()
    smd: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.columns) > 1:  # every group has one site's, or its own, value
            object.__setattr__(self, "columns", tuple(c for c in self.columns if c not in ("site", self.by)))
        if not all(0 < q < 1 for q in self.quantiles):
            raise RecipeError(f"describe(quantiles={self.quantiles}): give numbers between 0 and 1", "quantiles")
        odd = [c for c in self.ranks if c not in self.named] + [c for c in self.whole if c not in self.ranks]
        if isinstance(self.ranks, str) or isinstance(self.whole, str) or odd or (self.ranks and not self.by):
            remedy = "give a list of columns of this table, with by=, and in whole= some of them"
            raise RecipeError(f"describe(ranks={self.ranks!r}, whole={self.whole!r}): {remedy}", "ranks")
        if self.smd and not self.by:
            raise RecipeError(
                "describe(smd=True): differences are between groups; give by=, the column of groups", "smd"
            )
        twice = [name for name in self.named if {name, f"C({name})"} <= {*self.columns}]
        if twice:
            raise RecipeError(f"describe: you named {twice[0]} both as numbers and in C(); name it once", "columns")

    @property
    def named(self) -> dict[str, bool]:
        """Each column's own name, and whether it is under C(). A column that is called so stands in backticks."""
        return {unquoted(c[2:-1] if under_c(c) else c): under_c(c) for c in self.columns}

    def curved(self, column: str) -> bool:
        """Whether sites send a histogram of this column."""
        return bool(self.quantiles) or column in self.ranks

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`; columns may be missing in a row."""
        return (self.by,) if self.by else (), ()

    @property
    def required_columns(self) -> tuple[tuple[str, ...], ...]:
        """See `Analysis.required_columns`: each column has its own rows."""
        return tuple((c, *self.reads[0]) for c in self.named)

    @property
    def numeric(self) -> tuple[str, ...]:
        """See `Analysis.numeric`; other columns of texts are categories."""
        return tuple(self.ranks)

    def round(self, s: Report, clients: Cohort) -> None:
        """Which columns are text, which categories there are, sums by group, then squares and histograms."""
        kinds = np.rint(self.summed(clients, self.agree, Hello(len(clients.ids))).text.numpy())
        categorical = [c for c, k in zip(self.named, kinds, strict=True) if k > 0 or self.named[c]]
        groups = [self.by] if self.by else []
        names = dict.fromkeys(categorical)
        for c in self.ranks:
            if c in names:
                raise RecipeError(f"describe(ranks=...): {c} has categories, which have no ranks", "ranks")
        columns = list(dict.fromkeys([*groups, *names]))
        tables = self.summed(clients, self.name_them, Question(packed(columns))).levels if columns else ()
        levels = {c: named_by(t, c, len(clients.ids)) for c, t in zip(columns, tables, strict=True)}
        numeric = [c for c in self.named if c not in names]
        message: dict[str, Any] = {"levels": levels, "numeric": numeric, "categorical": categorical}
        group_names = ["", *(levels[self.by] if self.by else [])]
        places: list[tuple[str, str, str | None]] = [(c, g, None) for c in numeric for g in group_names]
        message["units"] = self._units(clients, message, [[c, g, 0.0] for c, g, _ in places])
        sums = self.summed(clients, self.count, Question(packed(message))).sums.numpy()
        entries = sums.reshape(-1, 6)  # n, Σx, Σx², withheld, missing, withheld
        if message["units"]:
            entries[: len(places), 1:3] *= 2.0 ** np.outer(message["units"], [1, 2])
        places += [(c, g, v) for c in categorical for g in group_names for v in (None, *levels[c])]
        by = dict(zip(places, entries, strict=True))
        cells: dict[str, dict[str, Cell]] = {c: {} for c in self.named}
        for c, g, v in places:
            e = by[c, g, v]
            if v is None:
                cells[c][g] = Cell(_count(e[0], e[3]), _count(e[4], e[5]), counts={} if c in names else None)
            elif (counts := cells[c][g].counts) is not None:
                counts[v] = _count(e[0], e[3])
        if numeric:
            self._spread(clients, message, {k[:2]: v for k, v in by.items() if k[0] in numeric}, cells)
        s.result = group_names, cells

    def _units(self, clients: Cohort, message: dict[str, Any], means: list[Any]) -> list[int]:
        """The exponents of columns' magnitudes about these means, see `scales`; none without masks."""
        if not self.masked(clients) or not means:
            return []
        table = self.summed(clients, self.magnitudes, Question(packed({**message, "means": means}))).sums.numpy()
        return [int(k) for k in exponents_of(table.reshape(len(means), -1))]

    def _spread(self, clients: Cohort, message: dict[str, Any], by: dict[Any, Any], cells: Any) -> None:
        """Means, deviations and quantiles of columns of numbers."""
        means = {k: float(e[1] / e[0]) if e[0] > 0.5 else 0.0 for k, e in by.items()}
        centres = [[c, g, m] for (c, g), m in means.items()]
        units = self._units(clients, message, centres)
        about = dict(zip(by, units, strict=False))
        grids = {c: _grid(by[c, ""], about.get((c, ""))) for c in message["numeric"]}
        request = {**message, "means": centres, "units": units, "grids": grids}
        up = self.summed(clients, self.spread, Question(packed(request)))
        squares = up.squares.numpy()
        bins = up.bins.numpy()
        if units:  # Σx has not all digits of a mean that is far from 0
            squares[:, :2] *= 2.0 ** np.outer(units, [2, 1])
            n = np.maximum([e[0] for e in by.values()], 1.0)
            squares[:, 0] -= squares[:, 1] ** 2 / n
            means = {k: m + d for (k, m), d in zip(means.items(), squares[:, 1] / n, strict=True)}
        rows = dict(zip(by, range(len(squares)), strict=True))
        for (c, g), k in rows.items():
            cell = cells[c][g]
            if cell.n is None:
                continue
            cell.mean = means[c, g] if cell.n else None
            cell.sd = math.sqrt(max(squares[k, 0], 0.0) / (cell.n - 1)) if cell.n > 1 else None
            # The histogram of all rows is the sum of the groups' histograms.
            mine = [k] if g or not self.by else [j for (d, h), j in rows.items() if d == c and h]
            if squares[mine, 3].sum() < 0.5 and cell.n:
                ends = bins[:, mine].sum(1)
                cell.histogram = np.rint(ends), Grid(*grids[c])
                cell.quantiles = {q: quantile(ends, Grid(*grids[c]), q, cell.n) for q in self.quantiles}

    @on_client
    def agree(self, me: Client[Any], request: Hello) -> Agreement:
        """Which columns are text here; the rows are counted later."""
        site = site_of(me)
        site.rows((), self.where)
        check_columns(site.columns, [*self.named, *self.reads[0]], site.name)
        text = [float(is_text(site.columns, c, site.name)) for c in self.named]
        return Agreement(tensor(text), tensor(np.zeros((0, 0, 0))), tensor(np.zeros((request.sites, 3))))

    @on_client
    def name_them(self, me: Client[Any], request: Question) -> Tables:
        """Name the categories that have at least the site's least number of rows; the others stay unnamed."""
        site = site_of(me)
        used, _ = site.rows((), self.where)
        out = []
        for c in self._mine(unpacked(request.values)):
            present = used & ~missing(site.columns, c)
            values, counts = np.unique(texts(site.at(present), c, site.name).astype(str), return_counts=True)
            out.append(sketched([str(v) for v in values[counts >= site.rules.rows]], f"{site.name}: {c}"))
        return Tables(tensor(np.array(out)))

    @on_client
    def count(self, me: Client[Any], request: Question) -> Moments:
        """Rows, sums and missing values of each cell, in the order that `round` reads them."""
        site = site_of(me)
        message = unpacked(request.values)
        self._mine([*message["numeric"], *message["categorical"]])
        groups = self._groups(site, message["levels"])
        out = []
        units = iter(message.get("units") or repeat(0))
        for c in message["numeric"]:
            x = numbers(site.columns, c, site.name)
            for k, (rows, has_count) in enumerate(groups):
                present = rows & ~np.isnan(x)
                may = has_count and self._may(site, c, x, present)
                by = self.by if 0 < k < len(groups) - 1 else ""
                gone = self._missing(site, c, rows, has_count)
                scale = 2.0 ** -next(units)
                sums = [0, 0, 0, 1]
                if may:
                    sums = [present.sum(), *site.moments(c, x, present, (1, 2), by) * [scale, scale**2], 0]
                out.append([*sums, *gone])
        for c in message["categorical"]:
            values = texts(site.columns, c, site.name)
            filled = ~missing(site.columns, c)
            most = filled.sum() * float(np.log2(max(site.columns[c].nunique(), 2)))  # bits that its rows can hide
            for rows, has_count in groups:
                in_group = rows & filled
                cells = [in_group, *(in_group & (values == v) for v in message["levels"][c])]
                allowed = [has_count and site.may(c, cell) for cell in cells]
                for cell in [cell for cell, may in zip(cells[1:-1], allowed[1:-1], strict=True) if may and cell.any()]:
                    if site.rules.rounded and (not self.by or rows is not groups[0][0]):  # the others follow from these
                        of = site.digest(cell, np.ones(int(cell.sum())))
                        site.spend(c, {f"count {of}": float(np.log2(1 + 3 * np.sqrt(in_group.sum())))}, most)
                for k, (cell, may) in enumerate(zip(cells, allowed, strict=True)):
                    gone = self._missing(site, c, rows, has_count) if k == 0 else (0, 0)
                    out.append([cell.sum() if may else 0, 0, 0, 0 if may else 1, *gone])
        return Moments(tensor(np.array(out, dtype=float).reshape(-1)))

    def _mine(self, columns: list[str]) -> list[str]:
        """These columns. Raises WireError for a column that is not in this description."""
        other = {*columns} - {*self.named, self.by}
        if other:
            raise WireError(f"describe: the server asks for {min(other)!r}, a column that is not in this description")
        return columns

    def _may(self, site: Site, c: str, x: np.ndarray, present: np.ndarray) -> bool:
        """Whether sums of x and x² may leave; if x has at most three values, they reveal how many rows have each."""
        values = np.unique(x[present])
        sets = [present, *(present & (x == v) for v in values if len(values) <= 3)]
        return all([site.may(c, rows) for rows in sets])

    def _missing(self, site: Site, c: str, rows: np.ndarray, has_count: bool) -> tuple[int, int]:
        """Rows without a value, and whether their number is withheld."""
        absent = rows & missing(site.columns, c)
        return (int(absent.sum()), 0) if has_count and site.may(f"{c} missing", absent) else (0, 1)

    def _groups(self, site: Site, levels: dict[str, list[str]]) -> list[tuple[np.ndarray, bool]]:
        """Masks [n]: of the rows used, then of each group's; and whether the number of these rows, a figure of ``by``,
        may leave. With ``by``, rows without a group are left out.
        """
        used, _ = site.rows((), self.where)
        if not self.by:
            return [(used, True)]
        values = texts(site.columns, self.by, site.name)
        used = used & ~missing(site.columns, self.by)
        groups = [used, *(used & (values == v) for v in levels[self.by])]
        return [(rows, site.may(self.by, rows)) for rows in groups]

    @on_client
    def magnitudes(self, me: Client[Any], request: Question) -> Moments:
        """The site's table of the columns' magnitudes about the means, in each group."""
        site = site_of(me)
        message = unpacked(request.values)
        self._mine([c for c, _, _ in message["means"]])
        groups = dict(
            zip(["", *message["levels"].get(self.by, [])], self._groups(site, message["levels"]), strict=True)
        )
        out = []
        for c, g, mean in message["means"]:
            x = numbers(site.columns, c, site.name)
            rows, has_count = groups[g]
            present = rows & ~np.isnan(x)
            may = has_count and self._may(site, c, x, present)
            if may and site.rules.rounded:
                site.spend(c, {"magnitude " + site.digest(present, np.ones(int(present.sum()))): 1.0})
            out.append(banded(x[present & may, None] - mean))
        return Moments(tensor(np.array(out).ravel()))

    @on_client
    def spread(self, me: Client[Any], request: Question) -> Spread:
        """Squares about the means, and histograms."""
        site = site_of(me)
        message = unpacked(request.values)
        self._mine([c for c, _, _ in message["means"]])
        groups = dict(
            zip(["", *message["levels"].get(self.by, [])], self._groups(site, message["levels"]), strict=True)
        )
        most = max(grid[2] for grid in message["grids"].values())
        squares = []
        bins = np.zeros((2, len(message["means"]), most))
        units = message.get("units") or repeat(0)
        for k, ((c, g, mean), unit) in enumerate(zip(message["means"], units, strict=False)):
            x = numbers(site.columns, c, site.name)
            grid = Grid(*message["grids"][c])
            rows, has_count = groups[g]
            present = rows & ~np.isnan(x)
            may = has_count and self._may(site, c, x, present)
            has_curve = may and site.rules.quantiles and self.curved(c) and (bool(g) or not self.by)
            shown = has_curve and curve_may(site, c, present, str(tuple(grid)))
            if shown:
                bins[:, k, : grid.bins] = ends(x[present], grid, site.rules.rows)
            by = self.by if g and g != [*groups][-1] else ""
            about = site.moments(c, x - mean, present, (2,), by)[0] if may else 0.0
            off = (
                site.moments(c, x, present, (1,), by)[0] - present.sum() * mean if may and message.get("units") else 0.0
            )
            squares.append([about * 4.0**-unit, off * 2.0**-unit, 0.0 if may else 1.0, 0.0 if shown else 1.0])
        return Spread(tensor(squares), tensor(bins))


def under_c(column: str) -> bool:
    """Whether a column is written as C(name)."""
    return column.startswith("C(") and column.endswith(")")


def unquoted(column: str) -> str:
    """A column's name without the backticks around it."""
    return column[1:-1] if column[:1] == column[-1:] == "`" and len(column) > 2 else column


def _count(value: float, withheld: float) -> int | None:
    return None if withheld > 0.5 else round(float(value))


def _grid(sums: Any, unit: int | None) -> Grid:
    """Bins over six standard deviations on either side of the mean, of a width that is a power of 2.

    Under secure sums Σx² may lack the digits for a deviation; it is then estimated from the magnitude about the mean.
    """
    n, total, squares = map(float, sums[:3])
    mean = total / n if n > 0.5 else 0.0
    sd = math.sqrt(max(squares / n - mean**2, 0.0)) if n > 0.5 else 0.0
    if unit is not None and sd < FAR * abs(mean):
        sd = 2.0 ** (unit + FINER) if unit else 0.0
    width = 12 * sd / BINS if sd > 1e-12 * abs(mean) else (abs(mean) or 1.0) / 2**20
    power = math.ceil(math.log2(width))
    first = math.floor((mean - 6 * sd) / 2.0**power)
    return Grid(power, first, math.floor((mean + 6 * sd) / 2.0**power) - first + 1)


def curve_may(site: Site, c: str, rows: np.ndarray, grid: str, what: str = "") -> bool:
    """Whether a histogram or curve may leave: one grid for a column, of sets that are the same or share no row.

    Raises Withheld if it may not leave and ``what`` names it.
    """
    if site.rules.rows <= 1 or not rows.any():
        return True
    key = f"{c} curve by {grid}"
    register = site.register
    with register.reading():
        mine = register.persons(register.spread(rows))
        for k, sets in register.sets.items():
            others = map(register.persons, sets.values() if k.startswith(f"{c} curve by ") else ())
            if any((mine & s).any() and not (k == key and (mine == s).all()) for s in others):
                if what:
                    raise Withheld(
                        f"{site.name} withholds {what} of {c}: a curve of some of these rows has left before, or "
                        f"quantiles, or a Cox model's cuts; of these a site gives one for a column, of one set of rows"
                    )
                return False
        register.add([key], [rows])
    return True


def ends(x: np.ndarray, grid: Grid, least: int) -> np.ndarray:
    """Rows by the first and by the last bin of mergers of at least ``least`` rows [2, bins]."""
    place = np.clip(np.floor(np.sort(x) / 2.0**grid.power).astype(int) - grid.first, 0, grid.bins - 1)
    starts, stops = mergers(place, least)
    out = np.zeros((2, grid.bins))
    out[0, place[starts]] = stops - starts
    out[1, place[stops - 1]] = stops - starts
    return out


def mergers(place: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups of successive places (given in ascending order), at least ``least`` each: where each group starts, and
    where the next one does. Equal places stay together.
    """
    n = len(place)
    last = np.searchsorted(place, place, side="right").tolist()  # where the next place is
    starts = list[int]()
    start = 0
    while start < n:
        starts.append(start)
        stop = last[min(start + least, n) - 1]
        start = n if n - stop < least else stop
    return np.array(starts, int), np.array([*starts[1:], n][: len(starts)], int)


def quantile(ends: np.ndarray, grid: Grid, q: float, n: int) -> tuple[float, float]:
    """The q-th quantile, between ordered values as NumPy has it: its estimate, and its largest error.

    The error is infinite if the quantile lies among the outermost rows, beyond six standard deviations.
    """
    lower, upper = np.cumsum(ends, axis=1)
    h = (n - 1) * q
    a = int(np.searchsorted(lower, math.floor(h + 1e-9) + 1 - 0.5))
    b = int(np.searchsorted(upper, math.ceil(h - 1e-9) + 1 - 0.5))
    if grid.bins > 3 and (a == 0 or b >= grid.bins - 1):  # the outer bins are open
        return math.nan, math.inf
    left = (grid.first + a) * 2.0**grid.power
    right = (grid.first + min(b, grid.bins - 1) + 1) * 2.0**grid.power
    return (left + right) / 2, (right - left) / 2
