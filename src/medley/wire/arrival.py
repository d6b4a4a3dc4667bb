"""Times of arrival, for runs that do not wait for every reply."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Packed, State
from .exchange import Tag


@dataclass
class Arrival:
    """A reply on its way, with its time of arrival. A run under a policy holds late and punctual replies in this form.

    Attributes:
        tag: the request that the reply answers
        at: time of arrival on the virtual clock, in seconds; ∞ if it is not known, on the wall
        up: payload bytes of the reply
        overhead: framing bytes, both ways
        packed: the reply; None if it will be dropped, or is not there yet
        buffers: p_i times the change of the client's buffers, see `Fold.buffers`; None if they did not change
    """

    method: str
    tag: Tag
    at: float
    up: int
    overhead: int
    packed: Packed | None
    buffers: State | None = None
