"""Calls of one comparison and of one run, each with one thing changed that decides its bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import medley as md
from medley.contract.types import Vec
from medley.federation.run import PreparedRun
from medley.server.options import RunOptions

STRENGTH = 1.0
"""A global value that `scaled` reads."""


class Net(nn.Module):
    """A linear model times a plain attribute."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.factor = factor
        with torch.no_grad():
            self.linear.weight.fill_(0.01)
            self.linear.bias.zero_()

    def forward(self, X: Tensor) -> Tensor:
        return self.factor * self.linear(X)


class Turns:
    """A participation of a user's own, no dataclass."""

    def __init__(self, step: int = 1) -> None:
        self.step = step

    def draw(self, round: int, sizes: Any, seed: int) -> np.ndarray:
        return np.array([(round * self.step + seed) % len(sizes)])


class OtherTurns(Turns):
    def draw(self, round: int, sizes: Any, seed: int) -> np.ndarray:
        return np.array([(round * self.step + seed + 1) % len(sizes)])


OtherTurns.__qualname__ = OtherTurns.__name__ = "Turns"


def own_loss(z: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(z, y)


def scaled(by: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return STRENGTH * by * nn.functional.cross_entropy(z, y)

    return loss


def own_schedule(round: int) -> float:
    return 1 / round


def other_schedule(round: int) -> float:
    return 1 / (round + 1)


def top(z: Tensor, y: Tensor) -> float:
    return float((z.argmax(1) == y).double().mean())


def second(z: Tensor, y: Tensor) -> float:
    return float((z.argsort(1)[:, -2] == y).double().mean())


second.__name__ = second.__qualname__ = "top"
other_schedule.__name__ = other_schedule.__qualname__ = "own_schedule"


@dataclass(frozen=True)
class Halved(md.FedAvg):
    """FedAvg with a code of its own."""

    def model(self, s: Any) -> Vec:
        return s.x * 1.0


@dataclass(frozen=True)
class Thirded(md.FedAvg):
    """FedAvg with a code of its own."""

    def model(self, s: Any) -> Vec:
        return s.x * 0.5


Thirded.__name__ = Thirded.__qualname__ = "Halved"


@functools.cache
def digits() -> md.datasets.Dataset:
    return md.datasets.digits().take(200, 100)


def grouped(by: int) -> md.datasets.Dataset:
    d = digits()
    return md.datasets.Dataset(d.X, d.y, d.X_test, d.y_test, classes=10, keys={"who": np.arange(200) // by})


def partition_file(path: Path, first: int) -> Path:
    md.partitions.saved.save([np.arange(first), np.arange(first, 200)], path)
    return path


@dataclass
class Call:
    """A method, the federation's arguments and the options of a run."""

    method: Any
    fed: dict[str, Any]
    options: dict[str, Any]

    def federation(self) -> md.Federation:
        arguments = {"partition": md.partitions.IID(4), "data": digits(), **self.fed}
        return md.Federation(arguments.pop("problem", md.problems.Softmax()), **arguments)


def net(**settings: Any) -> Any:
    module = settings.pop("module", None) or Net()
    return md.problems.Network(module, start="module", **settings)


def heavier() -> Net:
    module = Net()
    with torch.no_grad():
        module.linear.weight[3, 5] += 1e-6
    return module


def pairs(folder: Path) -> dict[str, tuple[Callable[[], Call], Callable[[], Call]]]:
    """By name: a call, and the same call with one thing changed. The file of a partition changes when it is made."""
    x0 = torch.zeros(640, dtype=torch.float64)
    moved = x0.clone()
    moved[70] = 1e-3
    call = lambda method=None, options=None, **fed: Call(method or md.FedAvg(), fed, options or {})
    file = folder / "parts.json"
    key = md.partitions.ByKey
    pace = md.scenarios.Pace
    return {
        "init": (lambda: call(options={"init": x0}), lambda: call(options={"init": moved})),
        "classes": (lambda: call(classes=10), lambda: call(classes=40)),
        "f_star": (lambda: call(f_star=0.1), lambda: call(f_star=0.2)),
        "keys": (
            lambda: call(data=grouped(50), partition=key("who")),
            lambda: call(data=grouped(100), partition=key("who")),
        ),
        "file": (
            lambda: call(partition=md.partitions.Saved(partition_file(file, 90))),
            lambda: call(partition=md.partitions.Saved(partition_file(file, 20))),
        ),
        "weights": (lambda: call(problem=net()), lambda: call(problem=net(module=heavier()))),
        "attributes": (lambda: call(problem=net()), lambda: call(problem=net(module=Net(2.0)))),
        "loss": (lambda: call(problem=net(loss=scaled(1.0))), lambda: call(problem=net(loss=scaled(2.0)))),
        "schedule": (lambda: call(pace=pace(schedule=own_schedule)), lambda: call(pace=pace(schedule=other_schedule))),
        "metrics": (
            lambda: call(options={"metrics": {"top": top}}),
            lambda: call(options={"metrics": {"top": second}}),
        ),
        "participation": (lambda: call(participation=Turns()), lambda: call(participation=OtherTurns())),
        "participation's state": (lambda: call(participation=Turns(1)), lambda: call(participation=Turns(2))),
        "method": (lambda: call(Halved()), lambda: call(Thirded())),
    }


def identities(folder: Path) -> dict[str, dict[str, str]]:
    """The identity of a run of each first call, by name."""
    calls = {name: same() for name, (same, _) in pairs(folder).items()}
    return {
        name: PreparedRun.of(call.method, call.federation(), RunOptions(**call.options)).identity()
        for name, call in calls.items()
    }
