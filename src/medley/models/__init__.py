"""Networks as plain nn.Modules, for `medley.problems.Network` and for any other use.

Side: both: the server draws a network's first weights, clients train it. Only `pretrained` opens a file.
"""

from ..contract.public import public
from .fourier import fourier
from .generator import generator
from .resnet import resnet, resnet18, resnet34, resnet50
from .small import cnn, mlp, softmax
from .text import char_lstm, gru, lstm, text_cnn
from .vgg import vgg11
from .vit import vit

__all__ = [
    "char_lstm", "cnn", "fourier", "generator", "gru", "lstm", "mlp", "resnet", "resnet18", "resnet34", "resnet50",
    "softmax", "text_cnn", "vgg11", "vit",
]  # fmt: skip

public(__name__)
