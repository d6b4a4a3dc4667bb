"""Replies to one `ask`, read as a mean, a sum, or one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from torch import Tensor

from ..contract import BoundedSum, Cohort, MedleyError, Message, Packed, TooFewReplies
from ..contract.message import Scalar
from ..runtime import stopwatch
from ..wire.clip import Clip
from ..wire.fold import Fold
from .waiting import ExchangeEnd

U = TypeVar("U", bound=Message)

Send = Callable[[Mapping[int, float] | None, Clip | None], ExchangeEnd]
"""Carries out an exchange once: with weights for a sum, or None for replies one by one, and with a bound on each."""


class LiveReplies(Generic[U]):
    """The replies to one `ask`. The exchange takes place when you call `mean`, `sum` or `each`.

    ``ids`` are the clients that replied, ``share`` is their Σ p_i, and ``asked`` the round in which each was asked.
    All three are empty, or 0, until the replies are read.
    """

    def __init__(self, cohort: Cohort, method: str, send: Send, up: type[U]) -> None:
        self._cohort = cohort
        self._method = method
        self._up = up
        self._send: Send | None = send
        self.ids: tuple[int, ...] = ()
        self.share = 0.0
        self.asked: dict[int, int] = {}

    @property
    def count(self) -> int:
        """The number of clients that replied; 0 until the replies are read."""
        return len(self.ids)

    def mean(self) -> U:
        """Every field's mean over the replies, weighted by p_i. Raises TooFewReplies if there is none."""
        total = self._total(self._read(self._cohort.p))
        return self._make({k: None if v is None else _over(v, self.share) for k, v in total.items()})

    def sum(self, weights: Mapping[int, float] | None = None) -> U:
        """Every field's sum over the replies, weighted by ``weights``, by default the global p_i.

        Raises TooFewReplies if there is no reply.
        """
        return self._make(self._total(self._read(self._cohort.p if weights is None else weights)))

    def each(self) -> dict[int, U]:
        """The replies by client id, ascending; possibly none."""
        fold = self._read(None)
        return {i: self._make(packed) for i, packed in sorted(fold.replies.items())}

    def bounded(self, weight: float, scales: Mapping[str, float] | float, noise: float = 0.0) -> BoundedSum:
        """See `medley.contract.cohort.Replies.bounded`."""
        fold = self._read(dict.fromkeys(self._cohort.p, weight), Clip(scales, noise))
        return BoundedSum(fold.total, fold.within, len(fold.ids))

    def _total(self, fold: Fold) -> Packed:
        if fold.total is None:
            raise TooFewReplies(
                f"none of the {len(self._cohort)} clients asked in round {self._cohort.round} answered; check "
                "that they are reachable, or raise the participation"
            )
        return fold.total

    def _read(self, weights: Mapping[int, float] | None, clip: Clip | None = None) -> Fold:
        if self._send is None:
            raise MedleyError(f"ask({self._method}): its replies have been read already")
        send = self._send
        self._send = None
        with stopwatch.doing("exchanges"):
            outcome = send(weights, clip)
        self.ids = outcome.fold.ids
        self.asked = {i: outcome.tags[i][0] for i in self.ids}
        self.share = sum(self._cohort.p[i] for i in self.ids)
        return outcome.fold

    def _make(self, fields: Packed) -> U:
        # Not through __init__: a mean of ints is a float, whatever the declared type.
        message = object.__new__(self._up)
        message.__dict__.update(fields)
        return message


def _over(total: Tensor | Scalar, share: float) -> Tensor | Scalar:
    """total / share; in the memory of a total of floats, which nothing else uses."""
    return total.div_(share) if isinstance(total, Tensor) and total.is_floating_point() else total / share
