"""The small federations that the battery runs methods on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..contract import Family, Need
from ..federation.federation import Federation
from ..models import mlp
from ..participation import Participation
from ..problems import Network, Softmax, Trees, synthetic_quadratics
from ..replay import Ring
from ..runtime import streams
from ..scenarios import Membership, Pace
from ..tasks import Split

LR = (0.02, 0.05, 0.1, 0.03, 0.08)
EPOCHS = (1, 3, 2, 1, 2)
ROUNDS = 3

TASKS = 2
"""Tasks of a stream."""

PER_TASK = 4
"""Rounds of a task. Before the last round of a task only the cohort is asked."""


@dataclass(frozen=True)
class Place:
    """A small problem and its clients' data."""

    name: str
    problem: Family
    clients: Sequence[tuple[Tensor, Tensor]]
    classes: int | None = None
    stream: Split | None = None
    weights: Literal["size", "uniform"] = "size"

    @property
    def rounds(self) -> int:
        """The number of rounds of a whole run."""
        return ROUNDS if self.stream is None else TASKS * PER_TASK

    @cached_property
    def gives(self) -> frozenset[Need]:
        """The needs that it satisfies."""
        past = frozenset() if self.stream is None else frozenset({Need.STREAM, Need.REPLAY})
        past |= frozenset({Need.UNIFORM}) if self.weights == "uniform" else frozenset()
        return (
            self.federation().draw(0).problem.gives
            | past
            | {Need.EVERYONE, Need.FIXED, Need.SAMPLING, Need.INDEPENDENT, Need.REPLIES, Need.PROMPT, Need.SGD}
        )

    def federation(
        self,
        ids: Iterable[int] = range(5),
        participation: Participation | None = None,
        membership: Membership | None = None,
        **pace: Any,
    ) -> Federation:
        """The clients ``ids`` of this place, renumbered from 0, each with its own lr and epochs.

        Args:
            participation: default everyone
            membership: default the same clients throughout
            pace: further settings of `Pace`, instead of the usual ones

        In a stream a client keeps some of its past rows. Under ``batch=None`` it keeps all of them, because the draw
        depends on its number.
        """
        ids = list(ids)
        settings = {"lr": [LR[i] for i in ids], "epochs": [EPOCHS[i] for i in ids], "batch": 4, **pace}
        data = [self.clients[i] for i in ids]
        past: dict[str, Any] = {}
        if self.stream is not None:
            replay = Ring(4, sample=2) if settings["batch"] else Ring(100)
            past = {"stream": self.stream, "replay": replay, "test": self.clients[0]}
        return Federation(
            self.problem,
            clients=data,
            classes=self.classes,
            pace=Pace(**settings),
            participation=participation,
            weights=self.weights,
            membership=membership,
            **past,
        )


def normalised(place: Place) -> Place:
    """A place of networks with a normalisation layer, for methods that treat such layers separately."""
    layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, place.classes or 3)]
    return replace(place, problem=Network(nn.Sequential(*layers)))


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, in peft's names."""

    def __init__(self, columns: int, rows: int, rank: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(columns, rows)
        self.lora_A = nn.Linear(columns, rank, bias=False)
        self.lora_B = nn.Linear(rank, rows, bias=False)
        self.scaling = 0.5

    def forward(self, X: Tensor) -> Tensor:
        """The layer's outputs."""
        out: Tensor = self.base_layer(X) + self.scaling * self.lora_B(self.lora_A(X))
        return out


def adapted(place: Place) -> Place:
    """A place of networks with low-rank adapters, whose layers' weights are trainable too."""
    return replace(
        place, problem=Network(nn.Sequential(Adapted(4, 5, 2), nn.ReLU(), Adapted(5, place.classes or 3, 2)))
    )


@cache
def places() -> tuple[Place, ...]:
    """The federations that the conformance battery runs every method on."""
    g = streams.generator(0, "conformance")
    clients = []
    for n in (5, 8, 4, 7, 6):
        y = torch.randint(3, (n,), generator=g)
        clients.append((torch.randn(n, 4, generator=g, dtype=torch.float64) + y[:, None], y))
    q = synthetic_quadratics(clients=5, d=6, rows=(6, 10))
    coming = []  # every client has rows of all four classes, so of every task
    for n in (9, 12, 8, 11, 10):
        y = torch.arange(n) % 4
        coming.append((torch.randn(n, 4, generator=g, dtype=torch.float64) + y[:, None], y))
    return (
        Place("quadratics", q.problem, q.clients),
        Place("softmax", Softmax(mu=0.1), clients, 3),
        Place("network", Network(mlp(4, 3, (5,))), clients, 3),
        Place("trees", Trees("softmax", trees=ROUNDS, depth=2), clients, 3),
        Place("softmax stream", Softmax(mu=0.1), coming, 4, Split(TASKS, "class")),
        Place("network stream", Network(mlp(4, 4, (5,))), coming, 4, Split(TASKS, "task")),
    )
