"""Remedies in messages, followed: the error or the warning, the code that it suggests, and the outcome."""

import logging
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import medley as md
from support.pairs import quick

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(60, 4))
CLASS = np.argmax(X[:, :3], 1)
HOT = np.eye(3)[CLASS]
BINARY = (X[:, 0] > 0).astype(int)
VALUE = X @ [1.0, -2.0, 0.5, 0.0]
WIDE = lambda out=2: nn.Linear(4, out)


def trained(problem, y, rounds=30, lr=0.5, **options):
    fed = md.Federation(
        problem, clients=[(X[:30], y[:30]), (X[30:], y[30:])], pace=md.scenarios.Pace(lr=lr, batch=None), classes=None
    )
    return md.run(md.FedAvg(), fed, rounds=rounds, progress=False, **options)


def right(result, y):
    return float((result.predict(X) == y).mean())


def close(result, y):
    return 1 - float(np.square(result.predict(X) - y).mean() / np.square(y - y.mean()).mean())


def network(module, **options):
    return md.problems.Network(module, **options)


class Soft(nn.Module):
    def __init__(self, end, out=2):
        super().__init__()
        self.layer, self.end = nn.Linear(4, out), end

    def forward(self, x):
        return self.end(self.layer(x))


P = md.problems


def meta(*more):
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(4, 2), *more)


