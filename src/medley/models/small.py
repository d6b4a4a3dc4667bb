"""Small networks: an nn.Sequential, whose structure an engine can see, with nn.Linear as its last layer.

Methods call the last layer's input the features. Rows are flat [b, features] for ``softmax`` and ``mlp``, and
[b, channels, height, width] for ``cnn``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from ..contract import RecipeError, checked
from .normal import Size, image_sizes


def softmax(features: int, classes: int) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer from ``features`` inputs to ``classes`` outputs."""
    return mlp(features, classes, hidden=())


@checked("models")
def mlp(features: Size, classes: Size, hidden: Sequence[Size] = (64,)) -> nn.Sequential:
    """A multilayer perceptron: linear layers with ReLU between them.

    Args:
        features: Length of a row.
        classes: Number of outputs.
        hidden: Units of each hidden layer; default one layer of 64.

    Raises RecipeError if a size is below 1.
    """
    widths = [features, *hidden, classes]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@checked("models")
def cnn(
    shape: Sequence[Size] = (1, 14, 14),
    classes: Size = 10,
    channels: Sequence[Size] = (8, 16),
    kernel: Size = 3,
    hidden: Size = 32,
) -> nn.Sequential:
    """Convolutions without padding, each with ReLU and 2×2 max-pooling, then one hidden layer.

    After LeCun et al. (1998). A map is pooled while it is at least 4×4. The default, for 14×14 images, has 9,802
    parameters; ``cnn((1, 28, 28), channels=(16, 32), kernel=5, hidden=128)`` is the usual LeNet-like net, with 80,202.

    Args:
        shape: Shape of a row, [channels, height, width]; default [1, 14, 14].
        classes: Number of outputs; default 10.
        channels: Channels of each convolution; default 8 and 16.
        kernel: Height and width of a kernel; default 3.
        hidden: Units of the hidden layer; default 32.

    Raises RecipeError if a size is below 1, or a kernel exceeds its map.
    """
    c, h, w = image_sizes("models.cnn", shape)
    layers: list[nn.Module] = []
    for out in channels:
        if kernel > min(h, w):
            raise RecipeError(
                f"models.cnn(kernel={kernel}) does not fit the {h}×{w} map that remains of {shape}.", "kernel"
            )
        layers += [nn.Conv2d(c, out, kernel), nn.ReLU()]
        c = out
        h = h - kernel + 1
        w = w - kernel + 1
        if min(h, w) // 2 >= 4:
            layers.append(nn.MaxPool2d(2))
            h = h // 2
            w = w // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(c * h * w, hidden), nn.ReLU(), nn.Linear(hidden, classes))
