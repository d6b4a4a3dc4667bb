from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from medley import models
from medley.core import streams
from medley.core.errors import RecipeError

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
    model = models.initialise(models.cnn(**LENET), streams.generator(0, "init"))
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
    with pytest.raises(RecipeError, match="hidden=-1"):
        models.mlp(3, 2, hidden=(4, -1))


class WithBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.LSTM(2, 3), nn.Embedding(5, 2))


@pytest.mark.parametrize("make", [models.cnn, lambda: models.mlp(20, 5, (30,)), WithBuffers])
def test_initialise_depends_on_its_stream_alone(make) -> None:
    torch.manual_seed(1)
    one = models.initialise(make(), streams.generator(0, "init"))
    torch.manual_seed(2)
    module = make()
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(7.0)
    before = torch.random.get_rng_state()
    two = models.initialise(module, streams.generator(0, "init"))
    assert two is module
    assert torch.equal(torch.random.get_rng_state(), before)
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    other = models.initialise(make(), streams.generator(1, "init"))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_initialise_draws_as_torch_does() -> None:
    """Linear weights are uniform on ±1/√features: their variance is 1/(3·features)."""
    W = models.initialise(models.softmax(400, 500), streams.generator(5, "init"))[0].weight.detach().double()
    assert float(W.abs().max()) <= 1 / 20
    assert float(W.var()) == pytest.approx(1 / 1200, rel=0.01)
    assert float(W.mean()) == pytest.approx(0, abs=5 * (1 / 1200 / W.numel()) ** 0.5)


def test_initialise_uses_up_its_generator() -> None:
    g = streams.generator(0, "init")
    a, b = (models.initialise(models.softmax(3, 2), g)[0].weight for _ in range(2))
    assert not torch.equal(a, b)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


def test_initialise_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(RecipeError, match=r"0 \(Bare\) has parameters of its own"):
        models.initialise(nn.Sequential(Bare()), streams.generator(0))
    with pytest.raises(RecipeError, match="on meta"):
        models.initialise(nn.Linear(2, 2, device="meta"), streams.generator(0))
