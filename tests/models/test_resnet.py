from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from medley import models
from medley.contract.errors import RecipeError
from medley.models.resnet import Block
from medley.recipe import loads
from support.pairs import quick


@pytest.mark.parametrize(
    ("options", "row", "parameters", "features"),
    quick(
        3,
        [
            # ResNet-18 and ResNet-34 for CIFAR as published: 11.17 and 21.28 million.
            ({"blocks": (2, 2, 2, 2), "width": 64}, (3, 32, 32), 11_173_962, 512),
            ({"blocks": (2, 2, 2, 2), "width": 64, "classes": 100}, (3, 32, 32), 11_220_132, 512),
            ({"blocks": (3, 4, 6, 3), "width": 64}, (3, 32, 32), 21_282_122, 512),
            ({}, (3, 32, 32), 78_042, 64),
            ({"shape": (1, 28, 28), "width": 8}, (1, 28, 28), 19_810, 32),
        ],
    ),
)
@pytest.mark.parametrize("norm", quick(1, ["group", "batch"]))
def test_sizes_and_shapes(options: Any, row: tuple[int, ...], parameters: int, features: int, norm: Any) -> None:
    model = models.resnet(**options, norm=norm)
    assert sum(p.numel() for p in model.parameters()) == parameters
    head = model[-1]
    assert isinstance(head, nn.Linear)
    assert head.in_features == features
    assert model(torch.zeros(2, *row)).shape == (2, head.out_features)


@pytest.mark.parametrize(
    ("make", "published", "cifar"),
    [
        (models.resnet18, 11_689_512, 11_173_962),
        (models.resnet34, 21_797_672, 21_282_122),
        (models.resnet50, 25_557_032, 23_520_842),
    ],
)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_sizes_for_imagenet_are_those_published(make: Any, published: int, cifar: int, norm: Any) -> None:
    with torch.device("meta"):
        whole, small = make((3, 224, 224), 1000, norm, "imagenet"), make(norm=norm)
    assert sum(p.numel() for p in whole.parameters()) == published
    assert sum(p.numel() for p in small.parameters()) == cifar


def test_the_stem_for_imagenet_quarters_the_image() -> None:
    model = models.resnet((3, 64, 64), 5, (1, 1), 4, stem="imagenet", bottleneck=True)
    x = torch.zeros(2, 3, 64, 64)
    assert model[:4](x).shape == (2, 4, 16, 16)
    assert model[:5](x).shape == (2, 16, 16, 16)
    assert model[:6](x).shape == (2, 32, 8, 8)
    assert model(x).shape == (2, 5)


@pytest.mark.shapes
def test_a_bottleneck_computes_what_its_docstring_says() -> None:
    block = models.resnet(blocks=(1, 1), width=16, bottleneck=True)[4]
    assert isinstance(block, Block)
    U, a1, b1, V, a2, b2, W, a3, b3, R, a4, b4 = block.parameters()
    assert V.shape == (32, 32, 3, 3)
    x = torch.rand(2, 64, 5, 5, generator=torch.Generator().manual_seed(0))
    y = F.group_norm(F.conv2d(x, U), 2, a1, b1).clamp(min=0)
    y = F.group_norm(F.conv2d(y, V, stride=2, padding=1), 2, a2, b2).clamp(min=0)
    z = F.group_norm(F.conv2d(y, W), 8, a3, b3) + F.group_norm(F.conv2d(x, R, stride=2), 8, a4, b4)
    assert torch.allclose(block(x), z.clamp(min=0), atol=1e-5)


def test_resnet18_is_that() -> None:
    model = models.resnet18(classes=200)
    assert [tuple(p.shape) for p in model.parameters()] == [
        tuple(p.shape) for p in models.resnet(classes=200, blocks=(2, 2, 2, 2), width=64).parameters()
    ]
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in model.modules()) == 17


