"""Robust aggregation: the base of all rules, and the arithmetic that they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..contract import Checked, TooFewReplies, at_least, below

Rows = Float[Tensor, "a d"]
"""One vector per reply, a reply in each row."""

Combined = Float[Tensor, " d"]
"""The vector that a rule makes of the replies."""

Share = Annotated[float, at_least(0), below(0.5)]
"""The largest share of Byzantine clients that a rule is meant to tolerate."""

COLUMNS = 1 << 12
"""Columns that are sorted at once, so that they stay in the processor's cache."""


class Context(NamedTuple):
    """What a rule knows in addition to the replies.

    Attributes:
        before: the vector that the rule made in the last round, for the same exchange and field; None in the first
            round
        root: the row of the root client; None if there is none
        requested: the number of clients of which the replies are a part, without the root; None for no others. All
            Byzantine ones among them may have replied.
    """

    before: Combined | None = None
    root: int | None = None
    requested: int | None = None


NOTHING = Context()


@dataclass(frozen=True)
class Rule(Checked, ABC):
    """Base of every robust rule: it makes one vector of the replies' vectors, each counted once.

    ``remembers`` is True for a rule that starts from its vector of the previous round.
    """

    remembers: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The rule's name in tables and reports."""
        return type(self).__name__

    @property
    def root_client(self) -> int | None:
        """The client whose rows are the server's own root set; None if the rule has none."""
        return None

    def least(self, a: int) -> int:
        """The smallest number of replies that the rule accepts if ``a`` clients were asked: an honest majority."""
        return 2 * byzantine_among(self, a) + 1

    def check(self, a: int, context: Context = NOTHING) -> int:
        """f, the number of Byzantine clients among ``a`` replies. Raises TooFewReplies if ``a`` is too small for it."""
        requested = max(a, context.requested or 0)
        f = byzantine_among(self, requested)
        least = self.least(requested)
        if a < least:
            raise TooFewReplies(
                f"{self!r} needs {least} replies to tolerate {f} Byzantine clients of the {requested} asked, but got "
                f"{a}: ask more clients, or pass a smaller byzantine="
            )
        return f

    @abstractmethod
    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """The rule's vector, a tensor [d] for rows [a, d]. Raises TooFewReplies, as `check` does."""


def byzantine_among(rule: object, a: int) -> int:
    """f = ⌈byzantine·a⌉, how many of ``a`` clients a rule lets be Byzantine; 0 for a rule without ``byzantine``."""
    # 0.07·100 is 7.000000000000001.
    return math.ceil(getattr(rule, "byzantine", 0.0) * a - 1e-9)


def pieces(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows [a, d] or a vector [d], cut along the last axis."""
    return torch.split(rows, COLUMNS, -1)


def trimmed(rows: Rows, f: int) -> Combined:
    """The mean of each coordinate over the rows, without its ``f`` smallest and ``f`` largest values."""
    a = len(rows)
    if rows.device.type == "cpu":
        # NumPy sorts short rows eight times as fast as torch does.
        sort = lambda part: torch.from_numpy(np.sort(np.ascontiguousarray(part.T.numpy()), axis=1))
    else:
        sort = lambda part: part.T.sort(1).values
    parts = [sort(part)[:, f : a - f].mean(1) for part in pieces(rows)]  # type: ignore[no-untyped-call]
    return torch.cat(parts) if parts else rows.new_zeros(rows.shape[1:])


def median(rows: Rows) -> Combined:
    """The median of each coordinate; the mean of the middle two if their number is even."""
    return trimmed(rows, (len(rows) - 1) // 2)


def distances(rows: Rows, centre: Combined) -> Float[Tensor, " a"]:
    """‖x_i − centre‖ of every row, in double precision."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for part, at in zip(pieces(rows), pieces(centre), strict=True):
        total += (part - at).double().square().sum(1)
    return total.sqrt()


def products(rows: Rows, v: Combined) -> Float[Tensor, " a"]:
    """⟨x_i, v⟩ of every row, in double precision."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for part, at in zip(pieces(rows), pieces(v), strict=True):
        total += part.double() @ at.double()
    return total


def squared_distances(rows: Rows) -> Float[Tensor, "a a"]:
    """‖x_i − x_j‖² of all pairs, in double precision, by O(a²d) operations.

    ‖x_i‖² + ‖x_j‖² − 2⟨x_i, x_j⟩ loses digits if norms are larger than distances. So we first subtract the rows'
    median, which no minority can move far: distances between honest rows keep their digits, however far off a Byzantine
    row is.
    """
    centre = median(rows)
    G = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for part, at in zip(pieces(rows), pieces(centre), strict=True):
        offset = part.double() - at
        G += offset @ offset.T
    norms = G.diagonal()
    D: Tensor = (norms[:, None] + norms[None, :] - 2 * G).nan_to_num(nan=torch.inf).clamp(min=0)
    return ((D + D.T) / 2).fill_diagonal_(0.0)  # symmetric to the last bit, which Krum's ties need
