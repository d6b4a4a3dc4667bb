"""Targets of every shape: multi-label, sequences, maps, class and row weights, and losses of a user's own."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from medley.problems import Network
from support.pairs import quick

F64 = torch.float64


def rows(n: int = 40, seed: int = 0, wide: int = 6) -> Tensor:
    return torch.randn(n, wide, generator=torch.Generator().manual_seed(seed), dtype=F64)


def federation(problem: Network, y: Tensor, *more: Tensor, X: Tensor | None = None) -> md.Federation:
    X = rows(len(y)) if X is None else X
    half = len(y) // 2
    clients = [(X[:half], y[:half], *(t[:half] for t in more)), (X[half:], y[half:], *(t[half:] for t in more))]
    return md.Federation(problem, clients=clients, test=(X, y), pace=md.scenarios.Pace(lr=0.5, epochs=3, batch=8))


@pytest.mark.parametrize("loss", [F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss()])
@pytest.mark.parametrize("dtype", quick(1, [torch.int64, F64]))
def test_multi_label_targets_train_and_have_an_accuracy(loss: object, dtype: torch.dtype) -> None:
    y = (rows()[:, :3] > 0).to(dtype)
    r = md.run(md.FedAvg(), federation(Network(nn.Linear(6, 3), loss=loss), y), 10, dtype=F64)  # type: ignore[arg-type]
    assert r.model is not None
    z = r.model(rows())
    assert r.summary["accuracy"] == pytest.approx(float(((z > 0) == (y > 0)).double().mean()), rel=1e-12)
    assert r.summary["accuracy"] > 0.95
    assert r.summary["loss"] == pytest.approx(float(F.binary_cross_entropy_with_logits(z, y.to(F64)).detach()))


class Tagger(nn.Module):
    """A label for every token: ids [n, t] -> [n, classes, t]."""

    def __init__(self, words: int = 9, classes: int = 4) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, 8), nn.Linear(8, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids)).mT


def tokens(n: int = 30, length: int = 7) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 9, (n, length), generator=torch.Generator().manual_seed(1))
    y = ids % 4
    for i in range(n):
        y[i, 2 + i % 5 :] = -100
    return ids, y


@pytest.mark.parametrize("engine", quick(1, ["auto", "seq", "stacked"]))
@pytest.mark.parametrize("padding", [-100, 0])
def test_sequences_are_learned_and_padding_counts_nowhere(engine: str, padding: int) -> None:
    X, y = tokens()
    y = y.masked_fill(y == -100, padding)
    problem = Network(Tagger(), ignore_index=padding)
    r = md.run(md.FedAvg(), federation(problem, y, X=X), 12, engine=engine, dtype=F64)
    assert r.model is not None
    z, there = r.model(X).detach(), y != padding
    right = ((z.argmax(1) == y) & there).sum(1) / there.sum(1).clamp(min=1)
    assert r.summary["accuracy"] == pytest.approx(float(right.double().mean()))
    by_token = F.cross_entropy(z, y, ignore_index=padding, reduction="none").sum(1) / there.sum(1).clamp(min=1)
    assert r.summary["loss"] == pytest.approx(float(by_token.mean()))
    assert r.summary["accuracy"] > (0.95 if padding else 0.5)
    assert r.summary["loss"] < r.history[0]["loss"] / 2


@pytest.mark.shapes
def test_engines_agree_on_sequences_and_class_weights() -> None:
    X, y = tokens()
    net = Network(Tagger(), class_weights=[1.0, 2.0, 0.0, 5.0])
    a, b = (md.run(md.FedAvg(), federation(net, y, X=X), 3, engine=e, dtype=F64).x for e in ("seq", "stacked"))
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_dense_maps_are_learned() -> None:
    X = torch.randn(24, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > 0).long()
    fed = federation(Network(nn.Conv2d(1, 2, 3, padding=1)), y, X=X)
    r = md.run(md.FedAvg(), fed, 10)
    assert r.summary["accuracy"] > 0.9
    assert "client_accuracy_mean_estimate" not in r.summary  # a row has many labels
    assert (r.predict(X) == y.numpy()).mean() == pytest.approx(r.summary["accuracy"])


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (torch.full((40, 3), 2), "widen its last layer"),
        (torch.zeros(40, 3, dtype=torch.int64), "the classes first, as for torch's cross_entropy"),
        (torch.full((40, 2), -7), "row 0.* this one is -7"),
    ],
)
def test_labels_that_do_not_fit_the_outputs_are_refused(y: Tensor, said: str) -> None:
    with pytest.raises(md.BadData, match=said):
        md.run(md.FedAvg(), federation(Network(nn.Linear(6, 2)), y), 1)


@pytest.mark.parametrize("length", [3, 7])
def test_classes_that_come_last_are_refused_with_the_way_out(length: int) -> None:
    """Both with fewer and with more tokens than classes; 4 of each cannot be told."""

    class Last(Tagger):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids).mT

    ids = torch.arange(40 * length).reshape(40, length) % 9
    with pytest.raises(
        md.BadData, match=rf"outputs are \[{length}, 4\].*4 classes last.*return outputs.movedim\(-1, 1\)"
    ):
        md.run(md.FedAvg(), federation(Network(Last()), ids % 4, X=ids), 1)


class Wrapped(nn.Module):
    """A network whose forward returns its outputs inside something."""

    def __init__(self, inside: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer, self.inside = nn.Linear(6, 3), inside

    def forward(self, X: Tensor) -> object:
        return self.inside(self.layer(X))


class LikeHub(OrderedDict[str, Tensor]):
    """Outputs as Hugging Face's models return them: `out.logits` and `out["logits"]`."""

    def __getattr__(self, name: str) -> Tensor:
        return self[name]


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", lambda out, y: F.cross_entropy(out["logits"], y)])
@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (lambda z: {"logits": z}, r"returns a dict, .*self.module\(X\)\['logits'\]"),
        (lambda z: (z, z), r"returns a tuple, .*self.module\(X\)\[0\]"),
        (lambda z: SimpleNamespace(logits=(z,)), r"returns a SimpleNamespace, .*self.module\(X\)\[0\]"),
    ],
)
def test_outputs_are_one_tensor(inside: Callable[[Tensor], object], said: str, loss: Any) -> None:
    y = torch.arange(40) % 3
    y = y.float() if loss == "mse" else y
    with pytest.raises(md.RecipeError, match=rf"Network\(module\): the module {said}"):
        md.run(md.FedAvg(), federation(Network(Wrapped(inside), loss=loss), y), 1)


