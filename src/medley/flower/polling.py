"""The pause between two looks for work or answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FASTEST = 0.03
"""Seconds between two looks while answers are expected at once; a look takes the SuperLink about 0.01 s."""

SLOWEST = 3.0
"""Seconds between two looks where nothing came for long; Flower's own SuperNode takes 3 always."""


def pause(waited: float, slowest: float = SLOWEST) -> float:
    """Seconds until the next look: a tenth of those waited so far, so that a wait grows by a tenth at most."""
    return min(max(FASTEST, waited / 10), slowest)


EARLY = 0.7
"""The share of the shortest of the last waits after which a node looks for the first time."""

UNSEEN = 1.0
"""The longest time in seconds without a look that an earlier wait is a reason for."""


@dataclass
class Rhythm:
    """Pauses of one who waits again and again, about as long each time: the first look comes shortly before the end."""

    waits: deque[float] = field(default_factory=lambda: deque(maxlen=4))

    def came(self, waited: float) -> None:
        """Remember a wait, of so many seconds."""
        self.waits.append(waited)

    def pause(self, waited: float) -> float:
        """Seconds until the next look, after so many seconds of waiting."""
        return max(pause(waited), min(EARLY * min(self.waits, default=0.0), UNSEEN) - waited)