REFUSED = {
    "a meta module": (
        lambda: trained(network(meta()), BINARY),
        r"'0\.weight', on the device 'meta'.*to_empty\(device='cpu'\)",
        lambda: right(trained(network(meta().to_empty(device="cpu")), BINARY), BINARY),
    ),
    "a meta module with BatchNorm": (
        lambda: network(meta(nn.BatchNorm1d(2, device="meta"))),
        r"to_empty\(device='cpu'\)",
        lambda: right(trained(network(meta(nn.Softplus()).to_empty(device="cpu")), BINARY), BINARY),
    ),
    "a loss's class": (
        lambda: network(WIDE(), loss=nn.CrossEntropyLoss),
        r"give a loss of it, CrossEntropyLoss\(\)",
        lambda: right(trained(network(WIDE(), loss=nn.CrossEntropyLoss()), BINARY), BINARY),
    ),
    "one-hot, Softmax": (
        lambda: trained(P.Softmax(), HOT),
        r"y\.argmax\(1\)",
        lambda: right(trained(P.Softmax(), HOT.argmax(1)), CLASS),
    ),
    "one-hot, LeastSquares": (
        lambda: trained(P.LeastSquares(), HOT),
        r"y\.argmax\(1\), to Softmax",
        lambda: right(trained(P.Softmax(), HOT.argmax(1)), CLASS),
    ),
    "one-hot, Logistic": (
        lambda: trained(P.Logistic(), HOT),
        r"y\.argmax\(1\), to Softmax",
        lambda: right(trained(P.Softmax(), HOT.argmax(1)), CLASS),
    ),
    "one-hot of two, Logistic": (
        lambda: trained(P.Logistic(), np.eye(2)[BINARY]),
        r"y\.argmax\(1\)$",
        lambda: right(trained(P.Logistic(), np.eye(2)[BINARY].argmax(1)), BINARY),
    ),
    "one-hot, cross-entropy": (
        lambda: trained(network(WIDE(3)), HOT),
        r"y\.argmax\(1\)",
        lambda: right(trained(network(WIDE(3)), HOT.argmax(1)), CLASS),
    ),
    "class numbers, LeastSquares": (
        lambda: trained(P.LeastSquares(), CLASS),
        "use Softmax, or a Network",
        lambda: right(trained(network(WIDE(3)), CLASS), CLASS),
    ),
    "counts, LeastSquares": (
        lambda: trained(P.LeastSquares(), CLASS),
        r"y\.astype\('float64'\)",
        lambda: 0.9 + 0.1 * trained(P.LeastSquares(), CLASS.astype("float64")).status.ok,
    ),
    "class numbers, mse": (
        lambda: trained(network(nn.Sequential(WIDE(1), nn.Flatten(0)), loss="mse"), CLASS),
        "use Softmax, or a Network",
        lambda: right(trained(network(WIDE(3)), CLASS), CLASS),
    ),
    "class numbers, MSELoss": (
        lambda: trained(network(nn.Sequential(WIDE(1), nn.Flatten(0)), loss=nn.MSELoss()), CLASS),
        "use Softmax, or a Network",
        lambda: right(trained(P.Softmax(), CLASS), CLASS),
    ),
    "classes of a Dataset": (
        lambda: md.Federation(P.LeastSquares(), data=md.datasets.digits(), partition=md.partitions.IID(2)),
        "give Logistic or Softmax",
        lambda: md.Federation(P.Softmax(), data=md.datasets.digits(), partition=md.partitions.IID(2)).sizes is None,
    ),
    "a column, LeastSquares": (
        lambda: trained(P.LeastSquares(), VALUE[:, None]),
        r"y\.reshape\(-1\)",
        lambda: close(trained(P.LeastSquares(), VALUE[:, None].reshape(-1)), VALUE),
    ),
    "classes=5 of Logistic": (
        lambda: md.Federation(P.Logistic(), clients=[(X, BINARY)], classes=5),
        "leave it out",
        lambda: right(trained(P.Logistic(), BINARY), BINARY),
    ),
    "Dirichlet without clients": (
        lambda: md.partitions.Dirichlet(alpha=0.1),
        "clients= is missing",
        lambda: md.partitions.Dirichlet(clients=3, alpha=0.1).clients == 3,
    ),
    "Private without a method": (
        lambda: md.Private(noise=1.0),
        "method= is missing",
        lambda: md.Private(md.FedAvg(), noise=1.0).noise == 1,
    ),
    "target_over without a target": (
        lambda: trained(P.Logistic(), BINARY, target_over=3),
        "give target=",
        lambda: trained(P.Logistic(), BINARY, target={"loss": 0.5}, target_over=3).status.ok,
    ),
    "drop_last of a full batch": (
        lambda: md.scenarios.Pace(batch=None, drop_last=True),
        "give batch=",
        lambda: md.scenarios.Pace(batch=8, drop_last=True).drop_last,
    ),
    "redraw of nothing": (
        lambda: md.scenarios.Pace(redraw=True),
        "LogUniform",
        lambda: md.scenarios.Pace(lr=md.distributions.LogUniform(0.01, 0.1), redraw=True).redraw,
    ),
    "a metric's class": (
        lambda: trained(P.Logistic(), BINARY, metrics={"auroc": md.metrics.AUROC}),
        r"AUROC\(\)",
        lambda: md.run(
            md.FedAvg(),
            md.Federation(P.Logistic(), clients=[(X, BINARY)], test=(X, BINARY)),
            20,
            metrics={"auroc": md.metrics.AUROC()},
            progress=False,
        ).summary["auroc"],
    ),
    "best of a figure that is not there": (
        lambda: md.run(
            md.FedAvg(),
            md.Federation(P.LeastSquares(), clients=[(X, VALUE)], validation=0.2),
            2,
            best="accuracy",
            evaluate_on="validation",
            progress=False,
        ),
        "no 'accuracy'.*test_loss",
        lambda: (
            md.run(
                md.FedAvg(),
                md.Federation(P.LeastSquares(), clients=[(X, VALUE)], validation=0.2),
                2,
                best="test_loss",
                evaluate_on="validation",
                progress=False,
            ).status.ok
        ),
    ),
    "tune's best": (
        lambda: md.tune(
            md.FedAvg(),
            md.Federation(P.Logistic(), clients=[(X, BINARY)], validation=0.2),
            {"lr": [1.0, 2.0]},
            rounds=2,
            best="accuracy",
            progress=False,
        ),
        "patience=",
        lambda: (
            md.tune(
                md.FedAvg(),
                md.Federation(P.Logistic(), clients=[(X, BINARY)], validation=0.2),
                {"lr": [1.0, 2.0]},
                rounds=2,
                best="accuracy",
                patience=1,
                jobs=1,
                progress=False,
            ).lr
            > 0
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_remedy_of_an_error_works(case):
    wrong, words, remedy = REFUSED[case]
    with pytest.raises(md.MedleyError, match=words):
        wrong()
    assert remedy() > 0.85


SOFT = lambda z: F.softmax(z, 1)
LOGS = lambda z: F.log_softmax(z, 1)
NOTED = {
    "softmax, CrossEntropyLoss": (
        lambda: network(Soft(SOFT), loss=nn.CrossEntropyLoss()),
        "ends in a softmax: leave that out",
        lambda: network(WIDE(), loss=nn.CrossEntropyLoss()),
    ),
    "softmax, F.cross_entropy": (
        lambda: network(Soft(SOFT), loss=F.cross_entropy),
        "ends in a softmax",
        lambda: network(WIDE(), loss=F.cross_entropy),
    ),
    "softmax, a function of mine": (
        lambda: network(Soft(SOFT), loss=lambda z, y: F.cross_entropy(z, y)),
        "ends in a softmax",
        lambda: network(WIDE(), loss=lambda z, y: F.cross_entropy(z, y)),
    ),
    "softmax, the default": (lambda: network(Soft(SOFT)), "ends in a softmax", lambda: network(WIDE())),
    "divided by the sum": (
        lambda: network(Soft(lambda z: z.exp() / z.exp().sum(1, keepdim=True))),
        "ends in a softmax",
        lambda: network(WIDE()),
    ),
    "sigmoid, CrossEntropyLoss": (
        lambda: network(Soft(torch.sigmoid), loss=nn.CrossEntropyLoss()),
        "ends in a sigmoid",
        lambda: network(WIDE(), loss=nn.CrossEntropyLoss()),
    ),
    "raw outputs, NLLLoss": (
        lambda: network(WIDE(), loss=nn.NLLLoss()),
        "LogSoftmax",
        lambda: network(Soft(LOGS), loss=nn.NLLLoss()),
    ),
    "raw outputs, F.nll_loss": (
        lambda: network(WIDE(), loss=F.nll_loss),
        "LogSoftmax",
        lambda: network(nn.Sequential(WIDE(), nn.LogSoftmax(1)), loss=F.nll_loss),
    ),
    "raw outputs, a function of mine": (
        lambda: network(WIDE(), loss=lambda z, y: F.nll_loss(z, y)),
        "LogSoftmax",
        lambda: network(WIDE(), loss="cross_entropy"),
    ),
    "softmax, NLLLoss": (
        lambda: network(Soft(SOFT), loss=nn.NLLLoss()),
        "without the logarithm",
        lambda: network(Soft(lambda z: SOFT(z).log()), loss=nn.NLLLoss()),
    ),
}


@pytest.mark.parametrize("case", quick(5, NOTED))
def test_outputs_that_the_loss_does_not_take_are_noted_and_the_remedy_learns(case, caplog):
    wrong, words, remedy = NOTED[case]
    trained(wrong(), BINARY, 1, throw=False)
    assert len([r for r in caplog.records if words in r.getMessage()]) == 1
    caplog.clear()
    assert right(trained(remedy(), BINARY), BINARY) > 0.9
    assert not [r for r in caplog.records if "softmax" in r.getMessage().lower()]


BINARY_OUT = lambda *more: nn.Sequential(WIDE(1), nn.Flatten(0), *more)


@pytest.mark.parametrize("loss", [nn.BCELoss(), F.binary_cross_entropy])
def test_logits_under_bceloss_are_noted(loss, caplog):
    module = BINARY_OUT()
    torch.nn.init.zeros_(module[0].weight)
    torch.nn.init.constant_(module[0].bias, 0.5)
    trained(network(module, loss=loss, start="module"), BINARY.astype("float32"), 0)
    assert [r for r in caplog.records if "BCEWithLogitsLoss" in r.getMessage()]
    caplog.clear()
    for remedy in (network(BINARY_OUT(nn.Sigmoid()), loss=loss), network(BINARY_OUT(), loss=nn.BCEWithLogitsLoss())):
        predicted = trained(remedy, BINARY.astype("float32")).predict(X) > 0.5
        assert (predicted == BINARY).mean() > 0.9
    assert not [r for r in caplog.records if "BCEWithLogitsLoss" in r.getMessage()]


def test_dropout_that_forgets_evaluation_is_noted_and_its_remedy_is_silent(caplog):
    class Drops(nn.Module):
        def __init__(self, also):
            super().__init__()
            self.layer, self.also = nn.Linear(4, 2), also

        def forward(self, x):
            return self.layer(F.dropout(x, training=self.training) if self.also else F.dropout(x))

    noisy = trained(network(Drops(False)), BINARY, 2)
    assert [r for r in caplog.records if "training=self.training" in r.getMessage()]
    caplog.clear()
    still = trained(network(Drops(True)), BINARY, 2)
    assert not [r for r in caplog.records if "random numbers" in r.getMessage()]
    assert torch.equal(still.outputs(X), still.outputs(X))
    assert not torch.equal(noisy.outputs(X), noisy.outputs(X))


def test_settings_that_changed_nothing_are_said(caplog, tmp_path):
    logistic = lambda: md.Federation(md.problems.Logistic(mu=0.1), clients=[(X, BINARY)] * 2, validation=0.2)
    md.run(md.FedAvg(), logistic(), 1, checkpoint_every=3, client_models=True, progress=False)
    md.tune(md.Newton(), logistic(), {"lr": [0.1, 1.0]}, rounds=2, jobs=1, progress=False)
    for words in ("nothing is saved without checkpoint=", "none to keep", "lr changed nothing"):
        assert len([r for r in caplog.records if words in r.getMessage()]) == 1, words
    caplog.clear()
    md.run(md.FedAvg(), logistic(), 1, checkpoint_every=3, checkpoint=tmp_path / "run", progress=False)
    md.tune(md.FedAvg(), logistic(), {"lr": [0.1, 1.0]}, rounds=2, jobs=1, progress=False)
    assert not [r for r in caplog.records if "nothing" in r.getMessage()]


@pytest.mark.parametrize("gone", [None, float("nan"), np.datetime64("NaT")])
def test_a_row_without_a_site_is_named(gone):
    sklearn = pytest.importorskip("sklearn")
    assert sklearn
    from medley.sklearn import FederatedRidge

    sites = np.array(["A", "B"] * 30, dtype=object)
    sites[7] = gone
    with pytest.raises(md.BadData, match="row 7 has no site") as e:
        FederatedRidge().fit(X, VALUE, sites=sites)
    assert e.value.row == 7
    kept = np.arange(60) != 7
    assert FederatedRidge(alpha=1e-6).fit(X[kept], VALUE[kept], sites=sites[kept]).score(X, VALUE) > 0.99


class Mute:
    def write(self, text):
        return len(text)

    def flush(self):
        pass


@pytest.mark.parametrize("stream", [None, Mute()])
def test_a_run_needs_no_stream_that_knows_terminals(stream, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    fed = md.Federation(md.problems.Logistic(mu=0.1), clients=[(X, BINARY)] * 2)
    assert md.run(md.FedAvg(), fed, 2).status.ok
    assert md.compare([md.FedAvg()], fed, rounds=1, seeds=1, jobs=1).status.ok
    if stream is None:
        with pytest.raises(md.RecipeError, match="give the name of a file"):
            md.logs.lines()


def test_lines_twice_are_written_once(tmp_path):
    log, path = logging.getLogger("medley"), tmp_path / "log.txt"
    level, before = log.level, [*log.handlers]
    try:
        handlers = [md.logs.lines(to=path), md.logs.lines(to=path), md.logs.lines("json", tmp_path / "other.txt")]
        assert [h for h in log.handlers if h not in before] == handlers[1:]
        trained(md.problems.Logistic(mu=0.1), BINARY, 2)
        assert [path.read_text().count(f"round {k} of 2") for k in range(3)] == [1, 1, 1]
        assert len((tmp_path / "other.txt").read_text().splitlines()) == 3
    finally:
        for handler in set(log.handlers) - set(before):
            log.removeHandler(handler)
            handler.close()
        log.setLevel(level)
