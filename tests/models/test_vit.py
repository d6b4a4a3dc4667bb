from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley import models
from medley.contract.errors import RecipeError
from medley.engines import stacked


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({"shape": (3, 224, 224), "classes": 1000, "patch": 16, "width": 768, "depth": 12, "heads": 12}, 86_567_656),
        ({"shape": (3, 224, 224), "classes": 1000, "patch": 16, "width": 192, "depth": 12, "heads": 3}, 5_717_416),
        ({}, 308_042),
    ],
)
def test_sizes_are_those_published(options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        assert count(models.vit(**options)) == parameters


def test_it_computes_what_torchs_own_layer_does() -> None:
    """A block against nn.TransformerEncoderLayer with the same weights."""
    model = models.vit((1, 8, 8), 3, 4, 12, 1, 3)
    ours: Any = model[2]
    theirs = nn.TransformerEncoderLayer(12, 3, 48, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True)
    pairs = {
        "self_attn.in_proj_": ours.qkv,
        "self_attn.out_proj.": ours.out,
        "linear1.": ours.mlp[0],
        "linear2.": ours.mlp[2],
        "norm1.": ours.norm1,
        "norm2.": ours.norm2,
    }
    theirs.load_state_dict({f"{k}{part}": getattr(m, part) for k, m in pairs.items() for part in ("weight", "bias")})
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)
    image = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    patches = torch.stack([image[:, :, a : a + 4, b : b + 4].flatten(1) for a in (0, 4) for b in (0, 4)], 1)
    first: Any = model[0]
    tokens = patches @ first.weight.flatten(1).T + first.bias
    whole: Tensor = torch.cat([model[1].token.expand(2, 1, 12), tokens], 1) + model[1].position  # type: ignore[operator]
    by_hand = model[5](nn.functional.layer_norm(theirs(whole), (12,), eps=1e-6)[:, 0])
    assert torch.allclose(model(image), by_hand, atol=1e-5)


def test_a_new_seed_draws_positions_too() -> None:
    problem = md.problems.Network(models.vit((1, 8, 8), 2, 4, 8, 1, 2)).ready(
        torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]), 2, None, "cpu"
    )
    a, b = (problem.split(problem.initial(torch.Generator().manual_seed(seed))) for seed in (0, 1))
    names = [name for name, _ in problem.module.named_parameters()]
    same = {name for name, u, v in zip(names, a, b, strict=True) if torch.equal(u, v)}
    norms = {f"2.{norm}.{part}" for norm in ("norm1", "norm2") for part in ("weight", "bias")}
    assert same == norms | {"3.weight", "3.bias"}


@pytest.mark.shapes
def test_clients_are_trained_in_a_stack() -> None:
    X, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 1, 0])
    problem = md.problems.Network(models.vit((1, 8, 8), 2, 4, 8, 1, 2)).ready(X, y, 2, None, "cpu")
    assert isinstance(stacked.stacked(problem), stacked.Stacked)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"patch=5\) does not divide images of 32×32"):
        models.vit(patch=5)
    with pytest.raises(RecipeError, match=r"heads=5\) does not divide the width 64"):
        models.vit(heads=5)
    with pytest.raises(RecipeError, match="depth=0"):
        models.vit(depth=0)
