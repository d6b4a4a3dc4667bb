"""Objectives f_i on a flat vector: generalised linear models, networks, forests, and synthetic
federations.

Side: both: the server knows a problem's shapes and classes; an objective holds one client's rows and stays with them.
"""

from ..contract.public import public
from .language import causal_lm
from .linear import LeastSquares, Logistic, Softmax
from .network import Network
from .survival import cox
from .synthetic import Synthetic, synthetic_logistic, synthetic_quadratics
from .trees import Trees

__all__ = [
    "LeastSquares",
    "Logistic",
    "Network",
    "Softmax",
    "Synthetic",
    "Trees",
    "causal_lm",
    "cox",
    "synthetic_logistic",
    "synthetic_quadratics",
]

public(__name__)
