"""What is said is what is computed: ids, normalisation, counted buffers, and settings that nobody would read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import medley as md

RNG = np.random.default_rng(0)


class TwoColumns(nn.Module):
    """An embedding for each column of ids, and a column of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.l = nn.Embedding(9, 4), nn.Embedding(3, 4), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        numbers = x[:, 2:].to(self.l.weight.dtype)
        return self.l(torch.cat([self.a(x[:, 0].long()), self.b(x[:, 1].long()), numbers], 1))


@pytest.mark.parametrize("kind", ["int64", "float32"])
@pytest.mark.parametrize(("column", "value"), [(0, 9), (1, 3), (1, -1)])
def test_an_id_beyond_its_embedding_names_client_and_row_in_any_column(kind: str, column: int, value: int) -> None:
    sites = []
    for _ in range(3):
        ids = np.c_[RNG.integers(0, 9, 20), RNG.integers(0, 3, 20), RNG.integers(-50, 50, 20)]
        sites.append((ids.astype(kind), RNG.integers(0, 2, 20)))
    problem = md.problems.Network(TwoColumns())
    assert md.run(md.FedAvg(), md.Federation(problem, clients=sites), 1).status.ok
    sites[1][0][7, column] = value
    with pytest.raises(md.BadData, match="client 1, row 7: the network cannot read ids"):
        md.run(md.FedAvg(), md.Federation(problem, clients=sites), 1)


class MyNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x / x.norm(dim=1, keepdim=True)


def test_fedbn_keeps_rmsnorm_and_asks_of_a_norm_that_it_does_not_know() -> None:
    def run(*norms: nn.Module) -> md.Result:
        net = nn.Sequential(nn.Linear(4, 8), *norms, nn.ReLU(), nn.Linear(8, 2))
        sites = [(RNG.normal(size=(30, 4)) + k, RNG.integers(0, 2, 30)) for k in range(3)]
        return md.run(md.FedBN(), md.Federation(md.problems.Network(net), clients=sites), 3)

    r = run(nn.RMSNorm(8))
    first, second = (r.client_model(i).state_dict() for i in (0, 1))
    assert [name for name in first if not torch.equal(first[name], second[name])] == ["1.weight"]
    with pytest.raises(
        md.RecipeError, match=r"1, a MyNorm, is not one of torch's normalisation layers.*shared='!1.\*'"
    ):
        run(MyNorm())
    with pytest.raises(md.RecipeError, match="2, a MyNorm"):
        run(nn.LayerNorm(8), MyNorm())


def test_counts_of_batchnorm_are_the_largest_whichever_client_comes_first() -> None:
    def counted(sizes: tuple[int, ...]) -> int:
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 2))
        sites = [(RNG.normal(size=(n, 4)), RNG.integers(0, 2, n)) for n in sizes]
        pace = md.scenarios.Pace(lr=0.01, batch=10)
        r = md.run(md.FedAvg(), md.Federation(md.problems.Network(net), clients=sites, pace=pace), 2)
        assert r.model is not None
        return int(r.model[1].num_batches_tracked)  # type: ignore[index,union-attr]

    assert counted((20, 60)) == counted((60, 20)) == 12


@pytest.mark.parametrize("momentum", [0.9, 0.1])
def test_adam_takes_no_momentum(momentum: Any) -> None:
    with pytest.raises(md.RecipeError, match="Adam has moments of its own"):
        md.scenarios.Pace(optimizer="adam", momentum=momentum)
    assert md.scenarios.Pace(optimizer="adam").momentum == 0


def test_tune_by_a_metric_without_a_value_says_so(caplog: pytest.LogCaptureFixture) -> None:
    X = np.random.default_rng(0).normal(size=(400, 4))
    data, parts = md.datasets.Dataset(X, (X[:, 0] > 0).astype(int)).split(0.25), md.partitions.IID(5)
    fed = md.Federation(md.problems.Logistic(mu=0.1), data=data, partition=parts, validation=0.2)

    def tuned(metric: Any) -> md.Tuned:
        options = {"metric": "precision", "metrics": {"precision": metric}, "progress": False}
        return md.tune(md.FedAvg(), fed, {"lr": [0.01, 3.0]}, 3, jobs=1, **options)

    with pytest.raises(md.RecipeError, match=r"tune\(metric='precision'\): it is nan"):
        tuned(lambda o, t: float("nan"))
    assert tuned(lambda o, t: float("nan") if float(o.abs().max()) > 0.3 else 0.5).lr == 0.01
    assert "tune: precision is nan at 1 of 2 points" in caplog.text
