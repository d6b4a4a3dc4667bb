"""The sums that may leave a site: its rules, and the register of the sets of rows whose sums have left it.

A figure is a sum over a set of rows. If you have several figures, you also have every linear combination: the
difference of "all" and "everyone up to 90" is a figure of the people above 90. The register keeps the sets, and a new
one leaves only if no linear combination of all of them depends on fewer rows than the site's least number.

With the sets as rows of a matrix A of zeros and ones [sets, rows], this means: every vector of A's row space except 0
has at least ``least`` entries that are not 0. Rows that are in the same sets form one column with a count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from ..contract import BadData, Checked, at_least, in_range

MOST = 20_000
"""How many sets of few rows to try; beyond this number the figure is withheld."""


class Withheld(BadData):
    """A site's rules forbid a figure to leave."""


@dataclass(frozen=True)
class Rules(Checked):
    """A site's rules for the figures that may leave.

    Attributes:
        rows: the least number of rows that any figure, or any combination of figures, depends on. Default 5
        events: the same for rows with the event, and for rows without it. Default 5
        parameters: the most parameters of a fit, as a share of rows. Default a third
        pooled: whether that share is of all sites' rows together, and not of the site's own. Default False
        quantiles: whether quantiles and medians may leave: the histograms show single values to within a bin, about
            1/85 of a standard deviation, the least and the largest among them. Default True
        scores: whether counts of test rows by a model's probability may leave, from which an area under the ROC curve
            over all sites follows: they show single rows. Without them it is the mean of the sites' areas. Default True
    """

    rows: Annotated[int, at_least(1)] = 5
    events: Annotated[int, at_least(1)] = 5
    parameters: Annotated[float, in_range(0.0, 1.0)] = 1 / 3
    pooled: bool = False
    quantiles: bool = True
    scores: bool = True


def recoverable(sets: Iterable[np.ndarray], least: int) -> bool:
    """Whether a linear combination of sums over these sets, bool [n] each, depends on fewer than ``least`` rows.

    Returns True, to be safe, if there are too many combinations to try.
    """
    A = np.array([s for s in sets if s.any()], dtype=bool)
    if least <= 1 or not len(A):
        return False
    if (A.sum(1) < least).any():
        return True
    bits, counts = np.unique(np.packbits(A, axis=0), axis=1, return_counts=True)
    atoms = np.unpackbits(bits, axis=0, count=len(A)).astype(float)
    s, u = np.linalg.eigh(atoms @ atoms.T)
    there = s > 1e-9 * s[-1]
    Q = (u[:, there] / np.sqrt(s[there])).T @ atoms  # an orthonormal basis of the row space
    # A vector of the space on the atoms T alone is there if Q_Tᵀ Q_T has the eigenvalue 1, so its trace is 1 at least.
    share, few = (Q**2).sum(0), np.flatnonzero((counts < least) & atoms.any(0))
    few = few[np.argsort(-share[few])]
    for tried, places in enumerate(c for k in range(1, least) for c in _heavy(share[few].tolist(), k, 1 - 1e-7, 0)):
        T = few[places]
        if tried > MOST or (counts[T].sum() < least and np.linalg.eigvalsh(Q[:, T].T @ Q[:, T])[-1] > 1 - 1e-7):
            return True
    return False


def _heavy(share: list[float], k: int, sum: float, start: int) -> Iterator[list[int]]:
    """Places, from ``start`` on, of k of the descending shares that add up to at least this sum."""
    for i in range(start, len(share)):
        if share[i] * k < sum:
            return
        yield from ([i, *rest] for rest in (_heavy(share, k - 1, sum - share[i], i + 1) if k > 1 else [[]]))


@dataclass
class Register:
    """The sets of rows whose sums have left a site, by the column that is summed.

    Attributes:
        rows: the number of the site's rows
        file: keeps them as lines of JSON, for other processes and the next study on the same rows; None: memory does
        of: which rows of the frame those are, the first line of the file
    """

    rows: int
    file: Path | None = None
    of: str = ""
    sets: dict[str, dict[bytes, np.ndarray]] = field(default_factory=dict)
    _read: int = 0

    def told(self, key: str) -> dict[bytes, np.ndarray]:
        """The sets over which sums of column ``key`` have left. Raises BadData for a register of other rows."""
        if self.file is not None and self.file.exists():
            text = self.file.read_text(encoding="utf-8")
            for line in text[self._read :].splitlines():
                column, raw = json.loads(line)
                packed = bytes.fromhex(raw)
                if len(packed) != -(-self.rows // 8) if column != "rows of" else raw != self.of:
                    raise BadData(
                        f"{self.file} is a register of other rows, not of these {self.rows}; give each data set "
                        "its own register"
                    )
                if column != "rows of":
                    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=self.rows)
                    self.sets.setdefault(column, {})[packed] = bits.astype(bool)
            self._read = len(text)
        return self.sets.setdefault(key, {})

    def admits(self, key: str, sets: Iterable[np.ndarray], least: int) -> bool:
        """Whether sums of column ``key`` over these sets may leave, given the sums that have left before; see `add`."""
        return not recoverable([*self.told(key).values(), *sets], least)

    def add(self, key: str, sets: Iterable[np.ndarray]) -> None:
        """Record that sums of column ``key`` over these sets leave."""
        known = self.told(key)
        for s in sets:
            if s.any() and (packed := np.packbits(s).tobytes()) not in known:
                known[packed] = s.copy()
                if self.file is not None:
                    self.file.parent.mkdir(parents=True, exist_ok=True)
                    with self.file.open("a", encoding="utf-8") as f:
                        lines = [] if f.tell() else [["rows of", self.of]]
                        self._read += sum(f.write(json.dumps(v) + "\n") for v in (*lines, [key, packed.hex()]))
