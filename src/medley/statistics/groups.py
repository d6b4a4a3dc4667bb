"""The rules of a site for sums by group of rows, as patients are with several visits: they are figures of groups.

Sums leave by stratum, of all groups whose rows have the same values of the random effects' columns. So a stratum, and
each category within it, has at least as many groups as a figure has rows, and the register keeps the groups of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .cells import factorized
from .rounding import Outcome
from .rules import Withheld, light
from .site import Site


class Grouped(NamedTuple):
    """A site's rows of a fit, sorted by group: columns D [n, d], outcome, the first row of each group, its stratum, the
    group's rows [n] of the site's own, and the outcome's rounded sums, None under exact rules.
    """

    D: np.ndarray
    y: np.ndarray
    starts: np.ndarray
    stratum: np.ndarray
    order: np.ndarray
    outcome: Outcome | None


def rare(site: Site, used: np.ndarray, group: str, columns: Sequence[str], alike: int) -> np.ndarray:
    """The rows [n] among these of groups of which fewer than ``alike``, or than a figure needs, have as many rows with
    the same values of these columns.

    If such groups are too few for a figure of their own, the first of the most frequent kind, by name, are among them.
    """
    codes, names = factorized(site.columns[group])
    mine, frame = codes[used], site.at(used)
    table = np.column_stack([np.ones(len(mine), int), *(factorized(frame[c])[0] for c in columns)])
    order = np.lexsort((*table.T, mine))
    there, starts = np.unique(mine[order], return_index=True)
    numbers = dict[bytes, int]()
    kind = np.array([numbers.setdefault(k.tobytes(), len(numbers)) for k in np.split(table[order], starts[1:])])
    many = np.bincount(kind)[kind]
    out = many < max(alike, site.rules.rows)
    if out.any() and (lacks := site.rules.rows - int(out.sum())) > 0:
        frequent = np.flatnonzero(many == many.max())
        out[sorted(frequent, key=lambda g: str(names[there[g]]))[:lacks]] = True
    return used & np.isin(codes, there[out])


@dataclass(frozen=True)
class Groups:
    """The rules of a site for sums by stratum: they are figures of groups, as patients are, and not of rows.

    Attributes:
        column, codes: the column of groups, and the group of each of the site's rows, -1 where it is missing
        used, rows: the rows of the fit
    """

    site: Site
    column: str
    codes: np.ndarray
    used: np.ndarray
    rows: Grouped

    def admit(self, Z: np.ndarray, names: list[str]) -> None:
        """Record that sums by stratum leave; raise Withheld if they reveal too few groups."""
        least, r = self.site.rules.rows, self.rows
        if least <= 1:
            return
        self._refuse_changed(least)
        of_row = np.repeat(np.arange(len(r.starts)), np.diff([*r.starts, len(r.y)]))
        strata = [r.stratum == h for h in np.unique(r.stratum)]
        if min(int(s.sum()) for s in strata) < least:
            self._withhold(
                f"fewer than {least} of {self.column} have as many rows as each other, with the same values of the "
                "random effects' columns; leave out random slopes, give visits their planned times, narrow where=, or "
                f"leave such ones out, alike={least}"
            )
        cells = list[np.ndarray]()
        for name, x in zip(names, r.D.T, strict=True):
            for v in np.unique(x)[1:] if len(np.unique(x)) == 2 else ():
                cells.append(np.isin(np.arange(len(r.starts)), of_row[x == v]))
                for cell in (s & c for s in strata for c in (cells[-1], ~cells[-1])):
                    if 0 < cell.sum() < least:
                        self._withhold(f"{name} has fewer than {least} of {self.column} among those with as many rows")
        for v in values if len(values := np.unique(r.y)) <= 3 else ():
            having = np.isin(np.arange(len(r.starts)), of_row[r.y == v])
            if min((n for s in strata if (n := int((s & having).sum()))), default=least) < least:
                self._withhold(f"a value of the outcome has fewer than {least} of {self.column}; merge it with another")
        every = self.codes >= 0
        sets = [np.isin(self.codes, self._codes(s)) for s in (*strata, *(s & c for s in strata for c in cells))]
        first = self._representatives()
        self.site.admit("groups", [s & first for s in (every, *sets)], f"{self.column} by their rows")
        sums = np.add.reduceat(Z[:, :, None] * r.D[:, None], r.starts).reshape(len(r.starts), -1)
        for x in sums.T:
            self.site.dominated(x, f"its sums by {self.column}")
        for s in (s for s in strata if sums[s].any()):
            self._refuse_known(sums[s])
            self._refuse_few(sums[s])
        self._refuse_alone()
        self.site.register.add(["rows by group"], [self.used])

    def _codes(self, groups: np.ndarray) -> np.ndarray:
        """The codes of the fit's groups [g]."""
        codes: np.ndarray = self.codes[self.used][self.rows.order][self.rows.starts[groups]]
        return codes

    def _representatives(self) -> np.ndarray:
        """One row of each group [n], the first that the register has, which stands for the group there."""
        places = self._registered()
        codes = self.codes[places]
        out = np.zeros(len(self.codes), bool)
        out[places[np.unique(codes, return_index=True)[1]]] = True
        return out & (self.codes >= 0)

    def _registered(self) -> np.ndarray:
        """The site's rows in the register's order."""
        at = self.site.register.ordered(np.arange(1.0, len(self.codes) + 1))
        return at[at > 0].astype(int) - 1

    def _refuse_changed(self, least: int) -> None:
        """Raise Withheld if sums of this fit and of earlier ones of groups add up to one of few groups' rows."""
        register, key = self.site.register, "rows by group"  # of any column: one may be a copy of another
        with register.reading():
            at = register.ordered(np.arange(1.0, len(self.codes) + 1)).astype(int)
            places = np.flatnonzero(at)[self.codes[at[at > 0] - 1] >= 0]
            sets = [*register.sets.get(key, {}).values(), register.spread(self.used)]
        rows = np.array([np.pad(s, (0, max(len(at) - len(s), 0)))[places] for s in sets], float)
        kinds, kind = np.unique(rows, axis=1, return_inverse=True)  # rows that are in the same fits
        group, kind = np.unique([self.codes[at[places] - 1], kind.ravel()], axis=1)
        many = kinds[:, np.bincount(kind) >= least]  # of so many groups that a sum with these is of enough
        size, u = np.linalg.eigh(many @ many.T)
        left = u[:, size < 1e-9 * max(size[-1], 1.0)].T @ kinds * np.random.default_rng(0).uniform(1, 2, len(kinds.T))
        few = np.zeros((group.max() + 1, len(left)))
        np.add.at(few, group, left[:, kind].T)
        if light(np.where(np.abs(few) > 1e-9, few, 0.0).T, np.ones(len(few), int), least):
            self._withhold(
                f"fewer than {least} of {self.column} have other rows than in earlier fits; ask for the same rows "
                "as before"
            )

    def _refuse_known(self, sums: np.ndarray) -> None:
        """Raise Withheld if so many sums of known columns, of so few groups, would tell each group's outcome."""
        size = np.abs(sums).max(0)
        known = int(np.linalg.matrix_rank(sums[:, size > 0] / size[size > 0], 1e-8))
        share = self.site.rules.parameters
        if known > share * len(sums):
            self._withhold(
                f"sums of {self.column} with the same rows are more than its share of {share:.3g} of how many "
                "these are; leave out columns or random slopes, or those with rows like too few others, "
                f"alike={math.ceil(known / share)}"
            )

    def _refuse_few(self, sums: np.ndarray) -> None:
        """Raise Withheld if a combination of columns' sums is 0 in all groups of a stratum except a few."""
        least, size = self.site.rules.rows, np.abs(sums).max(0)
        u, s, _ = np.linalg.svd(sums[:, size > 0] / size[size > 0], full_matrices=False)
        if light(u[:, s > 1e-8 * s[0]].T, np.ones(len(u), int), least):
            self._withhold(
                f"fewer than {least} of {self.column} decide a combination of columns among those with as many rows; "
                "leave out columns, or merge categories"
            )

    def _refuse_alone(self) -> None:
        """Raise Withheld if a combination of columns is 0 in all groups except one."""
        D = self.rows.D
        u, size, _ = np.linalg.svd(D / np.maximum(np.abs(D).max(0), 1e-300), full_matrices=False)
        u = u[:, size > 1e-10 * size[0]]
        own = np.linalg.eigvalsh(np.add.reduceat(u[:, :, None] * u[:, None], self.rows.starts))[:, -1]
        if own.max() > 1 - 1e-9:
            self._withhold(f"one of {self.column} decides a coefficient alone; merge categories")

    def _withhold(self, why: str) -> None:
        raise Withheld(f"{self.site.name} withholds: {why}, or study.without({self.site.name!r})")
