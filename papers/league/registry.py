"""The register of the league's federations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

import medley as md
from medley.datasets import Dataset
from medley.scenarios import Pace

VALIDATION = 0.15
"""The share of the training rows that tuning is judged on."""


@dataclass(frozen=True)
class Entry:
    """A federation of the league.

    Attributes:
        group: "development", "networks", "test", "clock-development" or "clock"
        build: makes the federation
        rounds: of every run
        text: data, model, clients and pace, for the page
        metric: the figure that counts, of validation rows in tuning and of test rows at the end: "accuracy" (default),
            or "test_loss" where accuracy says little
        target: accuracy at which the clock stops; None outside of the clock groups
        replies: number of replies that ends a round of an asynchronous method; None outside of the clock groups
    """

    group: str
    build: Callable[[], md.Federation]
    rounds: int
    text: str
    metric: str = "accuracy"
    target: float | None = None
    replies: int | None = None


FEDERATIONS: dict[str, Entry] = {}


def entry(group: str, rounds: int, text: str, **how: Any) -> Callable[[Callable[[], md.Federation]], Any]:
    """Enter the decorated function as a federation under its name, with hyphens."""

    def enter(build: Callable[[], md.Federation]) -> Callable[[], md.Federation]:
        FEDERATIONS[build.__name__.replace("_", "-")] = Entry(group, build, rounds, text, **how)
        return build

    return enter


def federation(problem: Any, data: Dataset, partition: Any, pace: Pace, **more: Any) -> md.Federation:
    return md.Federation(problem, data=data, partition=partition, pace=pace, validation=VALIDATION, **more)


def network(module: nn.Module, **how: Any) -> md.problems.Network:
    return md.problems.Network(module, **how)
