"""Rows that are read when they are used: the same numbers as rows that are read at once."""

from __future__ import annotations

import numpy as np
import torch

from medley.datasets import Dataset, on_use
from medley.datasets.on_use import Unread, deferred, read_on_use
from medley.rows.lazy import in_memory

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)


def made(read: list[int]) -> Dataset:
    def pixels(some: slice | np.ndarray) -> torch.Tensor:
        out = torch.from_numpy(PIXELS[some].astype(np.float32)).div_(255)
        read.append(len(out))
        return out

    return Dataset(on_use.rows(40, pixels, PIXELS.nbytes), torch.arange(40) % 2, classes=2).pool(2).flatten()


def test_few_rows_are_read_and_they_are_those_of_the_whole() -> None:
    at_once, few = list[int](), list[int]()
    whole = made(at_once)
    with read_on_use():
        data = made(few)
    some = torch.tensor([3, 17, 4])
    assert (deferred(data.X), deferred(whole.X), at_once) == (True, False, [40])
    assert torch.equal(in_memory(data.X[some]), whole.X[some])
    assert torch.equal(in_memory(data.take(5).X), whole.take(5).X)
    assert sum(few) < 15
    assert not deferred(made(few).X)  # outside of the block again


def test_a_scaling_of_few_rows_is_that_of_all_if_there_are_no_more() -> None:
    with read_on_use():
        data = made([])
    assert torch.allclose(in_memory(data.standardise().X), made([]).standardise().X)


def test_bytes_that_are_not_in_memory() -> None:
    with read_on_use():
        X = made([]).X
    assert Unread.of(X, X[:10], torch.zeros(3), None) == (50 * 4 * 4, PIXELS.nbytes, 40 * (16 + 4) * 4)
