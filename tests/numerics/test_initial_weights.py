"""Weights that a layer's own draw cannot have given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import medley as md
from medley.numerics.initial_weights import redrawn, undrawn

m = md.models


@pytest.mark.parametrize(
    "make",
    [
        lambda: m.softmax(4, 2),
        lambda: m.mlp(4, 2),
        m.cnn,
        lambda: m.vgg11(width=4, norm="batch", hidden=(8,), dropout=0.5),
        lambda: m.vgg11(width=4),
        m.resnet,
        lambda: m.resnet(norm="batch", stem="imagenet", bottleneck=True),
        lambda: m.vit(depth=1),
        lambda: m.lstm(9, 2),
        lambda: m.gru(9, 2, layers=2),
        lambda: m.char_lstm(hidden=8),
        lambda: m.text_cnn(9, 2),
        lambda: m.generator((4,)),
        lambda: nn.Linear(9, 2000).half(),
        lambda: nn.ConvTranspose2d(8, 4, 3, groups=2),
        lambda: nn.Conv3d(8, 4, 3, groups=2),
        lambda: nn.LSTM(4, 6, proj_size=3),
        lambda: nn.TransformerEncoderLayer(8, 2),
        lambda: nn.Sequential(nn.RMSNorm(4), nn.LayerNorm(4), nn.BatchNorm1d(4, affine=False)),
    ],
)
def test_a_layers_own_draw_is_never_taken_for_another(make: Callable[[], nn.Module]) -> None:
    with torch.random.fork_rng(devices=[]):
        module = make()
    assert undrawn(module) is None
    assert undrawn(redrawn(module, 3)) is None


class Tied(nn.Module):
    """The head's weight is the embedding's, a draw of which a linear layer never makes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 40), nn.Linear(40, 9)
        self.head.weight = self.embed.weight


class Own(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


def test_layers_whose_draw_is_not_known_are_not_judged() -> None:
    assert undrawn(nn.Sequential(Tied(), Own(2, 2), nn.Embedding(4, 4))) is None
    frozen = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    nn.init.constant_(frozen[0].weight, 9.0)  # type: ignore[arg-type]
    assert undrawn(frozen) is None  # and is not drawn anew


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (nn.Linear(4, 2), "weight", 0.51),
        (nn.Linear(4, 2), "bias", -0.51),
        (nn.Conv2d(1, 2, 2), "weight", 0.51),
        (nn.GRU(9, 4), "weight_ih_l0", 0.51),
        (nn.BatchNorm2d(3), "weight", 0.0),
        (nn.LayerNorm(3), "bias", 1e-3),
    ],
)
def test_a_value_beyond_the_draw_is_found_by_name(layer: nn.Module, name: str, value: float) -> None:
    with torch.no_grad():
        layer.get_parameter(name).view(-1)[-1] = value
    assert undrawn(nn.Sequential(nn.Linear(3, 3), layer)) == f"1.{name}"
