"""A site: its rows, its rules, and the register of the sums that have left."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from .cells import Columns, numbers, table
from .formulas import check_columns, chosen, complete
from .likeness import warn_of_copies
from .register import Register
from .rules import Rules, Withheld
from .splines import COLUMN

DOMINANT = 0.9
"""The largest share of a column's squared deviations that one row may have."""

SHARE = 1e-3
"""The step of a sum's grid as a share of its standard deviation."""

APART = 6.0
"""How many standard deviations a sum may be from a guess."""


def share_of(bits: float, least: float, most: float) -> float:
    """The step of a sum's grid at which it tells so many bits, as a share of its standard deviation, within limits.

    Sites have any number of rows, and so of bits: 2**-bits is then 0, where 2**bits would be an OverflowError.
    """
    return min(max(least, APART * math.exp2(-bits)), most)


FEW_DOMINANT = 0.995
"""The same for the least number of rows minus one, together."""


@dataclass
class Site:
    """One site's rows, as its client reads them: instead of an objective. ``frame`` is as it was given, ``columns`` has
    the site's name in a column, too. ``kept`` belongs to the last analysis, ``imputed`` has the numbers of rows that
    lacked a column before it was imputed.
    """

    name: str
    frame: Any
    rules: Rules
    register: Register
    dropped: int = 0
    n: int = 0
    d: int = 1
    work: float = 0.0
    own: bool = False
    imputed: Mapping[str, int] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)
    picked: tuple[Any, tuple[np.ndarray, int]] | None = field(default=None, repr=False)
    _columns: Columns | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, name: str, data: Any, rules: Rules, needs: Sequence[str], register: Any) -> Site:
        """The site of a frame.

        Args:
            needs: columns without which a row is left out of the study
            register: the file that records what has left, or None
        """
        frame = table(data, name)
        check_columns(frame, needs, name)
        complete_rows = complete(frame, needs)
        dropped = int((~complete_rows).sum())
        if dropped:
            frame = frame[complete_rows]  # its index has the rows' numbers in the site's own data
        history = Register(frame, register, rules.rows, rules.id)
        out = cls(name, frame, rules, history, dropped, len(frame), own="site" in frame.columns)
        if not rules.id:
            warn_of_copies(out.columns, name)
        return out

    @property
    def columns(self) -> Columns:
        """The columns of the frame, each read once, and the site's name in a column `site`."""
        if self._columns is None or self._columns.frame is not self.frame:
            self._columns = Columns(self.frame, site="" if self.own else self.name)
        return self._columns

    def rows(self, columns: Sequence[str], where: str) -> tuple[np.ndarray, int]:
        """The rows [n] of a condition in which no column is missing, and the number of rows with a missing value.

        Raises Withheld if the rows are fewer than the site's least number, or the condition leaves out only a few.
        """
        request = tuple(columns), where
        if self.picked is None or self.picked[0] != request:
            self.picked = request, self._picked(columns, where)
        return self.picked[1]

    def _picked(self, columns: Sequence[str], where: str) -> tuple[np.ndarray, int]:
        """As `rows`, which has the last answer: each exchange of an analysis wants the same rows."""
        check_columns(self.columns, columns, self.name)
        every_row = np.ones(self.n, bool)
        picked, parts, selecting = chosen(self.columns, where, self.name) if where else (every_row, [every_row], [])
        # Rows that are alike in each comparison: so a refusal does not depend on what one known row has in another.
        cells = parts
        if where:
            _, kinds = np.unique(np.array(parts), axis=1, return_inverse=True)
            cells = [kinds.ravel() == k for k in np.unique(kinds)]
        admitted = picked if picked.any() else np.arange(self.n) == 0  # none is refused as one is
        what = f"where={where!r}" if where else "its rows"
        self.admit("", [every_row, *cells, admitted], what)
        for column in selecting:  # how many rows it picks is a figure of these columns
            self.admit(column, [picked], what)
        used = picked & complete(self.columns, columns) if columns else picked
        self.least(int(used.sum()), f"{', '.join(columns)} without missing values")
        used.setflags(write=False)
        return used, int(picked.sum() - used.sum())

    def at(self, used: np.ndarray) -> Columns:
        """The columns of these rows."""
        return self.columns.at(used)

    def column(self, used: np.ndarray, name: str, default: float) -> np.ndarray:
        """A column of numbers on these rows; ``default`` if it has no name."""
        remedy = "recode it there as numbers, an event as 0 and 1"  # these columns cannot be categories
        return numbers(self.at(used), name, self.name, remedy) if name else np.full(int(used.sum()), default)

    def least(self, count: int, what: str, kind: str = "rows") -> None:
        """Raise Withheld if a figure is of ``count`` rows, fewer than the site's least number for this kind of
        figure.
        """
        least: int = getattr(self.rules, kind)
        if count < least:
            raise Withheld(
                f"{self.name} withholds: {what} are fewer than {least} {kind}, the least number that it allows "
                f"for a figure; leave the site out, study.without({self.name!r}), or widen the condition"
            )

    def admit(self, key: str, sets: Sequence[np.ndarray], what: str, kind: str = "rows") -> None:
        """Record that sums of ``key`` over these rows leave; raise Withheld if they reveal too few rows."""
        least: int = getattr(self.rules, kind)
        if not self.register.admit(key, sets, least):
            why = ""
            remedy = (
                "ask for the same rows as before (if gaps are the difference, complete=[...] must name all analyses' "
                "columns before the first figure leaves; later this helps only if the site's owner begins a register)"
            )
            if self.imputed:
                why = f" ({', '.join(f'{c} is imputed in {n}' for c, n in self.imputed.items())}: few, by category)"
                few = min(self.imputed, key=lambda c: self.imputed[c])
                remedy = f"impute fewer columns, leave out rows that lack one, a study's complete=[{few!r}]"
            raise Withheld(
                f"{self.name} withholds: {what}, together with what has left before, would reveal something "
                f"about fewer than {least} {kind}{why}; merge categories, {remedy}, or study.without({self.name!r})"
            )

    def may(self, key: str, rows: np.ndarray, kind: str = "rows") -> bool:
        """Whether a sum of ``key`` over these rows may leave; if so, record that it leaves."""
        return self.register.admit(key, [rows], getattr(self.rules, kind))

    def rounded(
        self, column: str, values: np.ndarray, spread: np.ndarray, keys: Sequence[str], most: float,
        share: float | None = None, prior: float = 0.0,
    ) -> np.ndarray:  # fmt: skip
        """Sums [k] of a column on grids, powers of two of about a share of their standard deviations ``spread``.

        The bits that they tell are in the register, by key; ``prior`` is how far apart the values of a sum may be, by
        default six deviations. Raises Withheld if the column's bits are more than ``most``.
        """
        if not self.rules.rounded:
            return values
        wide = np.maximum(spread, 1e-300)
        step = np.where(spread > 0, 2.0 ** np.ceil(np.log2((share or SHARE) * wide)), 0.0)
        size = np.where(step > 0, step, 1.0)
        bits = np.where(step > 0, np.log2(np.maximum(np.maximum(prior, APART * spread) / size, 1.0)), 0.0)
        self.spend(column, dict(zip(keys, bits.tolist(), strict=True)), most)
        out: np.ndarray = np.where(step > 0, np.rint(values / size) * step, values)
        return out

    def moments(
        self, column: str, x: np.ndarray, rows: np.ndarray, powers: Sequence[int], by: str = "", about: float = 0.0
    ) -> np.ndarray:
        """Rounded sums of powers of x − ``about`` [n] over these rows; ``by``: a column that picks them."""
        terms = (x[rows] - about)[:, None] ** np.array(powers)
        n = int(rows.sum())
        of = self.digest(rows, np.ones(int(rows.sum())))
        binary = len(np.unique(x[rows])) <= 2  # in whatever code
        if not self.rules.rounded or not n:
            return np.asarray(terms.sum(0))
        if binary:  # a count
            spread = x[rows].std() / (np.ptp(x[rows]) or 1.0)
            self.spend(column, {f"count {of}": float(np.log2(1 + APART * np.sqrt(n) * spread))}, n)
            return np.asarray(terms.sum(0))
        keys = [f"{column} {k} {of}" + (f" about {about:.17g}" if about else "") for k in powers]
        if by:
            self.spend(by, dict.fromkeys(keys, float(np.log2(APART / SHARE))))
        return self.rounded(column, terms.sum(0), np.sqrt(n) * terms.std(0), keys, np.inf)

    def spend(self, column: str, bits: Mapping[str, float], most: float = np.inf) -> None:
        """Add the bits that leave about a column to its account. Raises Withheld if all are more than ``most``."""
        if not self.register.spend(column, bits, most):
            raise Withheld(
                f"{self.name} withholds: sums of {column} would tell more bits than it has rows, so that whoever knows "
                f"the other columns could find {column} of each row; ask what has been asked before, or one question "
                f"for all, or study.without({self.name!r})"
            )

    def spend_exact(self, column: str, key: str, numbers: int) -> None:
        """Add this many numbers, each with all its digits, to a column's account."""
        if self.rules.rounded:
            self.spend(column, {blake2b(key.encode(), digest_size=8).hexdigest(): 52.0 * numbers})

    def digest(self, used: np.ndarray, values: np.ndarray) -> str:
        """A digest of the coefficients of a sum over these rows, in whatever order they are."""
        rows = values
        if not used.all():
            rows = np.zeros(self.n)
            rows[used] = values
        size = float(np.abs(values).max(initial=0.0)) or 1.0
        return blake2b(self.register.ordered(np.rint(rows / size * 1e8)).tobytes(), digest_size=8).hexdigest()

    def check_size(self, parameters: int, rows: int, everywhere: int) -> None:
        """Raise Withheld if a fit has too many parameters for the rows here, or for all sites' rows."""
        n = everywhere if self.rules.pooled else rows
        share = self.rules.parameters
        if parameters > share * n:
            raise Withheld(
                f"{self.name} withholds: {parameters} parameters of {n} rows are more than its share of {share:.3g}; "
                "leave out columns or merge categories"
            )

    def admit_fit(
        self, used: np.ndarray, X: np.ndarray, names: Sequence[str], keys: Sequence[str], event: np.ndarray | None,
        squares: bool = False, beside: Mapping[str, np.ndarray] | None = None, outcome_column: str = "",
    ) -> None:  # fmt: skip
        """Record that sums over the rows of a fit leave; raise Withheld, naming the column, if they may not.

        Args:
            used: the fit's rows [n]; the next arguments have one entry for each
            keys: the columns that are summed
            event: whether a row has the event; None for an outcome without events
            squares: whether squared residuals are summed over pairs of categories
            beside: weights, offsets and exposures, by name
            outcome_column: the column that has the event; by default the first of ``keys``
        """
        self._refuse_other_knots(names)
        self._refuse_single_row(X)
        columns = dict(zip([*names, *(beside or {})], [*X.T.copy(), *(beside or {}).values()], strict=True))
        cells = list[np.ndarray]()
        split = list[str]()
        two = list[tuple[str, np.ndarray]]()
        known = [key for key in self.register.sets if key.startswith("function of ")]
        most = 2 * (len(columns) + len(known)) + 1
        distinct_values = {name: distinct(x, most) for name, x in columns.items()}
        many = {name: x for name, x in columns.items() if len(distinct_values[name]) > 2}
        functions = _functions([*many], keys, [*(beside or {})])
        earlier = {*functions.values(), *known}
        for name, x in columns.items():
            values = distinct_values[name]
            if len(values) > 2:
                self.dominated(x, name)
            # Sums of x and of x² tell how many rows have each of three values; of x² beside x, each of five.
            few = 2 < len(values) <= 2 * len(many) + 1 and sum(_follows(x, other) for other in many.values())
            if name in functions:  # functions of earlier fits are known, too
                few = max(few, sum(key.startswith(functions[name].partition(":")[0] + ":") for key in earlier))
            if 1 < len(values) <= 2 * max(1, few) + 1:
                mine = [within_used(used, x == v) for v in values]
                for cell in mine:
                    self.cell(cell, name)
                cells += mine[1:]  # the others' rest
                split += [name] if name in names else []
                two += [(name, mine[1])] if len(values) == 2 else []
        pairs = [a & b for (i, a), (j, b) in itertools.combinations(two, 2) if i != j]
        sets = unique_sets([used, *cells, *pairs])
        with self.register.reading():
            unlike: dict[frozenset[bytes], str] = {frozenset(self.register.sets.get(key, {})): key for key in keys}
        for key in unlike.values():
            self.admit(key, sets, f"the categories of {_short(split)}" if split else "its rows")
        self.register.add((*keys, *functions.values()), sets)
        if event is None:
            return
        by = f" by {_short(split)}" if split else ""
        happened = list[np.ndarray]()
        for outcome, kind in ((event, "with"), (~event, "without")):
            there = within_used(used, outcome)
            rows = [s & there for s in (sets if squares else unique_sets([used, *cells]))]
            self.admit(f"{keys[0]} {kind}", rows, f"rows {kind} the event{by}", "events")
            happened += rows
        self.admit_events(outcome_column or keys[0], happened, f"rows by event{by.replace(' by', ' and')}")

    def admit_events(self, column: str, sets: Sequence[np.ndarray], what: str) -> None:
        """The same for rows with or without an event, as figures of the column that has it: a table of the column
        tells how many all of them are. Not if the site allows fewer events than rows.
        """
        if self.rules.events >= self.rules.rows:
            self.admit(column, sets, what)

    def cell(self, cell: np.ndarray, name: str) -> None:
        """Raise Withheld for a value of a column with few rows."""
        if 0 < np.count_nonzero(cell) < self.rules.rows:
            raise Withheld(
                f"{self.name} withholds: a value of {name} has fewer than {self.rules.rows} rows; merge it with "
                f"another, or study.without({self.name!r})"
            )

    def combinations(self, X: np.ndarray, further: int = 0) -> None:
        """If there are few combinations of categories, raise Withheld for a combination with few rows.

        Rows of one combination have one weight. If weights differ, the information is t equations for their numbers,
        and ``further`` sums are as many more.
        """
        if not len(X) or any(len(distinct(x, 7)) > 7 for x in X.T):
            return
        kinds, which = np.unique(X, axis=0, return_inverse=True)
        p = X.shape[1]
        if len(kinds) <= p * (p + 1) / 2 + 1 + further:
            for k in range(len(kinds)):
                self.cell(which.ravel() == k, f"combination {k + 1} of the columns")

    def dominated(self, x: np.ndarray, name: str) -> None:
        """Raise Withheld if a few rows have nearly all of a column's spread."""
        apart = x - x[:1]  # whose variance has no rounding errors of the mean, of a column that hardly varies
        if (self.rules.rows - 1) * np.ptp(x) ** 2 < 0.99 * DOMINANT * len(x) * apart.var():
            return  # about the median the largest square is no larger than this, and the sum no smaller
        squares = (x - np.median(x)) ** 2
        if (self.rules.rows - 1) * squares.max() < 0.99 * DOMINANT * squares.sum():
            return
        squares = np.sort(squares)[::-1]
        for few, share in ((1, DOMINANT), (self.rules.rows - 1, FEW_DOMINANT)):
            if self.rules.rows > 1 and squares[:few].sum() > share * squares.sum() and len(np.unique(x)) > 2:
                raise Withheld(
                    f"{self.name} withholds: {'one row has' if few == 1 else f'{few} rows have'} more than {share:.3g} "
                    f"of the spread of {name}; take its logarithm, or leave out such rows"
                )

    def _refuse_other_knots(self, names: Sequence[str]) -> None:
        """Raise Withheld for a spline of a column of which one with other knots has left: a few fits with knots near
        each other would determine each value between them.
        """
        if self.rules.rows <= 1:
            return
        for match in filter(None, map(COLUMN.fullmatch, names)):
            _, column, knots, _ = match.groups()
            used = self.register.note(f"knots of {column}", functools.partial(str, knots))
            if used != knots:
                raise Withheld(
                    f"{self.name} withholds: a spline of {column} with other knots has left before; give the same: "
                    f"{used}"
                )

    def _refuse_single_row(self, X: np.ndarray) -> None:
        """Raise Withheld if a combination of columns is 0 in all rows except one."""
        X = X / np.maximum(np.abs(X.T.copy()).max(1), 1e-300)
        if np.square(X).sum(1).max(initial=0.0) < 0.5 * np.linalg.eigvalsh(X.T @ X)[0]:
            return  # no row has that share of any combination
        u, size, _ = np.linalg.svd(X, full_matrices=False)
        leverage = (u[:, size > 1e-10 * size[0]] ** 2).sum(1)
        if self.rules.rows > 1 and leverage.max() > 1 - 1e-9:
            raise Withheld(
                f"{self.name} withholds: one row decides a coefficient alone; merge categories, or study.without("
                f"{self.name!r})"
            )

    def effective(self, weights: np.ndarray, X: np.ndarray, kind: str = "rows") -> None:
        """Raise Withheld if weights, chosen by the server, let fewer rows than the least number decide the sums.

        Of rows with the event, or of those without it, there may be no more than that number: none may dominate.
        """
        least: int = getattr(self.rules, kind)
        if least <= 1 or not weights.any():
            return
        shares = weights * np.square(np.ascontiguousarray(X.T))  # of rows in a column, so in a category
        k = min(least - 1, len(weights))
        totals = shares.sum(1)
        dominated = k * shares.max(1) >= 0.99 * DOMINANT * totals  # it may be
        if dominated.any():
            few = np.partition(shares, -k, axis=1)[:, -k:]
            dominated = (few.max(1) > DOMINANT * totals) | (few.sum(1) > FEW_DOMINANT * totals)
        uneven = kind == "rows" and weights.sum() ** 2 < (least - 1e-9) * (weights @ weights)
        if uneven or dominated.any():
            raise Withheld(
                f"{self.name} withholds: at these coefficients and weights fewer than {least} rows decide the "
                "sums; either a column nearly separates the outcomes, or the server asks for coefficients of "
                "its own"
            )


