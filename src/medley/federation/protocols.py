"""Protocols between `run` and a federation: a population, and one seed's draw of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from ..contract.place import ClientNames
from ..server.options import HeldOut, Metric
from ..server.protocols import ClientSource, Evaluator
from .scenario import Scenario


@runtime_checkable
class Draw(ClientSource, Protocol):
    """A population as one seed drew it."""

    @property
    def tested(self) -> bool:
        """Whether there are test rows."""

    def evaluator(
        self,
        metrics: Mapping[str, Metric] | None = None,
        grad_norm: bool = False,
        minimiser: bool = False,
        eval_rows: int | None = None,
    ) -> Evaluator:
        """An evaluator of models.

        Args:
            metrics: figures of the test outputs, by name
            grad_norm: whether it measures the norm of the gradient too
            minimiser: whether it raises Stalled if the loss turns out to have no minimiser
            eval_rows: the number of training rows from which the loss is estimated; None to use all rows

        Raises RecipeError for figures that cannot be measured.
        """


@runtime_checkable
class Population(Protocol):
    """Clients on which `run` trains a method: a `Federation`, or clients on other machines."""

    @property
    def scenario(self) -> Scenario:
        """Problem, pace, participation, devices, weights, stream and replay."""

    @property
    def client_names(self) -> ClientNames:
        """The clients' names by id; empty if they have none."""

    def settings(self) -> dict[str, Any]:
        """A record of everything that defines it, in plain values."""

    def identity(self) -> dict[str, str]:
        """Fingerprints of its parts, see `medley.storage.identity`. Raises RecipeError for a part without one."""

    def draw(
        self, seed: int, on: HeldOut = "test", dtype: torch.dtype | None = None, device: str = "cpu", rounds: int = 1
    ) -> Draw:
        """The clients of this seed.

        Args:
            on: the rows of the test figures, "test" or "validation"
            dtype: the floating-point type of the model; None for the problem's own
            rounds: the rounds of one task of a stream
        """

    def within(self, scenario: Scenario) -> Population:
        """The same clients, with the problem of this scenario."""
