"""What may leave a site: its rules, and the register of the sets of rows whose sums have left it.

A figure is a sum over a set of rows. Whoever has several of them has every linear combination, too: the difference of
"all" and "all but those above 90" is a figure of those above 90. The register keeps the sets, and a new one leaves only
if no linear combination of all of them depends on fewer rows than the site's least number.

With the sets as rows of a matrix A of zeros and ones [sets, rows], that is: no vector of A's row space, but 0, has fewer
than ``least`` entries that are not 0. Rows that are in the same sets are one column with a count.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from ..contract import BadData, Checked, at_least, in_range

MOST = 20_000
"""Sets of few rows that are tried; beyond that a figure is withheld."""


class Withheld(BadData):
    """A site lets a figure not leave, by its own rules."""


@dataclass(frozen=True)
class Rules(Checked):
    """A site's rules of what may leave.

    Attributes:
        rows: the least number of rows that any figure, or any combination of figures, depends on. Default 5
        events: the same for rows with the event, and for rows without it. Default 5
        parameters: the most parameters of a fit, as a share of rows. Default a third
        pooled: whether that share is of all sites' rows together, and not of the site's own. Default False
    """

    rows: Annotated[int, at_least(1)] = 5
    events: Annotated[int, at_least(1)] = 5
    parameters: Annotated[float, in_range(0.0, 1.0)] = 1 / 3
    pooled: bool = False


def recoverable(sets: Iterable[np.ndarray], least: int) -> bool:
    """Whether a linear combination of sums over these sets of rows, bool [n] each, is one of fewer than ``least`` rows.

    True, to be safe, where there are too many combinations to try.
    """
    A = np.array([s for s in sets if s.any()], dtype=bool)
    if least <= 1 or not len(A):
        return False
    bits, counts = np.unique(np.packbits(A, axis=0), axis=1, return_counts=True)
    atoms = np.unpackbits(bits, axis=0, count=len(A)).astype(float)
    there = atoms.any(0)
    atoms, counts = atoms[:, there], counts[there]
    few = counts < least
    if not few.any():
        return False
    u, s, _ = np.linalg.svd(atoms[:, ~few], full_matrices=True)
    rank = int((s > 1e-9 * max(s, default=0.0)).sum())
    V = u[:, rank:].T @ atoms[:, few]  # combinations that no large atom is in
    size = counts[few]
    _, s, vt = np.linalg.svd(V, full_matrices=False)
    V = vt[s > 1e-9]
    if not len(V):
        return False
    used = np.abs(V).max(0) > 1e-9
    V, size = V[:, used], size[used]
    if len(V) == V.shape[1] or len(V) > V.shape[1]:
        return True
    if len(V) == 1:
        return bool(size.sum() < least)
    tried = 0
    for k in range(1, least):
        for chosen in itertools.combinations(range(len(size)), k):
            tried += 1
            if tried > MOST:
                return True
            if size[[*chosen]].sum() < least:
                rest = np.delete(V, chosen, axis=1)
                if np.linalg.matrix_rank(rest, tol=1e-9) < len(V):
                    return True
    return False


@dataclass
class Register:
    """The sets of rows whose sums have left a site, by the column that is summed.

    Attributes:
        rows: the number of the site's rows
        file: keeps them as lines of JSON, for processes that share it and for the next study on the same rows; None
            keeps them in memory
    """

    rows: int
    file: Path | None = None
    sets: dict[str, dict[bytes, np.ndarray]] = field(default_factory=dict)
    grids: dict[str, int] = field(default_factory=dict)
    _read: int = 0

    def admits(self, key: str, sets: Iterable[np.ndarray], least: int) -> bool:
        """Whether sums of column ``key`` over these sets may leave, after all that has left before; see `add`."""
        return not recoverable([*self.sets.get(key, {}).values(), *sets], least)

    def add(self, key: str, sets: Iterable[np.ndarray]) -> None:
        """Record that sums of column ``key`` over these sets leave."""
        known = self.sets.setdefault(key, {})
        for s in sets:
            if s.any() and (packed := np.packbits(s).tobytes()) not in known:
                known[packed] = s.copy()
                self._write({"column": key, "rows": packed.hex()})

    def grid(self, key: str, width: int) -> bool:
        """Whether a histogram of column ``key`` with this width of bins, a power of 2, may leave: the first one's."""
        if key not in self.grids:
            self.grids[key] = width
            self._write({"column": key, "grid": width})
        return self.grids[key] == width

    def _write(self, line: dict[str, str | int]) -> None:
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as f:
                self._read += f.write(json.dumps(line) + "\n")

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which no other process adds to the file, and all that they added is known."""
        if self.file is None:
            yield
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_suffix(".lock").open("w") as lock, _locked(lock.fileno()):
            text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
            for line in text[self._read :].splitlines():
                self._take(json.loads(line))
            self._read = len(text)
            yield

    def _take(self, line: dict[str, str | int]) -> None:
        key = str(line["column"])
        if "grid" in line:
            self.grids[key] = int(line["grid"])
            return
        packed = bytes.fromhex(str(line["rows"]))
        if len(packed) != math.ceil(self.rows / 8):
            raise BadData(f"{self.file} is the register of other rows than these {self.rows}; give each data set its own")
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=self.rows).astype(bool)
        self.sets.setdefault(key, {})[packed] = bits


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows: one process at a time
        with nullcontext():
            yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


__all__ = ["Register", "Rules", "Withheld", "recoverable"]
