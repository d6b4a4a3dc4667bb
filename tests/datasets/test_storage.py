"""Rows, targets and weights train to the same bits wherever and however they lie: mapped, strided, of any bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.rows.lazy import Lazy
from support.pairs import quick

RNG = np.random.default_rng(0)
SLOPES = RNG.normal(size=(4, 2))
ROWS = [(X := RNG.normal(size=(n, 4)).astype(np.float32), (X @ SLOPES).astype(np.float32)) for n in (9, 12, 5, 12)]
PACE = md.scenarios.Pace(lr=0.05, batch=4, epochs=2)


def mapped(a: np.ndarray, folder: Path) -> Any:
    """The array in a file of its own, mapped."""
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, a)
    return np.load(path, mmap_mode="r")


def stored(a: np.ndarray, how: str, folder: Path) -> Any:
    """The same numbers, stored in another way."""
    read_only = a.copy()
    read_only.setflags(write=False)
    swapped = a.dtype.newbyteorder(">")
    return {
        "memory": lambda: a,
        "mapped": lambda: mapped(a, folder),
        "mapped columns first": lambda: mapped(np.asfortranarray(a), folder),
        "mapped big-endian": lambda: mapped(a.astype(swapped), folder),
        "mapped every second": lambda: mapped(np.repeat(a, 2, 0), folder)[::2],
        "mapped reversed": lambda: mapped(a[::-1], folder)[::-1],
        "lazy": lambda: md.datasets.lazy(mapped(a, folder)),
        "lazy columns first": lambda: md.datasets.lazy(mapped(np.asfortranarray(a), folder)),
        "lazy big-endian": lambda: md.datasets.lazy(mapped(a.astype(swapped), folder)),
        "columns first": lambda: np.asfortranarray(a),
        "every second": lambda: np.repeat(a, 2, 0)[::2],
        "every second column": lambda: np.repeat(a, 2, -1)[..., ::2],
        "reversed": lambda: a[::-1].copy()[::-1],
        "big-endian": lambda: a.astype(swapped),
        "read-only": lambda: read_only,
        "tensor": lambda: torch.tensor(a),
        "tensor, transposed": lambda: torch.tensor(a.T.copy()).T,
        "slice of a tensor": lambda: torch.tensor(np.concatenate([a, a]))[len(a) :],
    }[how]()


MAPPED = ["mapped", "mapped columns first", "mapped big-endian", "mapped every second", "mapped reversed"]
LAZY = ["lazy", "lazy columns first", "lazy big-endian"]
MEMORY = ["columns first", "every second", "every second column", "reversed", "big-endian", "read-only"]
WAYS = [*MAPPED, *LAZY, *MEMORY, "tensor", "tensor, transposed", "slice of a tensor"]


def federation(x: str, y: str, folder: Path, outputs: int) -> md.Federation:
    clients = [(stored(X, x, folder), stored(T[:, :outputs], y, folder)) for X, T in ROWS]
    net = md.problems.Network(md.models.mlp(4, outputs), loss="mse")
    return md.Federation(net, clients=clients, test=(clients[0][0], clients[0][1]), pace=PACE)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_rows_and_targets_of_any_storage_are_those_of_memory(tmp_path: Path, how: str, outputs: int) -> None:
    want, data = (federation(h, h, tmp_path, outputs).data for h in ("memory", how))
    for part in ("X", "y", "X_test", "y_test"):
        a, b = getattr(want, part), getattr(data, part)
        assert a.dtype == b.dtype
        assert torch.equal(b + 0, a)  # lazy rows are read
        assert (b[torch.arange(len(b))] + 0).stride() == a.stride()  # in another order kernels round otherwise
    assert type(data.y) is torch.Tensor


@pytest.mark.parametrize("engine", ["seq", "stacked", "fused"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_mapped_targets_train_to_the_bits_of_memory(tmp_path: Path, engine: str, outputs: int) -> None:
    feds = [federation(*how, tmp_path, outputs) for how in (("memory", "memory"), ("memory", "mapped"))]
    one, two = (md.run(md.FedAvg(), fed, 2, engine=engine, progress=False) for fed in feds)
    assert one.digest == two.digest


@pytest.mark.parametrize("how", quick(2, ["mapped", "lazy columns first", "mapped big-endian", "mapped reversed"]))
def test_mapped_rows_train_to_the_bits_of_memory(tmp_path: Path, how: str) -> None:
    feds = [federation(h, h, tmp_path, 1) for h in ("memory", how)]
    one, two = (md.run(md.FedAvg(), fed, 2, engine="seq", progress=False) for fed in feds)
    assert one.digest == two.digest


@pytest.mark.slow
def test_mapped_targets_reach_the_loss_of_targets_in_memory(tmp_path: Path) -> None:
    fed = federation("memory", "mapped", tmp_path, 2)
    assert type(fed.data.y) is torch.Tensor
    r = md.run(md.FedAvg(), fed, 60, progress=False, transport=md.transports.Processes(2))
    assert r.summary["loss"] < 0.1  # 4.6 with the targets of other rows


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "?"])
@pytest.mark.parametrize("how", ["lazy", "lazy big-endian", "lazy columns first", "mapped", "mapped big-endian"])
def test_every_dtype_is_read_as_in_memory(tmp_path: Path, dtype: str, how: str) -> None:
    a = (np.random.default_rng(1).normal(size=(6, 3)) * 50).astype(dtype)
    want = md.datasets.Dataset(a, np.zeros(6), weights=np.arange(6.0))
    given = md.datasets.Dataset(
        stored(a, how, tmp_path), stored(np.zeros(6), how, tmp_path), weights=stored(np.arange(6.0), how, tmp_path)
    )
    found = given.X[torch.tensor([4, 1])] if isinstance(given.X, Lazy) else given.X[[4, 1]]
    assert found.dtype == want.X.dtype
    assert torch.equal(found + 0, want.X[[4, 1]])
    assert torch.equal(given.X + 0, want.X)
    assert type(given.y) is type(given.weights) is torch.Tensor
    assert given.weights is not None
    assert given.weights.tolist() == [0, 1, 2, 3, 4, 5]
