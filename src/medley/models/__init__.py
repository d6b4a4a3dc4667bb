"""Plain nn.Modules; they know nothing of clients."""

from medley.models.init import initialise
from medley.models.small import cnn, mlp, softmax

__all__ = ["cnn", "initialise", "mlp", "softmax"]
