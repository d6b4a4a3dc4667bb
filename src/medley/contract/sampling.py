"""The distributions from which a round's clients and a step's rows are drawn, for privacy accounting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .pace import Pace


@dataclass(frozen=True)
class Sampling:
    """The distribution of a cohort.

    Attributes:
        kind: "everyone"; "poisson": each client independently with probability ``rate``; "without replacement":
            ``size`` of the clients, all sets equally likely; "cyclic": disjoint groups that take turns; "fixed": given
            cohorts
        clients: number of clients in the population
        rate: the expected share of them in a cohort, in (0, 1]
        size: clients in a cohort, if their number is fixed; 0 for "poisson"
        period: rounds between two turns of a client; 1 unless "cyclic"
    """

    kind: Literal["everyone", "poisson", "without replacement", "cyclic", "fixed"]
    clients: int
    rate: float = 1.0
    size: int = 0
    period: int = 1


@dataclass(frozen=True)
class LocalSampling:
    """The distribution of a private client's batches in one round: each row independently with probability ``rate``.

    Attributes:
        rows: number of rows of the client
        rate: the expected share of them in a batch, in (0, 1]
        steps: number of batches
    """

    rows: int
    rate: float
    steps: int

    @classmethod
    def of(cls, pace: Pace, rows: int) -> LocalSampling:
        """The distribution for a client with this budget and number of rows. The expected batch size is the pace's."""
        size = rows if pace.batch is None else min(pace.batch, rows)
        batches = rows // size if pace.drop_last else -(-rows // size)
        return cls(rows, size / rows, pace.epochs * batches if pace.steps is None else pace.steps)
