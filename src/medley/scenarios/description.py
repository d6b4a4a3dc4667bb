"""Partitions in numbers: sizes, label counts, label skew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Shaped

from ..contract.errors import BadData
from ..partitions.dealing import Column, Rows
from ..storage.html import facts


@dataclass(frozen=True, repr=False)
class Description:
    """A partition of n clients and C labels in numbers.

    Attributes:
        sizes: Rows of each client [n].
        labels: The labels [C], ascending, or their names; empty without labels.
        counts: Rows of each client and label [n, C].
        distance: The total-variation distance ½ Σ_c |p_ic − p_c| between the label distributions of a client and of all
            clients together, as the mean over clients that hold rows. 0 is IID; 1 cannot be reached.
        clients: The clients' names [n]; empty, the default, without names.
        fixed: Whether every seed has this partition; default False.
    """

    sizes: Int64[np.ndarray, " clients"]
    labels: Shaped[np.ndarray, " labels"]
    counts: Int64[np.ndarray, "clients labels"]
    distance: float
    clients: tuple[str, ...] = ()
    fixed: bool = False

    def __repr__(self) -> str:
        """Clients, rows and label distance, in one line."""
        return f"Description({', '.join(f'{k} {v}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        return facts("Partition", self._facts())

    def _facts(self) -> dict[str, object]:
        s = self.sizes
        rows_a_client = f"{s.min()} to {s.max()}, median {np.median(s):g}" if len(s) else "none"
        facts: dict[str, object] = {"clients": len(s), "rows": int(s.sum()), "rows a client": rows_a_client}
        return facts | (
            {"labels": len(self.labels), "label distance": round(self.distance, 3)} if len(self.labels) else {}
        )


def describe(parts: Sequence[Rows], y: Column | None) -> Description:
    """Sizes, label counts and label skew of a partition; without labels there are no counts, and the distance is 0.

    Raises BadData if the partition holds a row that has no label.
    """
    sizes = np.array([len(rows) for rows in parts], dtype=np.int64)
    n = 1 + max((int(rows.max()) for rows in parts if len(rows)), default=-1)
    if y is None:
        return Description(sizes, np.empty(0), np.zeros((len(parts), 0), dtype=np.int64), 0.0)
    if len(y) < n:
        raise BadData(
            f"describe: the partition has row {n - 1}, but there are {len(y)} labels; pass the labels of the same data",
            row=n - 1,
        )
    labels, label = np.unique(np.asarray(y), return_inverse=True)
    owner = np.repeat(np.arange(len(parts)), sizes)
    cell = owner * len(labels) + label[np.concatenate([*parts, np.empty(0, np.int64)])]
    counts = np.bincount(cell, minlength=len(parts) * len(labels)).reshape(len(parts), len(labels))
    present = counts[sizes > 0]
    everywhere = present.sum(0) / max(present.sum(), 1)
    gaps = np.abs(present / present.sum(1, keepdims=True) - everywhere).sum(1) / 2
    return Description(sizes, labels, counts, float(gaps.mean()) if len(gaps) else 0.0)