@pytest.mark.parametrize("kind", [LikeHub, SimpleNamespace])
def test_of_an_object_with_logits_those_are_the_outputs(kind: Any) -> None:
    runs = [
        md.run(md.FedAvg(), federation(Network(module), torch.arange(40) % 3), 1)
        for module in (Wrapped(lambda z: kind(logits=z)), Wrapped(lambda z: z))
    ]
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].history[-1]["loss"] == runs[1].history[-1]["loss"]


def test_class_weights_have_an_order() -> None:
    for wrong in ({0: 1.0, 1: 5.0}, {1.0, 5.0}, "15", torch.ones(2, 2), [0, 0.0]):
        with pytest.raises(md.RecipeError, match=r"class_weights=.* a list, in the order of the classes.* not all 0"):
            Network(nn.Linear(6, 2), class_weights=wrong)  # type: ignore[arg-type]
    for same in (np.array([1, 5]), torch.tensor([1.0, 5.0]), (1, 5)):
        assert Network(nn.Linear(6, 2), class_weights=same).class_weights == (1.0, 5.0)  # type: ignore[arg-type]


def test_class_weights_are_factors_of_each_rows_loss() -> None:
    y = torch.arange(40) % 3
    factors = [1.0, 10.0, 0.5]
    fed = federation(Network(nn.Linear(6, 3), class_weights=factors), y)
    r = md.run(md.FedAvg(), fed, 2, dtype=F64)
    assert r.model is not None
    by_row = F.cross_entropy(r.model(rows()), y, reduction="none") * torch.tensor(factors, dtype=F64)[y]
    assert r.summary["loss"] == pytest.approx(float(by_row.mean().detach()), rel=1e-12)
    assert r.settings["class weights"] == factors
    for wrong in ([1.0, -1.0, 1.0], [1.0, float("nan"), 1.0]):
        with pytest.raises(md.RecipeError, match="class_weights"):
            Network(nn.Linear(6, 3), class_weights=wrong)
    with pytest.raises(md.BadData, match="2 weights for 3 classes"):
        md.run(md.FedAvg(), federation(Network(nn.Linear(6, 3), class_weights=[1.0, 1.0]), y), 1)
    with pytest.raises(md.BadData, match="4 weights for 3 classes"):
        md.run(md.FedAvg(), federation(Network(nn.Linear(6, 3), class_weights=[1.0] * 4), y), 1)


