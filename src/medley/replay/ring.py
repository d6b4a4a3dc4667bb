"""Ring buffers, one for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from ..contract import Checked, RecipeError, at_least


@dataclass(frozen=True)
class Ring(Checked):
    """The latest rows of each class of every task, split between classes as equally as possible.

    The counts of two classes of a task differ by at most 1. If a class has fewer rows than its share, all of them are
    kept and the other classes get the rest of the share (Chaudhry et al., "On Tiny Episodic Memories in Continual
    Learning", 2019). So rare classes are as frequent in the memory as common ones, and a model trained on it predicts
    them too often. If classes are imbalanced, use `Reservoir`, whose memory has each class as often as the stream had.
    A client that descends on its memory alone, as in `CFLAG.joint` when it has no rows of the task, passes through the
    memory in the pace's batches. Raises RecipeError for sizes below 1.

    Attributes:
        capacity: The most rows kept of one task.
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
        """See `medley.contract.task.ReplayPolicy`. Keeps all rows held, and adds up to ``capacity`` of ``came``.

        Raises RecipeError if the rows have no classes.
        """
        del before
        if labels is None:
            raise RecipeError("replay.Ring needs rows with classes; use replay.Reservoir", "replay")
        arrivals = torch.randperm(len(came), generator=generator)
        classes, counts = torch.unique(labels, return_counts=True)
        # Classes in random order, so that the odd rows do not always go to the first.
        turn = torch.randperm(len(classes), generator=generator).tolist()
        room = min(self.capacity, len(came))
        quota = [0] * len(classes)
        while room:
            for k in turn:
                if room and quota[k] < counts[k]:
                    quota[k] += 1
                    room -= 1
        latest = [arrivals[labels[arrivals] == c][int(n) - q :] for c, n, q in zip(classes, counts, quota, strict=True)]
        return torch.cat([stored, *(came[rows.sort().values] for rows in latest)])
