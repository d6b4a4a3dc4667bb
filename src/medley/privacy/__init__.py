"""Differential privacy: a wrapper of methods, its noise, and the accounting of the privacy that a run has spent.

Side: `rows`, `trees` and `skellam` act at the client, before a reply leaves it; all else is the server's, which sees no
rows.
"""

from ..contract.public import public
from .accountant import epsilon, noise_for
from .mechanisms import Banded
from .private import Private
from .quantile import Quantile

__all__ = ["Banded", "Private", "Quantile", "epsilon", "noise_for"]

public(__name__)
