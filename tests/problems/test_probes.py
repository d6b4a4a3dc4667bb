"""What a user's own loss takes outputs for: classes, thresholds, and losses of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from medley.contract.needs import Need
from medley.problems.network import probes
from support.pairs import quick

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3)).astype("float32")
Y = (X @ [1, 2, -1.0] + 0.2 * RNG.normal(size=200) > 0).astype(int)

bce = lambda o, t: F.binary_cross_entropy(o, t.float())
logits = lambda o, t: F.binary_cross_entropy_with_logits(o, t.float())
clamped = lambda o, t: F.binary_cross_entropy(o.clamp(1e-6, 1 - 1e-6), t.float())
hinge = lambda o, t: (1 - o * (2 * t - 1)).clamp(min=0).mean()
brier = lambda o, t: F.mse_loss(o, t.to(o.dtype))
weighted = lambda o, t: F.binary_cross_entropy_with_logits(o, t.float(), pos_weight=torch.tensor(3.0))
costly = lambda o, t: F.binary_cross_entropy(o, t.float(), weight=1 + 2 * t.float())
focal = lambda o, t: (
    (1 - torch.sigmoid(o * (2 * t - 1))) ** 2 * F.softplus(-o * (2 * t - 1)) * (0.25 + 0.5 * t)
).mean()
flipped = lambda o, t: F.binary_cross_entropy_with_logits(o, 1 - t.float())
ranked = lambda o, t: F.softplus(o[t == 0][:, None] - o[t == 1]).mean()
ONE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float | None]] = {
    "bce": (bce, 0.5), "logits": (logits, 0.0), "clamped": (clamped, 0.5), "hinge": (hinge, 0.0), "brier": (brier, 0.5),
    "weighted logits": (weighted, 0.0), "costly": (costly, 0.5), "focal": (focal, 0.0), "flipped": (flipped, None),
    "ranked": (ranked, None),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(2,), (2, 1)], ids=str)
@pytest.mark.parametrize("name", ONE)
def test_the_threshold_is_the_one_that_the_loss_means(name: str, shape: tuple[int, ...]):
    loss, at = ONE[name]
    narrow = lambda o, t: loss(o.reshape(t.shape), t)
    assert probes.decision(narrow, torch.zeros(shape), torch.tensor([0, 1]), 2) == at


nll = lambda o, t: F.nll_loss(torch.log(o), t)
balanced = lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([0.1, 1.0, 5.0]))
each = lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([0.1, 1.0, 9.0]), reduction="none")
distances = lambda o, t: F.cross_entropy(-o, t)


def contrastive(o: Tensor, t: Tensor) -> Tensor:
    """Rows of one label near each other, others apart."""
    z, same = F.normalize(o, dim=1), (t[:, None] == t).to(o.dtype)
    return ((same - 0.5) * -(z @ z.T)).mean()


@pytest.mark.parametrize(
    ("loss", "found"),
    [(F.nll_loss, "argmax"), (nll, "argmax"), (balanced, "argmax"), (each, "argmax"), (nn.MultiMarginLoss(), "argmax"),
     (distances, None), (contrastive, None)],
    ids=["nll", "nll of probabilities", "balanced", "by row", "margins", "distances", "contrastive"],
)  # fmt: skip
def test_the_largest_output_counts_only_where_the_loss_is_smallest_there(loss: Any, found: str | None):
    assert probes.decision(loss, torch.zeros(2, 3), torch.tensor([0, 1]), 3) == found


class Act(nn.Module):
    """A sigmoid that is defined first, and a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.l = nn.Sigmoid(), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.l(x)).squeeze(1)


def ends(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 1), *parts)


@pytest.mark.parametrize(
    ("module", "loss", "by_hand"),
    quick(
        3,
        [
            (Act(), bce, 0.5),
            (ends(nn.Sigmoid(), nn.Flatten(0)), bce, 0.5),
            (ends(nn.Flatten(0), nn.Sigmoid()), bce, 0.5),
            (ends(nn.Flatten(0)), logits, 0.0),
            (ends(nn.Flatten(0)), weighted, 0.0),
            (ends(nn.Sigmoid()), lambda o, t: bce(o[:, 0], t), 0.5),
            (ends(nn.Flatten(0), nn.Sigmoid()), nn.BCEWithLogitsLoss(), 0.5),
        ],
    ),
    ids=["defined first", "flattened", "last", "logit", "weighted", "a column", "by mistake"],
)
def test_accuracy_and_predictions_are_those_by_hand(module: nn.Module, loss: Any, by_hand: float):
    fed = md.Federation(
        md.problems.Network(module, loss=loss),
        clients=[(X[:70], Y[:70]), (X[70:140], Y[70:140])],
        test=(X[140:], Y[140:]),
        pace=md.scenarios.Pace(lr=1.0, epochs=3),
    )
    r = md.run(md.FedAvg(), fed, rounds=8, progress=False)
    hand = ((r.outputs(X[140:]).reshape(-1).numpy() > by_hand) == Y[140:]).mean()
    assert hand > 0.8
    assert r.summary["accuracy"] == pytest.approx(hand, abs=1e-12)
    assert (r.predict(X[140:]) == Y[140:]).mean() == pytest.approx(hand, abs=1e-12)


