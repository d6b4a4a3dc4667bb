"""The league's federations by name: who holds which rows, the model, the pace, and the figure that counts.

Groups: ``development`` and ``networks`` are for changes of methods; ``test`` runs once per candidate;
``clock-development`` and ``clock`` have devices, and count virtual seconds to a target.
"""

from __future__ import annotations

import clocks
import rounds
import sealed
from registry import FEDERATIONS, Entry

__all__ = ["FEDERATIONS", "Entry", "clocks", "rounds", "sealed"]
