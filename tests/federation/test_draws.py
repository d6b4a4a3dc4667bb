"""Draws of a user's own code from the global streams of torch, NumPy and Python: the seed decides them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from support.pairs import quick


def mixup(o: Tensor, t: Tensor) -> Tensor:
    p = torch.randperm(len(t))
    return 0.7 * F.cross_entropy(o, t) + 0.3 * F.cross_entropy(o, t[p])


def beta(o: Tensor, t: Tensor) -> Tensor:
    lam = float(np.random.beta(0.4, 0.4))
    return lam * F.cross_entropy(o, t) + (1 - lam) * F.cross_entropy(o, t.flip(0))


def flips(X: Tensor, rng: torch.Generator) -> Tensor:
    del rng
    return X.flip(1) if random.random() < 0.5 else X + torch.randn_like(X)


def smoothed(o: Tensor, y: Tensor) -> float:
    rows = torch.randint(len(y), (len(y),))
    return float((o.argmax(1) == y)[rows].double().mean()) + np.random.rand() + random.random()


class SGLD(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(torch.randn_like(p), alpha=0.01)


class Late(nn.Module):
    """Drops nothing in its first passes: no trial sees a draw."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        if buffer:
            self.register_buffer("n", torch.zeros((), dtype=torch.long))
        else:
            self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += self.training
        return self.b(F.dropout(torch.relu(self.a(x)), 0.3, bool(self.training and self.n > 20)))


class Keeps(Late):
    """Keeps a mean of its inputs, or a count in a list, outside of its buffers; or its last outputs."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.n: Any = [0] if what == "list" else torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "list":
            self.n[0] += 1
        elif self.what == "mean":
            self.n = 0.9 * self.n + x.mean(0)
        else:
            self.n = F.dropout(self.a(x), 0.5, self.training).detach()
        return self.b(torch.relu(self.a(x)))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def streams() -> list[object]:
    """The states of the global streams."""
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # type: ignore[index,union-attr]


def digest(module: nn.Module, pace: dict[str, Any], workers: int = 0, seed: int = 0, **options: Any) -> str:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(140, 4)).astype("float32"), rng.integers(0, 2, 140)
    fed = md.Federation(
        md.problems.Network(module, **options),
        clients=[(X[i:120:8], y[i:120:8]) for i in range(8)],
        test=(X[120:], y[120:]),
        pace=md.scenarios.Pace(lr=0.1, batch=8, **pace),
    )
    way = md.transports.Processes(workers) if workers else None
    return md.run(md.FedAvg(), fed, 3, seed=seed, metrics={"smoothed": smoothed}, transport=way, progress=False).digest


CASES: dict[str, tuple[nn.Module, dict[str, Any], dict[str, Any]]] = {
    "loss by torch": (net(), {}, {"loss": mixup}),
    "loss by NumPy": (net(), {}, {"loss": beta}),
    "transform by Python": (net(), {}, {"transform": flips}),
    "optimizer": (net(), {"optimizer": SGLD}, {}),
    "dropout": (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)), {}, {}),
    "dropout after some passes": (Late(buffer=True), {}, {}),
}


@pytest.mark.parametrize("case", quick(1, CASES))
def test_the_seed_decides_the_draws_of_ones_own_code_with_any_number_of_workers(case: str) -> None:
    module, pace, options = CASES[case]
    one = digest(module, pace, **options)
    torch.rand(3), np.random.rand(3), random.random()
    assert digest(module, pace, **options) == one
    assert digest(module, pace, 2, **options) == one
    assert digest(module, pace, seed=1, **options) != one


def test_a_module_that_counts_its_passes_outside_of_its_buffers_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    for module in (Late(), Keeps("mean"), Keeps("list")):
        digest(module, {})
        assert "the module's n changes from pass to pass and is no buffer" in caplog.text
        caplog.clear()
    digest(Late(buffer=True), {})
    digest(Keeps("last"), {})
    digest(net(), {"optimizer": SGLD}, loss=mixup)
    assert "changes from pass to pass" not in caplog.text
