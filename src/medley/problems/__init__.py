"""Objectives f_i on a flat vector: generalised linear models, networks, and synthetic federations.

Side: both: the server knows a problem's shapes and classes; an objective holds one client's rows and stays with them.
"""

from .language import causal_lm as causal_lm
from .linear import LeastSquares as LeastSquares
from .linear import Logistic as Logistic
from .linear import Softmax as Softmax
from .network import Network as Network
from .survival import concordance as concordance
from .survival import cox as cox
from .synthetic import Synthetic as Synthetic
from .synthetic import logistic as logistic
from .synthetic import quadratics as quadratics
