"""Residual networks, with the layers' own initialisation.

Stages of basic or bottleneck blocks (He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition", CVPR 2016).
A bottleneck's stride lies in its 3×3 convolution, as in torchvision. ``stem="cifar"`` is a 3×3 convolution without
pooling; ``stem="imagenet"`` is a 7×7 convolution of stride 2 and a 3×3 max-pooling of stride 2. ``norm="group"``
normalises groups of 16 channels (Wu & He, "Group Normalization", ECCV 2018). It suits clients with different data,
because it keeps no statistics of their rows. ``norm="batch"`` is the original; its running statistics are buffers,
which a federation averages.

`medley.models.pretrained.load_torchvision` loads torchvision's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from ..contract import RecipeError, checked
from .normal import Norm, Size, image_sizes, normal

Stem = Literal["cifar", "imagenet"]


@checked("models")
def resnet(
    shape: Sequence[Size] = (3, 32, 32),
    classes: Size = 10,
    blocks: Sequence[Size] = (1, 1, 1),
    width: Size = 16,
    norm: Norm = "group",
    stem: Stem = "cifar",
    bottleneck: bool = False,
) -> nn.Sequential:
    """A residual network; each stage but the first halves height and width and doubles the channels.

    The default is ResNet-8, with 78,042 parameters.

    Args:
        shape: Shape of a row, [channels, height, width]; default [3, 32, 32].
        classes: Number of outputs; default 10.
        blocks: Blocks of each stage; default one in each of three stages.
        width: Channels of the first stage; default 16.
        norm: "group" (default) or "batch".
        stem: "cifar" (default) or "imagenet".
        bottleneck: Whether blocks are bottlenecks, with four times the channels at their ends; default False.

    Raises RecipeError if a size is below 1, or the norm or the stem is unknown.
    """
    image_sizes("models.resnet", shape)
    if not blocks:
        raise RecipeError("models.resnet(blocks=()): give at least one stage, with its number of blocks", "blocks")
    small = stem == "cifar"
    first = nn.Conv2d(shape[0], width, 3 if small else 7, 1 if small else 2, padding=1 if small else 3, bias=False)
    layers: list[nn.Module] = [first, normal(width, norm), nn.ReLU()]
    if not small:
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    c = width
    for stage, count in enumerate(blocks):
        for k in range(count):
            block = Block(c, width << stage, 2 if stage and k == 0 else 1, norm, bottleneck)
            layers.append(block)
            c = block.out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))


def resnet18(
    shape: Sequence[int] = (3, 32, 32), classes: int = 10, norm: Norm = "group", stem: Stem = "cifar"
) -> nn.Sequential:
    """ResNet-18: 11,173,962 parameters for CIFAR-10, 11,689,512 for ImageNet. Arguments as in `resnet`."""
    return resnet(shape, classes, blocks=(2, 2, 2, 2), width=64, norm=norm, stem=stem)


def resnet34(
    shape: Sequence[int] = (3, 32, 32), classes: int = 10, norm: Norm = "group", stem: Stem = "cifar"
) -> nn.Sequential:
    """ResNet-34: 21,282,122 parameters for CIFAR-10, 21,797,672 for ImageNet. Arguments as in `resnet`."""
    return resnet(shape, classes, blocks=(3, 4, 6, 3), width=64, norm=norm, stem=stem)


def resnet50(
    shape: Sequence[int] = (3, 32, 32), classes: int = 10, norm: Norm = "group", stem: Stem = "cifar"
) -> nn.Sequential:
    """ResNet-50: 23,520,842 parameters for CIFAR-10, 25,557,032 for ImageNet. Arguments as in `resnet`."""
    return resnet(shape, classes, blocks=(3, 4, 6, 3), width=64, norm=norm, stem=stem, bottleneck=True)


class Block(nn.Module):
    """A residual block: ReLU(x' + way(x)), x' = x, or norm(1×1 conv(x)) if the shape changes.

    In a basic block, way(x) is norm(conv(ReLU(norm(conv(x))))) with 3×3 convolutions. A bottleneck has a 1×1, a 3×3
    and a 1×1 convolution; the last one has 4·``channels`` outputs.

    Args:
        c: number of input channels.
        channels: number of channels of the 3×3 convolutions.
        stride: stride of the first 3×3 convolution.

    Attributes:
        out: number of output channels.
    """

    def __init__(self, c: int, channels: int, stride: int, norm: Norm, bottleneck: bool = False) -> None:
        super().__init__()
        self.stride = stride
        self.out = 4 * channels if bottleneck else channels
        kernels = [(c, channels, 1), (channels, channels, 3), (channels, self.out, 1)]
        if not bottleneck:
            kernels = [(c, channels, 3), (channels, channels, 3)]
        strides = [1, stride, 1] if bottleneck else [stride, 1]
        layers: list[nn.Module] = []
        for (a, b, kernel), step in zip(kernels, strides, strict=True):
            layers += [nn.Conv2d(a, b, kernel, step, padding=kernel // 2, bias=False), normal(b, norm), nn.ReLU()]
        self.way = nn.Sequential(*layers[:-1])
        same = c == self.out and stride == 1
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(c, self.out, 1, stride, bias=False), normal(self.out, norm))
        )

    def forward(self, x: Tensor) -> Tensor:
        """[b, c, h, w] to [b, out, ⌈h/stride⌉, ⌈w/stride⌉]."""
        return nn.functional.relu(self.short(x) + self.way(x))
