"""Plain nn.Modules; they know nothing of clients."""

from medley.models.resnet import resnet, resnet18
from medley.models.small import cnn, mlp, softmax

__all__ = ["cnn", "mlp", "resnet", "resnet18", "softmax"]
