"""VGG-11, for images.

The source is configuration A of Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", ICLR 2015.

The network is one flat nn.Sequential, whose structure an engine can see. As in torchvision, convolutions have a
bias even if a norm follows. `medley.models.pretrained.load_torchvision` loads torchvision's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from ..contract import RecipeError, checked
from .normal import Dropout, Norm, Size, image_sizes, normal

PLAN = (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0)
"""Channels of the convolutions in multiples of the width; 0 stands for a 2×2 max-pooling."""


@checked("models")
def vgg11(
    shape: Sequence[Size] = (3, 32, 32),
    classes: Size = 10,
    norm: Norm | None = None,
    width: Size = 64,
    hidden: Sequence[Size] = (),
    dropout: Dropout = 0.0,
) -> nn.Sequential:
    """VGG-11: eight 3×3 convolutions, five 2×2 max-poolings, then linear layers; 9,225,610 parameters for CIFAR-10.

    With ``norm`` it has 9,231,114. The network of the paper is ``vgg11((3, 224, 224), 1000, hidden=(4096, 4096),
    dropout=0.5)``, with 132,863,336 parameters, and 132,868,840 with ``norm="batch"``. For [3, 64, 64] and 200 classes,
    as in Tiny ImageNet, it has 9,630,280.

    Args:
        shape: Shape of a row, [channels, height, width], at least 32×32; default [3, 32, 32].
        classes: Number of outputs; default 10.
        norm: None (default), "batch" or "group", with 16 channels in a group.
        width: Channels of the first convolution; the others have 2, 4, 4, 8, 8, 8 and 8 times as many. Default 64.
        hidden: Units of each hidden linear layer; default none, as is usual for CIFAR.
        dropout: Probability with which a hidden unit is dropped in training; default 0.

    Raises RecipeError if a size is below 1, the image is too small, the norm unknown or the dropout outside [0, 1).
    """
    c, h, w = image_sizes("models.vgg11", shape)
    if min(h, w) < 32:
        raise RecipeError(
            f"models.vgg11(shape={shape}): five poolings need images of at least 32×32; use models.cnn or "
            "models.resnet for smaller ones.",
            "shape",
        )
    layers: list[nn.Module] = []
    for times in PLAN:
        if not times:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(c, times * width, 3, padding=1))
        c = times * width
        layers += [nn.ReLU()] if norm is None else [normal(c, norm), nn.ReLU()]
    layers.append(nn.Flatten())
    widths = [c * (h // 32) * (w // 32), *hidden]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
