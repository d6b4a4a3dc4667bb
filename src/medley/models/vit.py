"""Vision transformers: patches as tokens, with normalisation before each sub-layer.

The source is Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR
2021. The small sizes follow Touvron et al., "Training data-efficient image transformers", ICML 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import RecipeError, checked
from .normal import Size, image_sizes


@checked("models")
def vit(
    shape: Sequence[Size] = (3, 32, 32),
    classes: Size = 10,
    patch: Size = 4,
    width: Size = 64,
    depth: Size = 6,
    heads: Size = 4,
) -> nn.Sequential:
    """A vision transformer without dropout; the default, for CIFAR-10, has 308,042 parameters.

    ViT-B/16 is ``vit((3, 224, 224), 1000, 16, 768, 12, 12)``, with 86,567,656 parameters; DeiT-Ti is
    ``vit((3, 224, 224), 1000, 16, 192, 12, 3)``, with 5,717,416. A hidden layer of a block has 4·``width`` units.

    Args:
        shape: Shape of a row, [channels, height, width]; default [3, 32, 32].
        classes: Number of outputs; default 10.
        patch: Height and width of a patch; default 4.
        width: Length of a token; default 64.
        depth: Number of blocks; default 6.
        heads: Attention heads of a block; default 4.

    Raises RecipeError if a size is below 1, patches do not tile the image, or heads do not divide the width.
    """
    c, h, w = image_sizes("models.vit", shape)
    if h % patch or w % patch:
        raise RecipeError(f"models.vit(patch={patch}) does not divide images of {h}×{w}.", "patch")
    if width % heads:
        raise RecipeError(f"models.vit(heads={heads}) does not divide the width {width}.", "heads")
    count = (h // patch) * (w // patch)
    blocks = [TransformerBlock(width, heads) for _ in range(depth)]
    return nn.Sequential(
        nn.Conv2d(c, width, patch, patch),
        PatchTokens(width, count),
        *blocks,
        nn.LayerNorm(width, eps=1e-6),
        FirstToken(),
        nn.Linear(width, classes),
    )


class PatchTokens(nn.Module):
    """Maps of patches [b, width, h, w] as tokens [b, 1 + h·w, width]: a class token first, then positions added."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, 1 + count, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw class token and positions from a normal distribution of deviation 0.02, truncated at ±2."""
        nn.init.trunc_normal_(self.token, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """[b, width, h, w] to [b, 1 + h·w, width]."""
        tokens = x.flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), with GELU and a hidden layer of 4·``width`` units."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, width] to [b, t, width]."""
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, width))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class FirstToken(nn.Module):
    """The class token of each row: [b, t, width] to [b, width]."""

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, width] to [b, width]."""
        return x[:, 0]
