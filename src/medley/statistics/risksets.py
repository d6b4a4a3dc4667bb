"""Who is at risk at which time: rows that enter late, and strata; and whose rows these are, if a patient has several.

Each row is at risk at successive places among the times of its stratum, which come one stratum after another. So rows
that enter late, intervals of one patient, and strata are the same: a first and a last place for each row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..contract import BadData
from .cells import texts
from .rules import Withheld
from .site import DOMINANT, Site, within_used

log = logging.getLogger("medley")

NOISE = 1.5e-8
"""Times that differ by no more than this share of their mean are equal, as in R: 65 + 7/12 and 64 + 19/12."""


@dataclass(frozen=True)
class AtRisk:
    """The places of rows [n] among the k times at which rows leave.

    Attributes:
        place: where a row leaves, so the last place at which it is at risk
        first: the first place at which a row is at risk; None if all rows are from the first time on
        k: how many places there are
    """

    place: np.ndarray
    first: np.ndarray | None
    k: int

    @classmethod
    def of(cls, time: np.ndarray, entry: np.ndarray | None = None, stratum: np.ndarray | None = None) -> AtRisk:
        """Of rows that leave at a time [n], are at risk after their entry, and have the codes of their strata."""
        if entry is None and stratum is None:
            times, place = np.unique(time, return_inverse=True)
            return cls(place.ravel(), None, len(times))
        k = 0
        place, first = np.zeros((2, len(time)), int)
        for mine in [np.ones(len(time), bool)] if stratum is None else [stratum == s for s in np.unique(stratum)]:
            times, of = np.unique(time[mine], return_inverse=True)
            place[mine] = k + of.ravel()
            first[mine] = k + (0 if entry is None else np.searchsorted(times, entry[mine], side="right"))
            k += len(times)
        return cls(place, first, k)

    @cached_property
    def _nodes(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Nodes of a binary tree over the places, and the rows that are at risk at all places below each of them."""
        assert self.first is not None
        size = 1 << max(self.k - 1, 0).bit_length()
        low, high = self.first + size, self.place + size + 1
        rows = np.arange(len(low))
        nodes, of = list[np.ndarray](), list[np.ndarray]()
        while (low < high).any():
            odd = (low < high) & (low % 2 == 1)
            nodes, of, low = [*nodes, low[odd]], [*of, rows[odd]], low + odd
            odd = (low < high) & (high % 2 == 1)
            high = high - odd
            nodes, of = [*nodes, high[odd]], [*of, rows[odd]]
            low, high = low // 2, high // 2
        return np.concatenate(nodes), np.concatenate(of), size

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums of values [n, ...] over the rows at risk at each place [k, ...]; none is a difference of larger sums."""
        if self.first is None:
            leave = np.zeros((self.k, *values.shape[1:]))
            np.add.at(leave, self.place, values)
            return leave[::-1].cumsum(0)[::-1]
        from scipy.sparse import coo_array

        nodes, rows, size = self._nodes
        flat = values.reshape(len(values), -1)
        tree = coo_array((np.ones(len(nodes)), (nodes, rows)), shape=(2 * size, len(values))).tocsr() @ flat
        return self._down(tree, np.add, size).reshape(self.k, *values.shape[1:])

    def most(self, values: np.ndarray) -> np.ndarray:
        """The largest of values [n] over the rows at risk at each place [k]."""
        if self.first is None:
            out = np.full(self.k, -np.inf)
            np.maximum.at(out, self.place, values)
            return np.maximum.accumulate(out[::-1])[::-1]
        nodes, rows, size = self._nodes
        tree = np.full((2 * size, 1), -np.inf)
        np.maximum.at(tree[:, 0], nodes, values[rows])
        return self._down(tree, np.maximum, size)[:, 0]

    def _down(self, tree: np.ndarray, join: Any, size: int) -> np.ndarray:
        """What the places have, from what all nodes have."""
        level = 1
        while level < size:
            two = slice(2 * level, 4 * level)
            tree[two] = join(tree[two], np.repeat(tree[level : 2 * level], 2, axis=0))
            level *= 2
        return tree[size : size + self.k]

    def over(self, sums: np.ndarray) -> np.ndarray:
        """Sums over the places at which each row is at risk [n, ...], from those of the places [k, ...]."""
        so_far = np.concatenate([np.zeros((1, *sums.shape[1:])), sums.cumsum(0)])
        return np.asarray(so_far[self.place + 1] - (0.0 if self.first is None else so_far[self.first]))


def without_noise(*times: np.ndarray) -> list[np.ndarray]:
    """Columns of times [n], in which those that differ by rounding are equal; R's aeqSurv."""
    values, of = np.unique(np.concatenate(times), return_inverse=True)
    new = np.diff(values, prepend=-np.inf) > NOISE * float(np.abs(values).mean() if len(values) else 0.0)
    return np.split(values[new][new.cumsum() - 1][of.ravel()], len(times))


