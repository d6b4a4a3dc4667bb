"""The laws by which a round's clients, and a step's rows, are drawn, as privacy accounting needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .pace import Pace


@dataclass(frozen=True)
class Sampling:
    """The law of a cohort.

    Attributes:
        kind: "everyone"; "poisson": each client by itself with probability ``rate``; "without replacement": ``size`` of
            the clients, all sets alike; "cyclic": disjoint groups that take turns; "fixed": cohorts that were given
        clients: number of clients drawn from
        rate: the expected share of them in a cohort, in (0, 1]
        size: clients in a cohort, where their number is fixed; 0 for "poisson"
        period: rounds between two turns of a client; 1 unless "cyclic"
    """

    kind: Literal["everyone", "poisson", "without replacement", "cyclic", "fixed"]
    clients: int
    rate: float = 1.0
    size: int = 0
    period: int = 1


@dataclass(frozen=True)
class Local:
    """The law of a private client's batches in one round: each row by itself with probability ``rate``.

    Attributes:
        rows: number of rows of the client
        rate: the expected share of them in a batch, in (0, 1]
        steps: number of batches
    """

    rows: int
    rate: float
    steps: int

    @classmethod
    def of(cls, pace: Pace, rows: int) -> Local:
        """The law of a client with this budget and so many rows. The expected batch is the pace's."""
        size = rows if pace.batch is None else min(pace.batch, rows)
        whole = rows // size if pace.drop_last else -(-rows // size)
        return cls(rows, size / rows, pace.epochs * whole if pace.steps is None else pace.steps)
