"""torchvision's weights: names and shapes by its published naming, since torchvision is no dependency."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from medley import models
from medley.contract.errors import RecipeError
from medley.models.pretrained import load_torchvision
from support.pairs import quick

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def norm(name: str, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{name}.{kind}", (channels,)) for kind in ("weight", "bias", "running_mean", "running_var"))
    yield f"{name}.num_batches_tracked", ()


def resnet_names(depth: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes in torchvision's state_dict of ResNet-18, -34 and -50."""
    yield "conv1.weight", (64, 3, 7, 7)
    yield from norm("bn1", 64)
    c = 64
    for stage, count in enumerate(DEPTHS[depth]):
        width = 64 << stage
        out = 4 * width if depth == 50 else width
        for k in range(count):
            at = f"layer{stage + 1}.{k}"
            shapes = [(width, c, 3), (width, width, 3)]
            if depth == 50:
                shapes = [(width, c, 1), (width, width, 3), (out, width, 1)]
            for i, (b, a, kernel) in enumerate(shapes, 1):
                yield f"{at}.conv{i}.weight", (b, a, kernel, kernel)
                yield from norm(f"{at}.bn{i}", b)
            if k == 0 and (c != out or stage):
                yield f"{at}.downsample.0.weight", (out, c, 1, 1)
                yield from norm(f"{at}.downsample.1", out)
            c = out
    yield "fc.weight", (1000, c)
    yield "fc.bias", (1000,)


def vgg_names(normed: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes in torchvision's state_dict of vgg11 and vgg11_bn."""
    i, c = 0, 3
    for v in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if not v:
            i += 1
            continue
        yield f"features.{i}.weight", (v, c, 3, 3)
        yield f"features.{i}.bias", (v,)
        if normed:
            yield from norm(f"features.{i + 1}", v)
        i, c = i + (3 if normed else 2), v
    for k, (a, b) in zip((0, 3, 6), ((25088, 4096), (4096, 4096), (4096, 1000)), strict=True):
        yield f"classifier.{k}.weight", (b, a)
        yield f"classifier.{k}.bias", (b,)


def drawn(names: Iterator[tuple[str, tuple[int, ...]]]) -> dict[str, Tensor]:
    """A number of its own in each tensor, so that a swapped pair is seen."""
    return {
        name: torch.full(shape, k + 1, dtype=torch.int64 if name.endswith("tracked") else torch.float32)
        for k, (name, shape) in enumerate(names)
    }


def test_published_names_are_those_of_the_published_number_of_parameters() -> None:
    sizes = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032}
    for depth, size in sizes.items():
        shapes = [s for name, s in resnet_names(depth) if "running" not in name and "tracked" not in name]
        assert sum(torch.Size(s).numel() for s in shapes) == size


@pytest.mark.parametrize("depth", quick(1, [18, 34, 50]))
def test_every_weight_of_a_resnet_has_its_place(depth: int) -> None:
    make = {18: models.resnet18, 34: models.resnet34, 50: models.resnet50}[depth]
    model = make((3, 224, 224), 1000, "batch", "imagenet")
    weights = drawn(resnet_names(depth))
    assert load_torchvision(model, weights) == ()
    # torchvision's layers come in the order of the forward pass, as ours do.
    assert [float(t.flatten()[0]) for t in model.state_dict().values()] == [
        float(t.flatten()[0]) for t in weights.values()
    ]
    assert [t.shape for t in model.state_dict().values()] == [t.shape for t in weights.values()]


def test_what_does_not_fit_is_left_out_and_named() -> None:
    weights = drawn(resnet_names(18))
    small = models.resnet18(classes=10, norm="batch")
    before = small[0].weight.clone()
    assert load_torchvision(small, weights) == ("conv1.weight", "fc.weight", "fc.bias")
    assert torch.equal(small[0].weight, before)
    grouped = models.resnet18((3, 224, 224), 1000, "group", "imagenet")
    left = load_torchvision(grouped, weights)
    assert len(left) == 3 * 20
    assert {name.rpartition(".")[2] for name in left} == {"running_mean", "running_var", "num_batches_tracked"}
    assert grouped[1].weight.detach().unique().tolist() == [2.0]


@pytest.mark.parametrize("normed", [False, True])
def test_the_convolutions_of_a_vgg_have_their_places(normed: bool) -> None:
    model = models.vgg11((3, 64, 64), 200, "batch" if normed else None)
    shapes = dict(vgg_names(normed))
    weights = drawn((n, s) for n, s in shapes.items() if not n.startswith("classifier"))
    heads = {n: torch.empty(s, device="meta") for n, s in shapes.items() if n.startswith("classifier")}
    assert load_torchvision(model, {**weights, **heads}) == tuple(heads)
    assert [float(t.flatten()[0]) for t in model[:-1].state_dict().values()] == list(range(1, len(weights) + 1))


@pytest.mark.shapes
def test_the_linear_layers_of_a_vgg_are_torchvisions() -> None:
    with torch.device("meta"):
        model = models.vgg11((3, 224, 224), 1000, hidden=(4096, 4096), dropout=0.5)
        weights = {n: torch.empty(s) for n, s in vgg_names(False)}
    assert load_torchvision(model, weights) == ()


def test_other_architectures_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"no 'layer1\.2\.conv1\.weight'"):
        load_torchvision(models.resnet34(), drawn(resnet_names(18)))
    with pytest.raises(RecipeError, match=r"no place for 'layer1\.2\.conv1\.weight'"):
        load_torchvision(models.resnet18(), drawn(resnet_names(34)))
    with pytest.raises(RecipeError, match=r"made by models\.resnet\.\.\., or by models\.vgg11"):
        load_torchvision(nn.Sequential(nn.Linear(2, 2)), {})
