"""Objectives on a flat vector: networks and generalised linear models, and the engines behind descend."""

from .linear import LeastSquares as LeastSquares
from .linear import Logistic as Logistic
from .linear import Softmax as Softmax
from .network import Network as Network
from .synthetic import Synthetic as Synthetic
from .synthetic import logistic as logistic
from .synthetic import quadratics as quadratics