def test_neither_is_given_where_the_loss_does_not_say():
    problem = md.problems.Network(nn.Sequential(nn.Linear(3, 2)), loss=distances)
    fed = md.Federation(problem, clients=[(X, Y)] * 2, test=(X, Y))
    r = md.run(md.FedAvg(), fed, rounds=1, progress=False)
    assert "accuracy" not in r.summary
    assert r.predict(X).shape == (200, 2)


def test_a_softmax_before_cross_entropy_is_said(caplog: pytest.LogCaptureFixture):
    md.problems.Network(nn.Sequential(nn.Linear(3, 2), nn.Softmax(1))).ready(
        torch.zeros(2, 3), torch.arange(2), 2, None, "cpu"
    )
    assert "ends in a softmax: leave that out" in caplog.text


times = torch.stack([torch.linspace(1, 2, 8), torch.ones(8)], 1)
pulled = lambda o, t: F.cross_entropy(o, t) + o.mean(0).square().sum() / 10
infonce = lambda o, t: F.cross_entropy(o @ o.T, torch.arange(len(o)), reduction="none")
pairs = lambda o, t: ((o - t) ** 2).mean()
LOSSES: dict[str, tuple[Any, int, Tensor, bool]] = {
    "cross-entropy": (F.cross_entropy, 3, torch.arange(8) % 3, True),
    "class weights": (balanced, 3, torch.arange(8) % 3, True),
    "by row": (each, 3, torch.arange(8) % 3, True),
    "sum of columns": (lambda o, t: (o - t[:, None]).square().sum(1).mean() * 7, 2, torch.linspace(0, 1, 8), True),
    "with a constant": (lambda o, t: F.nll_loss(o.log(), t) + 3, 3, torch.arange(8) % 3, True),
    "cox": (md.problems.cox, 1, times, False),
    "ranked": (lambda o, t: ranked(o[:, 0], t), 1, torch.arange(8) % 2, False),
    "contrastive": (contrastive, 3, torch.arange(8) % 3, False),
    "infonce, by row": (infonce, 3, torch.arange(8) % 3, False),
    "pulled": (pulled, 3, torch.arange(8) % 3, False),
    "all pairs": (pairs, 1, torch.linspace(0, 1, 8), False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_couple_rows_are_told_from_means_of_row_losses(name: str):
    loss, width, y, rows = LOSSES[name]
    assert probes.separable(loss, torch.zeros(8, width), y) == rows


@pytest.mark.parametrize("name", ["cox", "contrastive", "infonce, by row", "pulled"])
def test_a_method_that_needs_row_losses_is_refused(name: str):
    loss, width, y, _ = LOSSES[name]
    fed = md.Federation(md.problems.Network(nn.Linear(3, width), loss=loss), clients=[(X[:8], y.numpy())] * 3)
    with pytest.raises(md.Unsupported, match="the mean of its rows' losses"):
        md.run(md.Private(md.FedAvg(), unit="row", noise=1.0), fed, rounds=1, progress=False)
    assert Need.ROWS in md.EWC().requires()
    assert Need.WEIGHTS not in fed.draw(0).problem.gives


def test_class_weights_of_the_users_own_are_no_reason():
    fed = md.Federation(
        md.problems.Network(nn.Linear(3, 2), loss=nn.CrossEntropyLoss(torch.tensor([1.0, 4.0]))), clients=[(X, Y)]
    )
    r = md.run(md.Private(md.FedAvg(), unit="row", noise=0), fed, rounds=1, progress=False)
    assert r.history[-1]["loss"] < r.history[0]["loss"]


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: ((o - t) ** 2).mean(1),
        lambda o, t: ((o - t) ** 2).mean(1).mean(),
        lambda o, t: (o - t).abs().sum(-1) / len(o),
        lambda o, t: F.binary_cross_entropy_with_logits(
            o.expand(-1, len(t)), t.expand(len(o), -1), reduction="none"
        ).mean(1),
    ],
    ids=["by row", "mean", "sum", "expanded"],
)
def test_all_pairs_do_not_escape_by_a_mean_over_one_dimension(loss: Any):
    with pytest.raises(md.BadData, match=r"the targets of all rows; take outputs.squeeze\(1\)"):
        md.problems.Network(nn.Linear(3, 1), loss=loss).ready(
            torch.zeros(4, 3), torch.arange(4.0) / 4, None, None, "cpu"
        )
