"""Rows that are drawn or marked in a data set, and the first number that is not finite."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np
import torch
from torch import Tensor

from ..contract.errors import BadData, RecipeError
from ..runtime import streams


def sample_rows(m: int, n: int, seed: int, part: str, name: str) -> Tensor:
    """m of n row numbers, drawn for ``Dataset.take``, in order. Raises RecipeError for more than there are."""
    if not 0 < m <= n:
        raise RecipeError(f"{name}.take(n_{part}={m}): the data set has {n} {part} rows; take 1 to {n}", f"n_{part}")
    return torch.from_numpy(np.sort(streams.rng(seed, "take", part).permutation(n)[:m]))


def carved(
    n: int,
    fraction: float | int,
    seed: int,
    part: str,
    name: str,
    strata: Sequence[np.ndarray] = (),
    together: Sequence[np.ndarray] = (),
    last: Sequence[np.ndarray] = (),
) -> tuple[Tensor, Tensor]:
    """Row numbers: those that stay, and those drawn for a part; both in ascending order.

    Args:
        fraction: The share that is drawn; within each stratum, rounded, and less than all.
        seed: Of the stream (seed, "split", part).
        strata: Columns [n]; rows with the same values in all of them are one stratum. Default none, all rows are one.
        together: Columns [n]; rows with the same values in all of them stay on one side. Default none.
        last: Columns [n]; from each group of rows with the same values in all of them, the last rows are taken. Default
            none.

    Raises RecipeError for a fraction that leaves nothing on one side.
    """
    order = torch.from_numpy(streams.rng(seed, "split", part).permutation(n))
    first = order[: round(fraction * n)]
    if last:
        first = torch.cat([_some(rows, fraction, -1) for rows in _alike(last, torch.arange(n))])
    elif together:
        units = [*_alike(together, torch.arange(n))]
        owner = torch.empty(n, dtype=torch.int64)
        for k, rows in enumerate(units):
            owner[rows] = k
        # In the order in which their first rows were drawn.
        drawn_units = [[*dict.fromkeys(owner[rows].tolist())] for rows in _alike(strata, order)]
        if sum(map(len, drawn_units)) > len(units):
            raise RecipeError(
                f"{name}.split(by=..., together=...): some rows that stay together differ in by=", "together"
            )
        chosen = [k for some in drawn_units for k in _nearest(some, [len(units[k]) for k in some], fraction)]
        first = torch.cat([units[k] for k in chosen]) if chosen else first[:0]
    elif strata:
        first = torch.cat([_some(rows, fraction) for rows in _alike(strata, order)])
    if not 0 < len(first) < n:
        is_count = fraction == int(fraction) and 0 < fraction < n
        number = f", such as {fraction} / {n} for {fraction} rows" if is_count else ""
        raise RecipeError(
            f"{name}.split({part}={fraction}) takes {len(first)} of {n} rows; choose a fraction in (0, 1) "
            f"that leaves something on both sides{number}.",
            part,
        )
    stays = torch.ones(n, dtype=torch.bool)
    stays[first] = False
    return stays.nonzero()[:, 0], first.sort().values


def _alike(columns: Sequence[np.ndarray], order: Tensor) -> Iterator[Tensor]:
    """Groups of rows with the same combination of values, each in this order; one group if there are no columns."""
    if not columns:
        yield order
        return
    codes = np.stack([np.unique(column, return_inverse=True)[1].reshape(len(order)) for column in columns], 1)
    group = torch.from_numpy(np.unique(codes, axis=0, return_inverse=True)[1].reshape(len(order)))[order]
    yield from (order[group == g] for g in range(int(group.max()) + 1))


def _some(rows: Tensor, fraction: float, end: int = 1) -> Tensor:
    """This fraction of the rows, but not all, from their beginning or from their end, -1."""
    size = min(round(fraction * len(rows)), len(rows) - 1)
    return rows[:size] if end > 0 else rows[len(rows) - size :]


def _nearest(units: list[int], sizes: list[int], fraction: float) -> list[int]:
    """The first units, but not all, whose rows are nearest to this fraction of all."""
    ends = np.cumsum([0, *sizes[:-1]])
    return units[: int(np.abs(ends - fraction * sum(sizes)).argmin())]


def in_time(values: np.ndarray, name: str, trained: int) -> np.ndarray:
    """A key's values as numbers or times, so that you can sort them; texts are read as numbers, else as ISO 8601.

    Args:
        values: the training rows' values, then the test rows'
        name: the data set and its key, for messages
        trained: the number of training rows

    Raises BadData, naming the row, for a value that is missing, and for a text whose place in time is not known.
    """

    def refused(row: int, clause: str) -> BadData:
        place = f"row {row}" if row < trained else f"test row {row - trained}"
        return BadData(f"{name}: {place} has {clause}", row=row if row < trained else row - trained)

    entries = values.tolist()
    missing = np.isnat(values) if values.dtype.kind in "mM" else np.array([v is None or v != v for v in entries])
    if missing.any():
        raise refused(int(missing.argmax()), "no value; fill it in or drop the row")
    are_texts = [isinstance(v, str) for v in entries]
    if True not in are_texts:
        return values
    if False in are_texts:
        row = are_texts.index(not are_texts[0])
        raise refused(row, f"{entries[row]!r} beside {entries[0]!r}; give all of one kind")
    try:
        return values.astype(np.float64)
    except ValueError:
        pass
    times = list[datetime]()
    for row, text in enumerate(entries):
        try:
            times.append(datetime.fromisoformat(f"{text}-01" if re.fullmatch(r"\d{4}-\d\d", text) else text))
        except ValueError:
            remedy = "write days as 2024-05-31 and times as 2024-05-31T09:30, or give numbers"
            raise refused(row, f"{text!r}, which is not a date that can be sorted; {remedy}") from None
        if (times[-1].tzinfo is None) != (times[0].tzinfo is None):
            raise refused(row, f"{text!r} beside {entries[0]!r}: give all of them an offset from UTC, or none")
    return np.array(times, object)
