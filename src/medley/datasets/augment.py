"""Augmentation of images: functions of a batch and a random stream, which return a new batch.

Every function draws from the generator on the CPU only, so that the draws are the same on every device. Rows are
[b, channels, height, width]. By default, pixels from beyond the image are 0, so augment normalised images.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..contract.errors import RecipeError


def crop(
    X: Tensor, generator: torch.Generator, padding: int = 4, mode: Literal["constant", "reflect"] = "constant"
) -> Tensor:
    """Each image, padded on all sides and cropped to its size at a random place (He et al., CVPR 2016).

    Args:
        X: Images [b, c, h, w].
        generator: The source of the places, two integers an image.
        padding: Pixels on each side; default 4.
        mode: "constant", the default, pads with zeros, "reflect" with the image mirrored at its border.

    Raises RecipeError if the rows are not images, the mode is neither, or the padding is below 0 or, in the
    mode "reflect", not below the image's height and width.
    """
    _images("crop", X)
    if mode not in ("constant", "reflect"):
        raise RecipeError.unknown(str(mode), ("constant", "reflect"), "augment.crop(mode=...)")
    b, _, h, w = X.shape
    if padding < 0:
        raise RecipeError(f"augment.crop(padding={padding}): padding must be at least 0.", "padding")
    if mode == "reflect" and padding >= min(h, w):
        raise RecipeError(
            f"augment.crop(padding={padding}): to mirror images of {h}×{w}, use a padding of at most {min(h, w) - 1}.",
            "padding",
        )
    top, left = torch.randint(0, 2 * padding + 1, (2, b), generator=generator).to(X.device)
    padded = torch.nn.functional.pad(X, (padding,) * 4, mode)
    rows = (top[:, None] + torch.arange(h, device=X.device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(w, device=X.device))[:, None, None, :]
    images = torch.arange(b, device=X.device)[:, None, None, None]
    channels = torch.arange(X.shape[1], device=X.device)[None, :, None, None]
    return padded[images, channels, rows, columns]


def flip(X: Tensor, generator: torch.Generator, probability: float = 0.5) -> Tensor:
    """Each image, mirrored left to right with this probability.

    Args:
        X: Images [b, c, h, w].
        generator: The source of the draws, one number an image.
        probability: Probability that an image is mirrored; default 0.5.

    Raises RecipeError if the rows are not images, or the probability lies outside [0, 1].
    """
    _images("flip", X)
    if not 0 <= probability <= 1:
        raise RecipeError(f"augment.flip(probability={probability}): must be from 0 to 1.", "probability")
    mirrored = (torch.rand(len(X), generator=generator) < probability).to(X.device)
    return torch.where(mirrored[:, None, None, None], X.flip(3), X)


def cutout(X: Tensor, generator: torch.Generator, size: int = 16) -> Tensor:
    """Each image with a square of zeros, centred at a random pixel and cut off at the border.

    The source is DeVries & Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017. Their
    side is 16 for CIFAR-10 and 8 for CIFAR-100.

    Args:
        X: Images [b, c, h, w].
        generator: The source of the centres, two integers an image.
        size: Side of the square in pixels; default 16.

    Raises RecipeError if the rows are not images, or the size is below 1.
    """
    _images("cutout", X)
    if size < 1:
        raise RecipeError(f"augment.cutout(size={size}): size must be at least 1.", "size")
    inside = []
    for length in X.shape[2:]:
        begin = torch.randint(0, length, (len(X), 1), generator=generator) - size // 2
        places = torch.arange(length)
        inside.append(((places >= begin) & (places < begin + size)).to(X.device))
    rows, columns = inside
    return X.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def _images(call: str, X: Tensor) -> None:
    if X.ndim != 4:
        raise RecipeError(f"augment.{call}: X is {tuple(X.shape)}, not [b, channels, height, width].", "X")