def grouped(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Sums of values [n, ...] over the rows of each code 0, 1, … [codes, ...]."""
    out = np.zeros((int(of.max(initial=-1)) + 1, *values.shape[1:]))
    np.add.at(out, of, values)
    return out


def by_patient(w: np.ndarray, X: np.ndarray, of: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Weights [n] and columns [n, p] with one entry for each code, of the same sums of weights and of squares."""
    if of is None:
        return w, X
    W = grouped(w, of)
    return W, np.sqrt(grouped(w[:, None] * X**2, of) / np.maximum(W, 1e-300)[:, None])


def by_cluster(v: np.ndarray, used: np.ndarray, of: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Sums of v [n, p] over each cluster, and the rows [sites' n] that stand for clusters: the first of each."""
    if of is None:
        return v, used
    first = np.sort(np.unique(of, return_index=True)[1])
    return grouped(v, of)[of[first]], within_used(used, np.isin(np.arange(len(of)), first))


def codes(site: Site, used: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """Codes 0, 1, … of the combinations of these columns' values [n]."""
    values = [np.unique(texts(site.at(used), c, site.name).astype(str), return_inverse=True)[1] for c in columns]
    return np.unique(np.column_stack([v.ravel() for v in values]), axis=0, return_inverse=True)[1].ravel()


def check_intervals(
    site: Site, names: tuple[str, str, str], entry: np.ndarray, time: np.ndarray, at: np.ndarray
) -> None:
    """Raise BadData for rows that end when they begin or before; log patients two of whose intervals overlap.

    Args:
        names: the columns of entry and time, and that of the patient or ""
        at: codes of a patient, and of the stratum, together [n]
    """
    start, stop, cluster = names
    if not np.isfinite(entry).all() or (entry >= time).any():
        raise BadData(
            f"{site.name}: a row is at risk after {start} and until {stop}, and in some rows {start} is not before "
            f"{stop}; correct such rows, or take them out of the site's table"
        )
    if not cluster:
        return
    order = np.lexsort((entry, at))
    overlap = (at[order][1:] == at[order][:-1]) & (entry[order][1:] < time[order][:-1])
    if overlap.any():
        log.warning(
            "%s: intervals from %s to %s of one %s overlap, so that it is at risk several times at once; if it is a "
            "patient, correct its rows", site.name, start, stop, cluster,
        )  # fmt: skip


def patients(rows: np.ndarray, of: np.ndarray | None) -> np.ndarray:
    """The clusters, bool, that have one of these rows [n]; the rows themselves if there are no clusters."""
    return rows if of is None else np.isin(np.arange(int(of.max(initial=-1)) + 1), of[rows])


def admit_strata(
    site: Site, used: np.ndarray, strata: Sequence[str], stratum: np.ndarray, of: np.ndarray | None, keys: Sequence[str]
) -> None:
    """Record that sums of these columns depend on strata; raise Withheld if one has few rows, or a difference has."""
    what = " and ".join(strata)
    kinds = [stratum == s for s in np.unique(stratum)]
    for kind in kinds:
        site.cell(patients(kind, of), what)
    for key in dict.fromkeys((*keys, *strata)):
        site.admit(key, [used, *(within_used(used, kind) for kind in kinds[1:])], f"the strata of {what}")


def admit_patients(
    site: Site, used: np.ndarray, column: str, of: np.ndarray, names: Sequence[str], X: np.ndarray, event: np.ndarray,
    keys: Sequence[str],
) -> None:  # fmt: skip
    """Record whose rows sums are over; raise Withheld if they are of few patients, alone or by difference.

    Args:
        used: the fit's rows [sites' n]; the next arguments have one entry for each
        column, of: the column that has the patient, and its codes 0, 1, …
        names, X: the design; a value of a column of two values is of enough patients
        keys: the columns that are summed
    """
    count = int(of.max(initial=-1)) + 1
    site.least(count, f"different values of {column}")
    for name, x in zip(names, X.T, strict=True):
        values = np.unique(x)
        for v in values if len(values) == 2 else ():
            site.cell(patients(x == v, of), f"{name}, by {column},")
    u, size, _ = np.linalg.svd((X - X.mean(0)) / np.maximum(np.abs(X).max(0), 1e-300), full_matrices=False)
    u = u[:, size > 1e-10 * size.max(initial=0.0)]
    for c in np.flatnonzero(grouped((u**2).sum(1), of) > DOMINANT):
        if site.rules.rows > 1 and np.linalg.norm(u[of == c], 2) ** 2 > DOMINANT:
            raise Withheld(
                f"{site.name} withholds: one {column} decides a coefficient nearly alone; leave columns out that are "
                f"nearly the same, or the site: study.without({site.name!r})"
            )
    happened = patients(event, of)
    for cell, kind in ((happened, "with"), (~happened, "without")):
        if cell.any():
            site.least(int(cell.sum()), f"different values of {column} {kind} the event", "events")
    site_codes = codes(site, np.ones(len(used), bool), (column,))
    whole = used & ~np.isin(site_codes, site_codes[~used])
    first = by_cluster(np.zeros((site.n, 0)), np.ones(site.n, bool), site_codes)[1]  # a row stands for its patient
    each = [first & np.isin(site_codes, site_codes[rows]) for rows in (used, whole)]
    for key in keys:
        site.admit(f"{key} by {column}", each, f"the rows by {column}")


def refuse_isolated(site: Site, at: AtRisk, X: np.ndarray, event: np.ndarray, of: np.ndarray, what: str) -> None:
    """Raise Withheld if late entries or strata leave all that is told to a few patients, as they are at risk alone.

    At β = 0 the information is a sum over events, of the spread of X among those at risk; and by those at risk.
    """
    least = max(site.rules.rows, site.rules.events)
    if least <= 1 or not event.any():
        return
    n, M, S = (at.sums(v) for v in (np.ones(len(X)), X, X**2))
    V = np.maximum(S / n[:, None] - (M / n[:, None]) ** 2, 0.0) * (n[:, None] > 1.5)
    d = np.bincount(at.place[event], minlength=at.k)
    one, mean, squares = (
        at.over((d / n)[:, None] * v) for v in (np.ones((at.k, 1)), M / n[:, None], (M / n[:, None]) ** 2)
    )
    by_risk = np.maximum(X**2 * one - 2 * X * mean + squares, 0.0)
    for terms, who in ((V[at.place[event]], of[event]), (by_risk, of)):
        shares = grouped(terms, np.unique(who, return_inverse=True)[1].ravel())
        told = shares > 1e-9 * shares.max(0)
        try:
            if (told.any(0) & (told.sum(0) < least)).any():
                raise Withheld("")
            site.effective(np.ones(len(shares)), np.sqrt(shares))
        except Withheld:
            raise Withheld(
                f"{site.name} withholds: by {what} nearly all patients are at risk alone, and fewer than {least} "
                f"decide the sums; merge strata, leave {what} out, or the site: study.without({site.name!r})"
            ) from None
