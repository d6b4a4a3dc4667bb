"""One rule for numbers of a user's: NumPy's are numbers, True and texts are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.codecs import Quantise, TopK
from medley.contract.errors import RecipeError
from medley.contract.tuned import Tuned
from medley.experiments.plan import seeds_of
from medley.server.options import RunOptions
from medley.server.reply_policy import ReplyPolicy
from medley.transports import Lossy, Processes

CLIENTS = [(torch.randn(6, 2), torch.arange(6) % 3)] * 2

WHOLE: dict[str, Callable[[Any], Any]] = {
    **{
        key: lambda n, key=key: getattr(RunOptions(**{key: n}), key)
        for key in ("rounds", "seed", "eval_every", "checkpoint_every", "clients_every", "eval_rows")
    },
    "target_over": lambda n: RunOptions(target={"loss": 0.1}, target_over=n).target_over,
    "retries": lambda n: ReplyPolicy(retries=n).retries,
    "workers": lambda n: Processes(n).workers,
    "bits": lambda n: Quantise(n).bits,
    "jobs": lambda n: md.compare([md.FedAvg()], fed(), rounds=0, seeds=1, jobs=n, progress=False) and n,
    "seeds": lambda n: len(seeds_of(n, "compare")),
    "a seed": lambda n: seeds_of([n], "compare")[0],
    "Federation(classes)": lambda n: fed(n).data.classes,
    "Dataset(classes)": lambda n: md.datasets.Dataset(*CLIENTS[0], classes=n).classes,
}

REAL: dict[str, Callable[[Any], Any]] = {
    **{key: lambda v, key=key: getattr(ReplyPolicy(**{key: v}), key) for key in ("deadline", "replies", "quorum")},
    "loss": lambda v: Lossy(loss=v).loss,
    "delay": lambda v: Lossy(delay=v).delay,
    "fraction": lambda v: TopK(v).fraction,
    "Tuned(lr)": lambda v: Tuned(md.FedAvg(), v).lr,
}


def fed(classes: Any = None) -> md.Federation:
    return md.Federation(md.problems.Softmax(mu=0.1), clients=CLIENTS, classes=classes)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    made = WHOLE[name](np.int64(3))
    assert made == 3
    assert name == "jobs" or type(made) is int
    for wrong in (True, np.True_, 3.0, np.float64(3), "3"):
        with pytest.raises(RecipeError):
            WHOLE[name](wrong)


@pytest.mark.parametrize("name", REAL)
def test_numbers(name: str) -> None:
    made = REAL[name](np.float32(0.5))
    assert (type(made), made) == (float, 0.5)
    for wrong in (True, np.True_, "0.5", math.nan, math.inf):
        with pytest.raises(RecipeError):
            REAL[name](wrong)
