"""A shift of gradients that is a factor and a vector, of which engines make no copy."""

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
    "one step": {"steps": 1},
    "ragged": {"steps": 9},
    "decayed": {"steps": 3, "weight_decay": 0.1},
    "momentum": {"steps": 3, "momentum": 0.5},
}


class Shifted(md.FedAvg):
    """Steps with a shift of −0.3 x, as a vector or as a factor and a vector."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.__dict__.update(apart=apart, steps={})

    def round(self, s, clients) -> None:
        self.steps.update({i: up.delta for i, up in clients.ask(self.go, Model(s.x)).each().items()})

    @on_client(vectorized=True)
    def go(self, me, request: Model) -> Step:
        return Step(me.descend(request.x, shift=(-0.3, request.x) if self.apart else -0.3 * request.x).step)


@pytest.mark.parametrize("engine", ["seq", "fused", "stacked"])
@pytest.mark.parametrize("pace", quick(2, PACES))
@pytest.mark.parametrize("spanned", [False, True])
def test_a_factor_and_a_vector_shift_as_their_product(engine: str, pace: str, spanned: bool, monkeypatch):
    monkeypatch.setattr(products, "ONEDNN", 1 if spanned else products.ONEDNN)
    g = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(60, 8), nn.Tanh(), nn.Linear(8, 3))
    rows = [(torch.randn(n, 60, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in SIZES]
    fed = md.Federation(
        md.problems.Network(net, start="module"), clients=rows, pace=md.scenarios.Pace(lr=0.1, batch=4, **PACES[pace])
    )
    apart, product = Shifted(True), Shifted(False)
    for method in (apart, product):
        md.run(method, fed, 1, dtype="float64", engine=engine, progress=False)
    assert apart.steps.keys() == set(range(len(SIZES)))
    for i, step in product.steps.items():
        assert float((apart.steps[i] - step).norm()) <= 1e-13 * float(step.norm())