def distinct(x: np.ndarray, most: int) -> np.ndarray:
    """The distinct values of a column [n] if they are at most so many, else more of them than that."""
    some = np.unique(x[: 2 * most])
    return some if len(some) > most else np.unique(x)


def unique_sets(sets: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The sets of rows, bool [n] each, that are not empty, each once."""
    return [*{s.tobytes(): s for s in sets if s.any()}.values()]


def within_used(used: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows [n] of the site, from rows of its ``used``."""
    if used.all():
        return np.array(rows, bool)
    out = np.zeros(len(used), bool)
    out[np.flatnonzero(used)] = rows
    return out


def _functions(names: Sequence[str], keys: Sequence[str], extras: Sequence[str]) -> dict[str, str]:
    """The register's keys for columns that are functions of a single column of the frame."""
    longest = "|".join(re.escape(k) for k in sorted(keys, key=len, reverse=True))  # fu.age is not a function of age
    of = {name: [*dict.fromkeys(re.findall(rf"(?<!\w)(?:{longest})(?!\w)", name))] for name in names}
    return {name: f"function of {k[0]}: {name} {sorted(extras)}" for name, k in of.items() if len(k) == 1}


def _follows(x: np.ndarray, other: np.ndarray) -> bool:
    """Whether equal entries of x are equal in ``other``, as those of x² are."""
    kinds, of = np.unique(x, return_inverse=True)
    others, of_other = np.unique(other, return_inverse=True)
    return len(np.unique(of * len(others) + of_other)) == len(kinds)


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
