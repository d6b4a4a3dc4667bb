"""Differential privacy: a wrapper of methods, its noise, and the accounting of the privacy that a run has spent."""

from .accountant import epsilon, noise_for
from .mechanisms import Banded
from .private import Private
from .quantile import Quantile

__all__ = ["Banded", "Private", "Quantile", "epsilon", "noise_for"]
