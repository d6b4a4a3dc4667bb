"""Steps gathered from several clients: lazy rows, which `supports` sends to `Seq`, would have the same bits there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.engines import stacked
from medley.engines.fused import engine as fused
from medley.rows.lazy import Lazy, Mapped

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 8)).astype(np.float32)
Y = torch.from_numpy((X[:, 0] > 0).astype(np.int64))
CUT = [slice(0, 100), slice(100, 180), slice(180, 300)]


@pytest.mark.parametrize("engine", ["fused", "stacked"])
def test_rows_of_a_lazy_slice_are_its_own(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were those of the whole, from its first row on: a lazy slice has a base, and a storage without offset."""
    for module in (fused, stacked):
        monkeypatch.setattr(module, "supports", lambda me, how: True)
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    pace = md.scenarios.Pace(lr=0.1, batch=16)

    def end(rows: Any) -> torch.Tensor:
        fed = md.Federation(md.problems.Network(net), clients=[(rows[c], Y[c]) for c in CUT], pace=pace)
        return md.run(md.FedAvg(), fed, 2, engine=engine).x

    assert torch.equal(end(Lazy([Mapped(X)])), end(torch.from_numpy(X)))
