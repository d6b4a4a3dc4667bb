"""Reservoir sampling: a uniform sample of all rows so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from ..contract.settings import Checked, at_least


@dataclass(frozen=True)
class Reservoir(Checked):
    """A uniform sample of the rows of all tasks so far (algorithm R; Vitter, "Random Sampling with a Reservoir", 1985).

    Raises RecipeError for sizes below 1.

    Attributes:
        capacity: Rows held in all.
        sample: Rows drawn from memory in a step, in addition to the task's own; default None: all rows held.
    """

    capacity: Annotated[int, at_least(1)]
    sample: Annotated[int, at_least(1)] | None = None

    def keep(
        self,
        stored: Int[Tensor, " h"],
        came: Int[Tensor, " n"],
        labels: Int[Tensor, " n"] | None,
        before: int,
        generator: torch.Generator,
    ) -> Int[Tensor, " k"]:
        """See `medley.contract.task.ReplayPolicy`.

        Once the memory is full, the k-th row so far replaces a random one with probability capacity/k.
        """
        del labels
        rows = stored.tolist()
        for k, row in enumerate(came[torch.randperm(len(came), generator=generator)].tolist(), start=before + 1):
            if len(rows) < self.capacity:
                rows.append(row)
            elif (place := int(torch.randint(k, (), generator=generator))) < self.capacity:
                rows[place] = row
        return torch.tensor(sorted(rows), dtype=torch.int64)
