"""A descent's first step, which engines tell on demand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley.contract.algorithm import on_client
from medley.contract.messages import Model, Step
from medley.engines.fused import products
from support.pairs import quick

SIZES = (5, 17, 4, 7, 6, 12, 30)
PACES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "full batches": {"batch": None},
    "momentum": {"momentum": 0.5},
    "clipped": {"clip": 0.2, "weight_decay": 0.1},
}


class Told(md.FedAvg):
    """What clients tell of their descents: the first step, or all that they went."""

    first = True

    def round(self, s, clients) -> None:
        self.told.update({i: up.delta for i, up in clients.ask(self.went, Model(s.x)).each().items()})

    @on_client(vectorized=True)
    def went(self, me, request: Model) -> Step:
        went = me.descend(request.x, scale=0.5, shift=0.1 + 0 * request.x, first=self.first)
        assert (went.first is None) is not self.first
        return Step(went.first if self.first else went.step)


class Whole(Told):
    first = False


@pytest.mark.parametrize("engine", ["seq", "fused", "stacked"])
@pytest.mark.parametrize("pace", quick(1, PACES))
@pytest.mark.parametrize("spanned", [False, True])
def test_the_first_step_is_that_of_a_descent_of_one_step(engine: str, pace: str, spanned: bool, monkeypatch):
    monkeypatch.setattr(products, "ONEDNN", 1 if spanned else products.ONEDNN)
    g = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(60, 8), nn.Tanh(), nn.Linear(8, 3))
    rows = [(torch.randn(n, 60, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in SIZES]
    found = []
    for kind, steps in ((Told, [9, 1, 12, 8, 20, 30, 7]), (Whole, 1)):
        more = {"batch": 4} | PACES[pace] | {"steps": steps}
        method, kind.told = kind(), {}
        fed = md.Federation(md.problems.Network(net), clients=rows, classes=3, pace=md.scenarios.Pace(lr=0.1, **more))
        md.run(method, fed, 1, dtype="float64", engine=engine, progress=False)
        found.append(kind.told)
    assert found[0].keys() == set(range(len(SIZES)))
    for i, step in found[1].items():
        assert float((found[0][i] - step).norm()) <= 1e-12 * float(step.norm())
