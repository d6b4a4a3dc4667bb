"""What surrounds a node's training in its process changes nothing in it, or is refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.flower import client_app, server_app

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from support.bench import Bench

RECIPE = """
[rules]
exact = true
scores = true
[problem]
kind = "Softmax"
mu = 0.01
[data]
name = "digits"
train = 60
flatten = true
[partition]
kind = "IID"
clients = 2
[pace]
lr = 0.1
batch = 8
[run]
rounds = 2
[[methods]]
kind = "FedAvg"
"""


class Surrounded(Bench):
    """Nodes in whose process something is set."""

    around: Callable[[], Any]

    def push_messages(self, messages: Any) -> list[str]:
        with self.around():
            return super().push_messages(messages)


@contextlib.contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def hooked() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda module, *args: None)
    try:
        yield
    finally:
        handle.remove()


def trained(folder: Path, around: Callable[[], Any]) -> md.Result:
    folder.mkdir()
    (recipe := folder / "recipe.toml").write_text(RECIPE)
    config = {"clients": 2, "save": str(folder / "run")}
    grid = Surrounded([client_app(recipe)] * 2, config, memory=str(folder / "memory"))
    grid.around = around
    server_app(recipe)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return md.Result.load(folder / "run")


def test_a_nodes_training_is_the_same_whatever_is_set_in_its_process(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", contextlib.nullcontext)
    for name, around in {
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "inference mode": torch.inference_mode,
        "default dtype": float64,
        "NumPy's errors": lambda: np.errstate(all="raise"),
    }.items():
        assert trained(tmp_path / name, around).digest == plain.digest, name


def test_a_node_refuses_a_global_hook_by_name(tmp_path: Path) -> None:
    with pytest.raises(md.MedleyError, match=r"client [01]: a global hook on every module .* handle\.remove\(\)"):
        trained(tmp_path / "hooked", hooked)
