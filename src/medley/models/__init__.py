"""Plain nn.Modules; they know nothing of clients."""

from medley.models.small import cnn, mlp, softmax

__all__ = ["cnn", "mlp", "softmax"]
