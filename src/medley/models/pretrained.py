"""Load torchvision's weights into networks of `medley.models`: `resnet18`, `resnet34`, `resnet50` and `vgg11`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..contract.errors import RecipeError
from .resnet import Block

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of BatchNorm that GroupNorm does not have."""

HEADS = ("fc.", "classifier.")
"""torchvision's names of the linear layers at the end."""


def load_torchvision(model: nn.Sequential, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Load torchvision's ``state_dict`` into a model, in place, where shapes agree. Returns the names left out.

    If the number of classes differs, the last layer is left out; with ``stem="cifar"`` a ResNet's first layer, and with
    ``norm="group"`` the running statistics. For a `vgg11` without hidden layers, all of torchvision's linear layers are
    left out. To train the result, pass ``Network(model, start="module")``.

    Args:
        model: A `resnet18`, `resnet34`, `resnet50`, another `resnet` or a `vgg11`.
        weights: The ``state_dict`` of torchvision's network of the same name, for example ``torch.load(path)``.

    Raises RecipeError if the model is none of these, or the weights belong to another architecture; the message
    names the first layer that only one of them has.
    """
    state = model.state_dict()
    call = "models.pretrained.load_torchvision"
    places = torchvision_names(model)
    expected = {f"{theirs}.{key.rpartition('.')[2]}": key for key, theirs in _per_tensor(state, places).items()}
    for name in expected:
        if name not in weights and not name.startswith(HEADS) and not name.endswith(STATISTICS):
            raise RecipeError(
                f"{call}: the weights have no {name!r}: they belong to another architecture, or are not torchvision's.",
                "weights",
            )
    for name in weights:
        if name not in expected and not name.startswith(HEADS) and not name.endswith(STATISTICS):
            raise RecipeError(f"{call}: the model has no place for {name!r}: it has another architecture.", "weights")
    fits = {name: key for name, key in expected.items() if name in weights and weights[name].shape == state[key].shape}
    with torch.no_grad():
        for name, key in fits.items():
            state[key].copy_(weights[name])
    return tuple(name for name in weights if name not in fits)


def torchvision_names(model: nn.Sequential) -> dict[str, str]:
    """torchvision's name of every layer with parameters, by its name in ``model``: {"0": "conv1", "1": "bn1", ...}.

    Raises RecipeError unless the model is a `medley.models.resnet` or a `medley.models.vgg11`.
    """
    if any(isinstance(layer, Block) for layer in model):
        return _resnet_names(model)
    flat = [type(layer) for layer in model]
    if flat.count(nn.Conv2d) == 8 and flat.count(nn.MaxPool2d) == 5:
        return _vgg_names(model)
    raise RecipeError("models.pretrained: give a model made by models.resnet..., or by models.vgg11.", "model")


def _per_tensor(state: Mapping[str, Tensor], places: Mapping[str, str]) -> dict[str, str]:
    return {key: places[key.rpartition(".")[0]] for key in state}


def _resnet_names(model: nn.Sequential) -> dict[str, str]:
    names = {"0": "conv1", "1": "bn1"}
    stage = 1
    number = 0
    for i, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            names[str(i)] = "fc"
        if not isinstance(layer, Block):
            continue
        if layer.stride > 1:
            stage = stage + 1
            number = 0
        theirs = f"layer{stage}.{number}"
        for k in range(0, len(layer.way), 3):
            names[f"{i}.way.{k}"] = f"{theirs}.conv{k // 3 + 1}"
            names[f"{i}.way.{k + 1}"] = f"{theirs}.bn{k // 3 + 1}"
        names |= {f"{i}.short.{k}": f"{theirs}.downsample.{k}" for k in range(2)}
        number += 1
    return names


def _vgg_names(model: nn.Sequential) -> dict[str, str]:
    names = {}
    linear = 0
    for i, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            # In torchvision, ReLU and Dropout stand between two linear layers.
            names[str(i)] = f"classifier.{3 * linear}"
            linear += 1
        elif linear == 0:
            names[str(i)] = f"features.{i}"
    return names