def by_row(outputs: Tensor, y: Tensor) -> Tensor:
    """A user's own loss of each row."""
    return F.cross_entropy(outputs, y, reduction="none")


@pytest.mark.parametrize("loss", ["cross_entropy", by_row])
@pytest.mark.parametrize("engine", ["auto", "seq"])
def test_a_row_of_weight_two_is_a_row_that_is_there_twice(loss: object, engine: str) -> None:
    y, w = torch.arange(40) % 3, (torch.arange(40) % 2 + 1).double()
    net = Network(nn.Linear(6, 3), loss=loss)  # type: ignore[arg-type]
    pace = md.scenarios.Pace(lr=0.5, steps=4, batch=None)
    twice = torch.repeat_interleave(torch.arange(40), w.long())
    a = md.Federation(net, clients=[(rows(), y, w)], pace=pace)
    b = md.Federation(net, clients=[(rows()[twice], y[twice])], pace=pace)
    one, two = (md.run(md.FedAvg(), fed, 3, dtype=F64, engine=engine) for fed in (a, b))
    torch.testing.assert_close(one.x, two.x, rtol=1e-10, atol=1e-10)
    assert one.summary["loss"] == pytest.approx(two.summary["loss"], rel=1e-10)
    assert one.settings["engine"] == "seq"


def test_weights_need_the_loss_of_each_row() -> None:
    mean = lambda z, y: F.cross_entropy(z, y)
    fed = federation(Network(nn.Linear(6, 3), loss=mean), torch.arange(40) % 3, torch.ones(40))
    with pytest.raises(md.Unsupported, match="return the loss of each row"):
        md.run(md.FedAvg(), fed, 1)


def cox(risk: Tensor, y: Tensor) -> Tensor:
    """The negative partial log-likelihood of Cox's model; y has times and events [n, 2]."""
    order = y[:, 0].argsort(descending=True)
    risk, event = risk[order, 0], y[order, 1]
    return -((risk - torch.logcumsumexp(risk, 0)) * event).sum() / event.sum().clamp(min=1)


def quantile(z: Tensor, y: Tensor, q: float = 0.9) -> Tensor:
    """The pinball loss of each row."""
    return torch.maximum(q * (y - z), (q - 1) * (y - z)).squeeze(1)


@pytest.mark.slow
def test_cox_and_quantile_losses_train_without_an_accuracy() -> None:
    X = rows(120)
    times = torch.stack([torch.exp(-X[:, 0]), torch.ones(120, dtype=F64)], 1)
    r = md.run(md.FedAvg(), federation(Network(nn.Linear(6, 1, bias=False), loss=cox), times, X=X), 10, dtype=F64)
    assert r.summary["loss"] < r.history[0]["loss"] - 0.3
    assert "accuracy" not in r.summary
    y = X[:, :1] + rows(120, seed=3)[:, :1]
    r = md.run(md.FedAvg(), federation(Network(nn.Linear(6, 1), loss=quantile), y, X=X), 40, dtype=F64)
    assert r.model is not None
    assert float((y <= r.model(X)).double().mean()) == pytest.approx(0.9, abs=0.06)


def ctc(z: Tensor, y: Tensor) -> Tensor:
    """CTC of outputs [n, t, c] and labels [n, l], which are padded with 0, the blank."""
    lengths = torch.full((len(z),), z.shape[1])
    return F.ctc_loss(z.transpose(0, 1).log_softmax(2), y, lengths, (y > 0).sum(1))


