"""Rows that are drawn or marked in a data set, and the first number that is not finite."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract.errors import BadData, RecipeError
from ..numerics.lazy import Lazy
from ..numerics.scaling import total
from ..numerics.sparse import Sparse, not_finite
from ..runtime import streams

log = logging.getLogger("medley")

Pair = tuple[Tensor, Tensor] | tuple[None, None]


def marked(X: Tensor | None, y: Tensor | None, pick: Callable[[Tensor, Tensor], Tensor]) -> Pair:
    """The rows that ``pick(X, y)`` marks, or None for both where there are none."""
    mask = None if X is None or y is None else pick(X, y)
    if X is None or y is None or mask is None or not bool(mask.any()):
        return None, None
    return X[mask], y[mask]


def drawn(m: int, n: int, seed: int, part: str, name: str) -> Tensor:
    """m of n row numbers, drawn for ``Dataset.take``, in order. Raises RecipeError for more than there are."""
    if not 0 < m <= n:
        raise RecipeError(f"{name}.take(n_{part}={m}): it has {n} {part} rows.", f"n_{part}")
    return torch.from_numpy(np.sort(streams.rng(seed, "take", part).permutation(n)[:m]))


def carved(
    n: int, fraction: float | int, seed: int, part: str, name: str, strata: Sequence[np.ndarray] = ()
) -> tuple[Tensor, Tensor]:
    """The numbers of rows that stay and of rows that are drawn for a part, both in ascending order.

    Args:
        n: Rows.
        fraction: The share that is drawn; within each stratum, rounded, and less than all.
        seed: Of the stream (seed, "split", part).
        part: "test" or "validation".
        name: The data set's name in messages.
        strata: Columns [n]; rows with the same values in all of them are one stratum. Default none, all rows are one.

    Raises RecipeError for a fraction that leaves nothing on one side.
    """
    order = torch.from_numpy(streams.rng(seed, "split", part).permutation(n))
    first = order[: round(fraction * n)]
    if strata:
        codes = np.stack([np.unique(column, return_inverse=True)[1].reshape(n) for column in strata], 1)
        group = torch.from_numpy(np.unique(codes, axis=0, return_inverse=True)[1].reshape(n))[order]
        each = [order[group == g] for g in range(int(group.max()) + 1)]
        first = torch.cat([rows[: min(round(fraction * len(rows)), len(rows) - 1)] for rows in each])
    if not 0 < len(first) < n:
        whole = fraction == int(fraction) and 0 < fraction < n
        number = f", such as {fraction} / {n} for {fraction} rows" if whole else ""
        raise RecipeError(
            f"{name}.split({part}={fraction}) takes {len(first)} of {n} rows; choose a fraction in (0, 1) "
            f"that leaves something on both sides{number}.",
            part,
        )
    stays = torch.ones(n, dtype=torch.bool)
    stays[first] = False
    return stays.nonzero()[:, 0], first.sort().values


def check_finite(values: Tensor, what: str) -> None:
    """Raise BadData, naming ``what`` and the place, for the first NaN or infinity."""
    if not values.numel() or not values.is_floating_point() or isinstance(values, Lazy):
        return  # lazy rows are not read for it; a run names the round in which NaN turns up
    if isinstance(values, Sparse):
        # A float64 sum of float32 numbers cannot overflow, so it is finite if and only if they are.
        fine = bool(total(values, torch.sum).isfinite())
    else:
        # Both ends of a tensor with a NaN are NaN. They need no second copy of the data, nor a mask.
        fine = all(bool(end.isfinite()) for end in values.aminmax())
    if fine:
        return
    found = not_finite(values)
    if found is None:  # the sum of finite numbers overflowed
        return
    at, value = found
    row, column = at[0], (at[1] if len(at) > 1 else None)
    where = f"row {row}" if column is None else f"row {row}, column {', '.join(map(str, at[1:]))}"
    raise BadData(
        f"{what} holds {value} at {where} (counted from 0); drop the row or fill it in.",
        row=row,
        column=column,
    )


def counted_from(Xs: Sequence[Any], zero_based: bool | None, n_features: int | None, call: str) -> list[Any]:
    """Sparse rows whose columns begin at the first one of the file, and are ``n_features``."""
    first = min((int(X.indices.min()) for X in Xs if X.nnz), default=0)
    if zero_based is False and not first:
        raise BadData(f"{call}: it has an entry of column 0; give zero_based=True")
    if zero_based is None and first:
        log.warning(
            "%s: no row has an entry of column 0, so columns are taken to count from 1; say zero_based=False, or True",
            call,
        )
    begin = 0 if zero_based or not first else 1
    width = Xs[0].shape[1] - begin
    if n_features is not None and n_features < width:
        raise BadData(
            f"{call}: it has an entry of column {width - 1 + begin}, and n_features={n_features}; give {width}"
        )
    Xs = [X[:, begin:] for X in Xs]
    for X in Xs:
        X.resize(X.shape[0], n_features or width)
    return Xs
