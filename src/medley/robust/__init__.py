"""Aggregation rules that tolerate Byzantine clients, and `Robust`, a wrapper that gives such a rule to a method.

Side: the server's. A rule sees the single replies of clients, never their rows.
"""

from ..contract.public import public
from .centred_clipping import CentredClipping
from .fltrust import FLTrust
from .geometric_median import GeometricMedian
from .krum import Krum, MultiKrum
from .median import Median
from .mixed import Mixed
from .robust import Robust
from .rule import Rule
from .trimmed_mean import TrimmedMean

__all__ = [
    "CentredClipping", "FLTrust", "GeometricMedian", "Krum", "Median", "Mixed", "MultiKrum", "Robust", "Rule",
    "TrimmedMean",
]  # fmt: skip

public(__name__)
