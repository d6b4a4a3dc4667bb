"""Rows that are alike: copies in one table, and two tables of the same patients."""

from __future__ import annotations

import logging
import math

import numpy as np

from .cells import Columns, factorized

log = logging.getLogger("medley")

SAMPLE = 200
"""How many rows tell whether two tables are of the same patients."""


def same_patients(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether most rows of the smaller of two tables of codes [n, columns] are patients of the larger one.

    They are if all are in it, or if they, or those of them that are in it, are nearer to its rows than chance has it.
    Chance is how near the larger table's rows are to each other, since its patients are all different.
    """
    fewer, more = sorted((one, other), key=len)
    shares = _alike(fewer, more)
    others = _alike(more, more, themselves=False)
    if shares.min() == 1 or min(len(shares), len(others)) < 3:
        return bool(shares.min() == 1 and others.mean() < 1)
    return _beyond(shares, others) or _beyond(shares == 1, others == 1)


def _alike(rows: np.ndarray, among: np.ndarray, themselves: bool = True) -> np.ndarray:
    """The share of cells that each of these rows [n, columns] has in common with the row ``among`` others that is most
    alike; of up to `SAMPLE` rows. Without ``themselves``, a row is not compared with the one in its own place.
    """
    out = list[float]()
    for k in np.random.default_rng(0).permutation(len(rows))[:SAMPLE]:
        share = (among == rows[k]).mean(1)
        if not themselves:
            share[k] = 0
        out.append(share.max())
    return np.array(out)


def _beyond(shares: np.ndarray, others: np.ndarray) -> bool:
    """Whether the mean share is nearer to 1 than chance has it, by a third of the way and two standard errors."""
    chance = float(others.mean())
    error = math.sqrt(shares.var() / len(shares) + others.var() / len(others))
    return bool(shares.mean() - chance - 2 * error > (1 - chance) / 3)


def warn_of_copies(columns: Columns, name: str) -> None:
    """Log a warning if more rows are alike in all columns than chance explains, because each counts as a patient."""
    n = len(columns)
    kinds = np.zeros(n, int)
    shares = list[float]()  # of pairs of rows that are alike in a column
    for column in sorted(columns.frame, key=lambda c: columns[c].dtype.kind != "f"):  # those with the most values first
        codes, names = factorized(columns[column])
        if n - len(names) <= 5:
            return
        codes = codes + 1
        shares.append(float(np.square(np.bincount(codes) / n).sum()))
        distinct, kinds = np.unique(kinds * (n + 1) + codes, return_inverse=True)
        copies = n - len(distinct)
        if copies <= 5:
            return
    pairs = n * n / 2 * math.prod(shares)
    if copies > 5 + 3 * pairs:
        log.warning(
            "%s: %d rows are copies of others in all columns, and chance makes about %d. If they are of one patient, "
            "its rules count that patient several times: leave copies out, or name the patients' column, Rules(id=...)",
            name, copies, pairs,
        )  # fmt: skip