def test_integer_targets_of_any_shape_reach_a_loss_of_ones_own() -> None:
    X = torch.randn(16, 5, 3, generator=torch.Generator().manual_seed(0))
    y = torch.randint(1, 4, (16, 2), generator=torch.Generator().manual_seed(1))
    y[::2, 1] = 0
    r = md.run(md.FedAvg(), federation(Network(nn.Linear(3, 4), loss=ctc), y, X=X), 5)
    assert r.summary["loss"] < r.history[0]["loss"]
    assert "accuracy" not in r.summary


@pytest.mark.slow
def test_losses_of_ones_own_keep_the_accuracy_of_class_labels() -> None:
    y = (rows()[:, 0] > 0).long()
    smooth = functools.partial(F.cross_entropy, label_smoothing=0.1)
    logit = lambda z, y: F.binary_cross_entropy_with_logits(z.squeeze(1), y.to(z.dtype))
    chance = lambda z, y: F.binary_cross_entropy(z.squeeze(1), y.to(z.dtype))
    for net, loss, label in (
        (nn.Linear(6, 2), smooth, lambda z: z.argmax(1)),
        (nn.Linear(6, 2), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0], dtype=F64)), lambda z: z.argmax(1)),
        (nn.Linear(6, 1), logit, lambda z: (z[:, 0] > 0).long()),
        (nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), chance, lambda z: (z[:, 0] > 0.5).long()),
    ):
        r = md.run(md.FedAvg(), federation(Network(net, loss=loss), y), 10, dtype=F64)
        assert r.model is not None
        assert r.summary["accuracy"] == float((label(r.model(rows())) == y).double().mean()) > 0.9


def test_a_loss_of_ones_own_is_evaluated_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def loss(z: Tensor, y: Tensor) -> Tensor:
        if not z.requires_grad:
            seen.append(len(z))
        return F.mse_loss(z, y)

    from medley.problems.network import objective

    monkeypatch.setattr(objective, "EVALUATED_AT_ONCE", 6 * 100)
    X = rows(250)
    fed = md.Federation(Network(nn.Linear(6, 1), loss=loss), clients=[(X, X[:, :1])])
    seen.clear()
    r = md.run(md.FedAvg(), fed, 0, dtype=F64)
    assert seen[-3:] == [100, 100, 50]
    assert r.model is not None
    assert r.summary["loss"] == pytest.approx(float(F.mse_loss(r.model(X), X[:, :1]).detach()), rel=1e-12)


@pytest.mark.shapes
def test_integer_targets_of_mse_are_numbers() -> None:
    y = torch.from_numpy(np.arange(40)).reshape(-1, 1)
    r = md.run(md.FedAvg(), federation(Network(nn.Linear(6, 1), loss="mse"), y), 1, dtype=F64)
    assert "accuracy" not in r.summary
    assert r.history[0]["loss"] > 100


@pytest.mark.parametrize("ignored", [255, 2, -1])
@pytest.mark.parametrize("classes", quick(1, [2, None]))
def test_padding_is_no_class_whatever_its_number(ignored: int, classes: int | None) -> None:
    """Maps of two classes whose first row of pixels has no label, as 255 in VOC and Cityscapes."""
    X = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = (X[:, 0] > 0.5).long()
    y[:, 0] = ignored
    net = nn.Conv2d(1, 2, 1)
    network, whole = Network(net, ignore_index=ignored), md.datasets.Dataset(X, y, classes=classes)
    feds = [
        md.Federation(network, clients=[(X[:4], y[:4]), (X[4:], y[4:], X, y)], classes=classes),
        md.Federation(network, data=whole, partition=md.partitions.IID(2)),
        md.Federation(network, data=(X, y), partition=md.partitions.IID(2), classes=classes),
    ]
    assert feds[0].data.classes == 2
    for fed in feds:
        assert md.run(md.FedAvg(), fed, 1, progress=False).status.outcome == "finished"
    with pytest.raises(md.BadData, match=r"padding") as e:
        md.Federation(Network(net, ignore_index=-7), clients=[(X, y)], classes=classes).draw(0)
    assert e.value.client == 0


def test_labels_of_maps_beyond_the_classes_are_no_padding_where_they_differ() -> None:
    y = torch.tensor([[0, 1, 7], [1, 255, 0]])
    with pytest.raises(md.BadData, match=r"row 0, column 'y': 7 is no label of 0\.\.1"):
        md.datasets.Dataset(torch.rand(2, 3), y, classes=2)
