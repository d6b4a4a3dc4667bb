"""Replay policies choose, by row number, which rows of past tasks a client keeps.

Side: the client's. A policy sees labels and row numbers, and nothing leaves it.
"""

from ..contract.public import public
from ..numerics.herding import herd
from .reservoir import Reservoir
from .ring import Ring

__all__ = ["Reservoir", "Ring", "herd"]

public(__name__)
