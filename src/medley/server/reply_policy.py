"""Reply policy: the replies that the server waits for, and its treatment of clients that fail."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..contract import Need, RecipeError, Settings, integer, real, take
from ..numerics.shares import least_of


@dataclass(frozen=True)
class ReplyPolicy(Settings):
    """The rules of an exchange. By default the server waits for all replies, and a failing client ends the run.

    Attributes:
        deadline: seconds on ``clock`` after which an exchange is over; the clock has then run that long. Default None:
            no deadline
        replies: the exchange ends with this number of replies, or with this share of the cohort if below 1. Default
            None: all
        quorum: the share of the cohort in [0, 1] that has to reply, else TooFewReplies; default 0
        retries: a client whose request or reply was lost is asked again, up to this number of times; each attempt costs
            its bytes, and the deadline if there is one. Default 0
        faulty: for clients that raise, or that reply with undeclared fields or with numbers that are not finite:
            "raise" (default) ends the run with the error, "drop" counts the reply as lost
        clock: "virtual" (default), the clock of `medley.devices.Devices`, with the same bits on each run; or "wall", on
            nodes only: a late reply then enters the round in which it arrives in fact

    A reply after the end of its exchange is late. A method that asks with ``late="deliver"`` gets it in the round in
    which it arrives; for other methods it is lost. Until then its client is at work and is not asked again.

    Raises RecipeError if a value is outside these ranges.
    """

    deadline: float | None = None
    replies: float | None = None
    quorum: float = 0.0
    retries: int = 0
    faulty: Literal["raise", "drop"] = "raise"
    clock: Literal["virtual", "wall"] = "virtual"

    def __post_init__(self) -> None:
        take(self, real, "deadline", "replies", "quorum")
        take(self, integer, "retries")
        quorum = real(self.quorum)
        retries = integer(self.retries)
        for name, value, ok, wants in (
            ("deadline", self.deadline, _above_0(self.deadline), "above 0 and finite, or None"),
            ("replies", self.replies, _above_0(self.replies), "a share below 1 or a whole number, above 0, or None"),
            ("quorum", self.quorum, quorum is not None and 0 <= quorum <= 1, "a share in [0, 1]"),
            ("retries", self.retries, retries is not None and retries >= 0, "a whole number, 0 or more"),
        ):
            if not ok or (name == "replies" and value is not None and value > 1 and value != int(value)):
                raise RecipeError(f"ReplyPolicy({name}={value!r}): must be {wants}", name)
        if self.faulty not in ("raise", "drop"):
            raise RecipeError.unknown(str(self.faulty), ("raise", "drop"), "ReplyPolicy(faulty=...)")
        if self.clock not in ("virtual", "wall"):
            raise RecipeError.unknown(str(self.clock), ("virtual", "wall"), "ReplyPolicy(clock=...)")
        if self.clock == "wall" and self.retries:
            raise RecipeError(
                "ReplyPolicy(clock='wall', retries=...): the server asks a node that went away again by itself; leave "
                "retries out",
                "retries",
            )

    def __repr__(self) -> str:
        """Without the virtual clock: folders of runs from before there was another one compare this text."""
        shown = {k: v for k, v in vars(self).items() if (k, v) != ("clock", "virtual")}
        return f"ReplyPolicy({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    @property
    def endless(self) -> bool:
        """True if the server waits for every reply, and a fault ends the run."""
        return self == EVERY_REPLY

    @property
    def gives(self) -> frozenset[Need]:
        """INDEPENDENT if one client's reply counts no matter whether others reply; PROMPT if no reply is late."""
        guarantees = {
            Need.INDEPENDENT: self.replies is None and not self.quorum,
            Need.PROMPT: self.replies is None and self.deadline is None,
        }
        return frozenset(need for need, holds in guarantees.items() if holds)

    def waits(self, cohort_sizes: Iterable[int]) -> bool:
        """True if exchanges with these numbers of clients end with their last reply, so that none is late."""
        if self.deadline is not None or self.replies is None:
            return self.deadline is None
        return all((self.enough(n) or n) >= n for n in cohort_sizes)

    def lacks(self, replied: int, requests: int) -> bool:
        """True if the run ends because too few of the clients that were asked replied."""
        return replied < least_of(self.quorum, requests)

    def enough(self, requests: int) -> int | None:
        """The number of replies that ends an exchange with ``requests`` clients; None waits for all."""
        if self.replies is None:
            return None
        return max(1, least_of(self.replies, requests) if self.replies < 1 else int(self.replies))


def _above_0(value: Any) -> bool:
    number = real(value)
    return value is None or (number is not None and 0 < number < math.inf)


EVERY_REPLY = ReplyPolicy()
"""The server waits for every reply, and a fault ends the run."""
