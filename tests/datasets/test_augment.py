from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor

from medley.contract.errors import RecipeError
from medley.datasets import augment

X = torch.arange(1, 1 + 6 * 2 * 5 * 7).float().view(6, 2, 5, 7)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("f", [augment.crop, augment.flip, partial(augment.cutout, size=3)])
def test_the_generator_decides_all(f: Callable[..., Tensor]) -> None:
    rows = X.repeat(20, 1, 1, 1)
    before = rows.clone()
    torch.manual_seed(0)
    first = f(rows, seeded())
    torch.manual_seed(1)
    assert torch.equal(f(rows, seeded()), first)
    assert not torch.equal(f(rows, seeded(1)), first)
    assert torch.equal(rows, before)
    assert first.shape == rows.shape


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_crop_cuts_every_window_of_the_padded_image_equally_often(mode: Literal["constant", "reflect"]) -> None:
    n = 2000
    out = augment.crop(X[:1].expand(n, -1, -1, -1), seeded(), padding=1, mode=mode)
    mirrored = X[0][:, [1, 0, 1, 2, 3, 4, 3]][:, :, [1, 0, 1, 2, 3, 4, 5, 6, 5]]
    padded = mirrored if mode == "reflect" else torch.nn.functional.pad(X[0], (1, 1, 1, 1))
    windows = torch.stack([padded[:, a : a + 5, b : b + 7] for a in range(3) for b in range(3)])
    which = (out[:, None] == windows).flatten(2).all(2)
    assert (which.sum(1) == 1).all()
    # 222 expected, with a deviation of 14.
    assert ((which.sum(0) - n / 9).abs() < 60).all()
    assert torch.equal(augment.crop(X, seeded(), padding=0), X)


def test_flip_mirrors_half_of_the_images() -> None:
    out = augment.flip(X[:1].expand(2000, -1, -1, -1), seeded())
    mirrored = (out == X[0].flip(2)).flatten(1).all(1)
    assert torch.equal(out[~mirrored][0], X[0])
    assert 900 < int(mirrored.sum()) < 1100
    assert torch.equal(augment.flip(X, seeded(), 1.0), X.flip(3))
    assert torch.equal(augment.flip(X, seeded(), 0.0), X)


def test_cutout_blanks_one_square() -> None:
    ones = torch.ones(400, 3, 9, 9)
    out = augment.cutout(ones, seeded(), size=3)
    assert torch.equal(out.amin(1), out.amax(1))
    holes = out[:, 0] == 0
    rows, columns = holes.any(2).sum(1), holes.any(1).sum(1)
    assert torch.equal(holes.sum((1, 2)), rows * columns)
    # A square reaches over the border by at most one pixel on a side.
    assert set(rows.tolist()) == set(columns.tolist()) == {2, 3}
    centred = float((rows == 3).float().mean())
    assert centred == pytest.approx(7 / 9, abs=0.08)


@pytest.mark.shapes
def test_bad_arguments_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"augment\.crop: X is \(6, 70\), not"):
        augment.crop(X.flatten(1), seeded())
    with pytest.raises(RecipeError, match="padding=-1"):
        augment.crop(X, seeded(), padding=-1)
    with pytest.raises(RecipeError, match=r"padding=5\): to mirror images of 5×7, use a padding of at most 4"):
        augment.crop(X, seeded(), padding=5, mode="reflect")
    with pytest.raises(RecipeError, match="probability=2"):
        augment.flip(X, seeded(), probability=2.0)
    with pytest.raises(RecipeError, match="size=0"):
        augment.cutout(X, seeded(), size=0)
