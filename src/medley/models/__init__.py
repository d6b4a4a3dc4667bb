"""Plain nn.Modules; they know nothing of clients."""

from medley.models.generator import generator
from medley.models.resnet import resnet, resnet18
from medley.models.small import cnn, mlp, softmax

__all__ = ["cnn", "generator", "mlp", "resnet", "resnet18", "softmax"]
