from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from medley import models
from medley.contract.errors import RecipeError
from medley.engines.fused.engine import fused

IMAGENET: dict[str, Any] = {"shape": (3, 224, 224), "classes": 1000, "hidden": (4096, 4096), "dropout": 0.5}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        (IMAGENET, 132_863_336),  # as torchvision publishes
        (IMAGENET | {"norm": "batch"}, 132_868_840),
        (IMAGENET | {"norm": "group"}, 132_868_840),
        ({}, 9_225_610),
        ({"norm": "group"}, 9_231_114),
        ({"norm": "batch", "classes": 100}, 9_277_284),
        ({"shape": (3, 64, 64), "classes": 200}, 9_630_280),
        ({"width": 4, "shape": (1, 32, 32)}, 36_538),
    ],
)
def test_sizes(options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        assert count(models.vgg11(**options)) == parameters


@pytest.mark.parametrize("norm", [None, "group", "batch"])
@pytest.mark.parametrize("size", [32, 64])
def test_both_sizes_of_image_are_read(norm: Any, size: int) -> None:
    model = models.vgg11((3, size, size), 7, norm, width=4)
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 7)
    assert model[-1].in_features == 32 * (size // 32) ** 2
    assert sum(isinstance(m, nn.Conv2d) for m in model) == 8
    kinds = {None: 0, "group": 8, "batch": 8}
    assert sum(isinstance(m, nn.GroupNorm | nn.BatchNorm2d) for m in model) == kinds[norm]


def test_it_computes_what_the_paper_says() -> None:
    model = models.vgg11((2, 32, 40), 3, width=2, hidden=(5,))
    *pairs, W, b, V, c = model.parameters()
    x = torch.rand(3, 2, 32, 40, generator=torch.Generator().manual_seed(0))
    z = x
    for k, (kernel, bias) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
        z = F.conv2d(z, kernel, bias, padding=1).clamp(min=0)
        if k in (0, 1, 3, 5, 7):
            z = F.max_pool2d(z, 2)
    assert [p.shape[0] for p in pairs[::2]] == [2, 4, 8, 8, 16, 16, 16, 16]
    by_hand: Tensor = (z.flatten(1) @ W.T + b).clamp(min=0) @ V.T + c
    assert torch.allclose(model(x), by_hand, atol=1e-6)


def test_without_norm_it_is_a_network_for_the_fused_engine() -> None:
    X, y = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 1, 0])
    for norm, fits in ((None, True), ("group", False)):
        problem = md.problems.Network(models.vgg11(classes=2, width=2, norm=norm)).ready(X, y, 2, None, "cpu")  # type: ignore[arg-type]
        assert (fused(problem) is not None) == fits


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"shape=\(1, 28, 28\)\): five poolings need images of at least 32×32"):
        models.vgg11((1, 28, 28))
    with pytest.raises(RecipeError, match="dropout=1"):
        models.vgg11(dropout=1.0)
    with pytest.raises(RecipeError, match="width=0"):
        models.vgg11(width=0)
    with pytest.raises(RecipeError, match="Did you mean 'group'"):
        models.vgg11(norm="groop")  # type: ignore[arg-type]
