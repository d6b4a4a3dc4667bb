"""Aggregation rules that tolerate Byzantine clients, and `Robust`, a wrapper that gives such a rule to a method."""

from .centred_clipping import CentredClipping
from .fltrust import FLTrust
from .geometric_median import GeometricMedian
from .krum import Krum, MultiKrum
from .median import Median
from .mixed import Mixed
from .robust import Robust
from .rule import Fold
from .trimmed_mean import TrimmedMean

__all__ = [
    "CentredClipping", "FLTrust", "Fold", "GeometricMedian", "Krum", "Median", "Mixed", "MultiKrum", "Robust",
    "TrimmedMean",
]  # fmt: skip
