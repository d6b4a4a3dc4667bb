"""Rows of which every target is ignored: they count in no mean, and the run is the one without them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import medley as md

PAD = -1


class Tag(nn.Module):
    """A class for each of five tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.l = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.l(self.e(x)).transpose(1, 2)
        return out


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X, y = torch.randint(9, (n, 5), generator=g), torch.randint(3, (n, 5), generator=g)
    return X, y.masked_fill(torch.rand(n, 5, generator=g) < 0.3, PAD)


def with_empty(X: Tensor, y: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """The rows, with three more at this place that have no target."""
    none = torch.full((3, 5), PAD)
    return torch.cat([X[:at], X[:3], X[at:]]), torch.cat([y[:at], none, y[at:]])


def run(clients: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor]) -> md.Result:
    problem = md.problems.Network(Tag(), ignore_index=PAD)
    fed = md.Federation(problem, clients=clients, test=test, classes=3, pace=md.scenarios.Pace(lr=0.3, batch=4))
    return md.run(md.FedAvg(), fed, rounds=3, progress=False)


def test_rows_without_a_target_count_in_no_mean():
    clients, test = [rows(9, 1), rows(6, 2), rows(4, 3)], rows(10, 4)
    clients = [(X, torch.where(torch.arange(5) == 0, y.clamp(min=0), y)) for X, y in clients]
    test = test[0], torch.where(torch.arange(5) == 0, test[1].clamp(min=0), test[1])
    without = run(clients, test)
    found = run([with_empty(*clients[0], 4), clients[1], with_empty(*clients[2], 0)], with_empty(*test, 5))
    assert torch.equal(found.x, without.x)
    for name in ("loss", "test_loss", "accuracy"):
        assert [row[name] for row in found.history] == [row[name] for row in without.history]


def test_a_client_without_any_target_is_named():
    X, _ = rows(4, 1)
    with pytest.raises(md.BadData, match="client 1: all targets of its rows are ignore_index; leave it out"):
        run([rows(6, 2), (X, torch.full((4, 5), PAD))], rows(5, 3))


def test_ignore_index_is_refused_where_it_would_do_nothing():
    X, y = torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    for k in (2, 255):
        with pytest.raises(md.BadData, match=rf"ignore_index={k}\) is for sequences and maps, and these rows have one"):
            md.Federation(md.problems.Network(nn.Linear(2, 3), ignore_index=k), clients=[(X, y)], classes=3)
    with pytest.raises(md.RecipeError, match="needs loss='cross_entropy'; a loss of your own takes it itself"):
        md.problems.Network(nn.Linear(2, 3), loss=nn.CrossEntropyLoss(), ignore_index=2)