def test_it_computes_what_its_docstring_says() -> None:
    model = models.resnet((2, 6, 5), 3, blocks=(1, 1), width=4)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) / 2)
    W0, a0, b0, U, a1, b1, V, a2, b2, R, a3, b3, Q, a4, b4, S, a5, b5, H, h = model.parameters()
    x = torch.rand(3, 2, 6, 5, generator=torch.Generator().manual_seed(0))

    def norm(z: Tensor, a: Tensor, b: Tensor, groups: int) -> Tensor:
        g = z.reshape(len(z), groups, -1)
        g = (g - g.mean(2, keepdim=True)) / (g.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
        return g.reshape(z.shape) * a[:, None, None] + b[:, None, None]

    z = norm(F.conv2d(x, W0, padding=1), a0, b0, 1).clamp(min=0)
    y = norm(F.conv2d(z, U, padding=1), a1, b1, 1).clamp(min=0)
    z = (z + norm(F.conv2d(y, V, padding=1), a2, b2, 1)).clamp(min=0)
    y = norm(F.conv2d(z, R, stride=2, padding=1), a3, b3, 1).clamp(min=0)
    z = (norm(F.conv2d(z, S, stride=2), a5, b5, 1) + norm(F.conv2d(y, Q, padding=1), a4, b4, 1)).clamp(min=0)
    assert z.shape == (3, 8, 3, 3)
    assert torch.allclose(model(x), z.mean((2, 3)) @ H.T + h, atol=1e-5)


def test_groups_hold_sixteen_channels() -> None:
    norms = [m for m in models.resnet(width=64).modules() if isinstance(m, nn.GroupNorm)]
    assert {(m.num_channels, m.num_groups) for m in norms} == {(64, 4), (128, 8), (256, 16)}


@pytest.mark.slow
@pytest.mark.parametrize("norm", quick(1, ["group", "batch"]))
def test_a_federation_of_two_learns_and_averages_its_statistics(norm: Any) -> None:
    """Stripes up and down; running means start at 0, and are the clients' average after a round."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(32) % 2
    X = 0.3 * torch.randn(32, 1, 8, 8, generator=g)
    X[y == 0, :, ::2] += 1
    X[y == 1, :, :, ::2] += 1
    fed = md.Federation(
        md.problems.Network(models.resnet((1, 8, 8), 2, (1, 1), 4, norm)),
        clients=[(X[:20], y[:20]), (X[20:], y[20:])],
        test=(X, y),
        pace=md.scenarios.Pace(lr=0.2, epochs=2, batch=None),
    )
    run = md.run(md.FedAvg(), fed, rounds=6, progress=False)
    assert run.history[-1]["loss"] < 0.7 * run.history[0]["loss"]
    assert (run.buffers is None) == (norm == "group")
    if run.buffers is not None:
        one = md.run(md.FedAvg(), fed, rounds=1, progress=False, init=run.x).buffers
        parts = [
            md.run(md.FedAvg(), md.Federation(fed.problem, clients=[c], pace=fed.pace), 1, progress=False, init=run.x)
            for c in ((X[:20], y[:20]), (X[20:], y[20:]))
        ]
        mean = sum(p * r.buffers[0] for p, r in zip((20 / 32, 12 / 32), parts, strict=True))
        assert one is not None
        assert torch.allclose(one[0], mean, atol=1e-6)
        assert one[1].tolist() == [2] * 6  # batches seen by each of the six normalisations


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match="width=0"):
        models.resnet(width=0)
    with pytest.raises(RecipeError, match="Did you mean 'imagenet'"):
        models.resnet18(stem="image-net")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="Did you mean 'batch'"):
        models.resnet18(norm="bach")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["resnet", "cnn", "vgg11", "vit"])
def test_recipes_know_it_and_refuse_rows_that_are_no_images(name: str) -> None:
    recipe = loads(
        f'[problem]\nkind = "Network"\nmodel = "{name}"\n'
        '[data]\nname = "digits"\n[partition]\nkind = "IID"\nclients = 2\n'
    )
    with pytest.raises(RecipeError, match=r"shape=\(64,\)\): rows are images"):
        recipe.federation()
