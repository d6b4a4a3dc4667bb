from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from medley import models
from medley.contract.errors import RecipeError

LENET = {"shape": (1, 28, 28), "channels": (16, 32), "kernel": 5, "hidden": 128}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("model", "row", "parameters", "features"),
    [
        (models.softmax(784, 10), (784,), 7_850, 784),
        (models.mlp(64, 10), (64,), 4_810, 64),
        (models.mlp(784, 10, hidden=(256, 128)), (784,), 235_146, 128),
        (models.cnn(), (1, 14, 14), 9_802, 32),
        (models.cnn(**LENET), (1, 28, 28), 80_202, 128),
        (models.cnn((3, 32, 32), 100, (16, 32), 5, 128), (3, 32, 32), 129_476, 128),
    ],
)
def test_sizes_and_shapes(model: nn.Sequential, row: tuple[int, ...], parameters: int, features: int) -> None:
    assert count(model) == parameters
    head = model[-1]
    assert isinstance(head, nn.Linear)
    assert head.in_features == features
    assert model(torch.zeros(5, *row)).shape == (5, head.out_features)
    assert all(not list(layer.children()) for layer in model)


def test_lenet_layers_come_in_the_usual_order() -> None:
    kinds = [type(layer).__name__ for layer in models.cnn(**LENET)]
    block = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == [*block, *block, "Flatten", "Linear", "ReLU", "Linear"]
    small = [type(layer).__name__ for layer in models.cnn()]
    assert small == [*block, "Conv2d", "ReLU", "Flatten", "Linear", "ReLU", "Linear"]


def test_cnn_computes_what_its_docstring_says() -> None:
    model = models.cnn(**LENET)
    W1, b1, W2, b2, V, c, U, d = model.parameters()
    x = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    def block(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
        return F.max_pool2d(F.conv2d(x, W, b).clamp(min=0), 2)

    by_hand = (block(block(x, W1, b1), W2, b2).flatten(1) @ V.T + c).clamp(min=0) @ U.T + d
    assert torch.allclose(model(x), by_hand, atol=1e-6)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"kernel=5\) does not fit the 3×3 map"):
        models.cnn((1, 7, 7), kernel=5)
    with pytest.raises(RecipeError, match="classes=0"):
        models.softmax(3, 0)
    with pytest.raises(RecipeError, match=r"hidden=\(4, -1\)"):
        models.mlp(3, 2, hidden=(4, -1))
