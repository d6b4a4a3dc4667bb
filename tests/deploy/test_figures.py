"""Figures that nodes measure: metrics, gradient norms, samples of rows, several inputs a row; those of one process."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import medley as md
from medley import recipe
from medley.flower import client_app, server_app
from medley.metrics import AUROC
from medley.numerics.intervals import pooled_error, wilson
from medley.storage import events

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from support.bench import Bench

CODE = """
import torch
from torch import nn

import medley as md
from medley.metrics import AUROC

auroc = AUROC(bins=50)


def surprise(z, y):
    return float(nn.functional.softplus(-z.reshape(-1) * (2.0 * y - 1)).mean())


class Two(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words, self.age, self.out = nn.Embedding(9, 3), nn.Linear(2, 3), nn.Linear(6, classes)

    def forward(self, words, age):
        return self.out(torch.cat([self.words(words).mean(1), self.age(age)], 1))


def rows():
    g = torch.Generator().manual_seed(3)
    X = {"words": torch.randint(9, (90, 4), generator=g), "age": torch.randn(90, 2, generator=g)}
    part = lambda at: {k: v[at] for k, v in X.items()}
    y = torch.randint(3, (90,), generator=g)
    return md.datasets.Dataset(part(slice(0, 60)), y[:60], part(slice(60, 90)), y[60:], classes=3)
"""

LOGISTIC = """
[rules]
exact = true
scores = true
[problem]
kind = "Logistic"
mu = 0.01

[data]
name = "breast_cancer"
standardise = true

[partition]
kind = "IID"
clients = 3

[pace]
lr = 0.1
batch = "full"

[run]
rounds = 2
dtype = "float64"
{run}

[[methods]]
kind = "FedAvg"
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "figure_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "recipe.toml"


def both(app: Path, text: str) -> tuple[md.Result, md.Result]:
    """The recipe run here, and on nodes."""
    app.write_text(text)
    r = recipe.load(app)
    config: dict[str, Any] = {"clients": 3, "save": str(app.parent / "run"), "timeout": 60}
    grid = Bench([client_app(app)] * 3, config, memory=str(app.parent / "memory"))
    server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    here = r.federation().run(r.methods()[0], 2, **r.options(), transport=md.transports.Lossy())
    return here, md.Result.load(app.parent / "run")


def test_metrics_of_nodes_are_those_of_all_rows(app: Path) -> None:
    """The area follows from counts, and the mean of a function of rows from the nodes' means."""
    metrics = 'metrics = { auroc = ["figure_code:auroc", "max"], surprise = ["figure_code:surprise", "min"] }'
    here, there = both(app, LOGISTIC.format(run=f"clients_every = 1\n{metrics}"))
    for a, b in zip(here.history, there.history, strict=True):
        for name in ("auroc", "surprise", "test_loss", "accuracy"):
            assert b[name] == pytest.approx(a[name], abs=1e-10), name
    rows = [row for row in there.clients if row["round"] == 2]
    assert [row["client"] for row in rows] == [0, 1, 2]
    assert all(0.9 < row["auroc"] <= 1 and 0 <= row["auroc_error"] < 0.1 for row in rows)
    n = [row["test_rows"] for row in rows]
    mean = sum(k * row["test_loss"] for k, row in zip(n, rows, strict=True)) / sum(n)
    assert there.history[-1]["test_loss"] == pytest.approx(mean)
    assert there.history[-1]["client_accuracy_worst"] == min(row["accuracy"] for row in rows)


def test_a_site_whose_rules_keep_its_scores_gives_its_area_alone(app: Path) -> None:
    """Counts of its test rows by probability stay with it, so the area of all is the mean of the sites' areas."""
    text = LOGISTIC.format(run='clients_every = 1\nmetrics = { auroc = ["figure_code:auroc", "max"] }')
    app.write_text(text)
    own = app.with_name("own.toml")
    own.write_text(text.replace("scores = true", "scores = false"))
    config: dict[str, Any] = {"clients": 3, "save": str(app.parent / "run"), "timeout": 60}
    grid = Bench([client_app(p) for p in (app, own, app)], config, memory=str(app.parent / "memory"))
    server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    there = md.Result.load(app.parent / "run")
    rows = [row for row in there.clients if row["round"] == 2]
    assert ["auroc_error" in row for row in rows] == [True, False, True]
    mean = sum(r["test_rows"] * r["auroc"] for r in rows) / sum(r["test_rows"] for r in rows)
    assert there.history[-1]["auroc"] == pytest.approx(mean)
    answers = [bytes(m.content["answer"]["bytes"]) for m in grid.replies.values()]
    assert sum(b'"sums"' in a for a in answers) == 2 * sum(b'"tests"' in a for a in answers) // 3 > 0


def test_the_gradients_norm(app: Path) -> None:
    here, there = both(app, LOGISTIC.format(run="target = { grad_norm = 1e-9 }"))
    for a, b in zip(here.history, there.history, strict=True):
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-10)
    shutil.rmtree(app.parent / "run")
    with pytest.raises(md.RecipeError, match=r"grad_norm = ... \} with \[secure\]: the norm is of a sum"):
        both(app, LOGISTIC.format(run="target = { grad_norm = 1e-9 }") + "[secure]\nbound = 50.0\n")


def test_a_sample_of_rows(app: Path) -> None:
    here, there = both(app, LOGISTIC.format(run="eval_rows = 60"))
    for a, b in zip(here.history, there.history, strict=True):
        assert a["round"] == 0 or a["loss_error"] > 0
        for name in ("loss", "loss_error"):
            assert b[name] == pytest.approx(a[name], rel=1e-10, abs=1e-15), name


def test_a_sample_of_as_many_rows_as_others_have(app: Path) -> None:
    """Numbers of rows may be the same: client 1's first row and its sampled ones, or all rows and the sampled ones."""
    here, there = both(app, LOGISTIC.format(run="eval_rows = 1000"))
    assert there.history[-1]["loss"] == pytest.approx(here.history[-1]["loss"], rel=1e-10)
    assert there.history[-1]["loss_error"] == 0.0


@pytest.mark.slow
def test_secure_sums_keep_losses_of_few_rows_counts_and_classes(app: Path) -> None:
    """The area is the nodes' mean, since counts by probability show single rows."""
    shown = 'clients_every = 1\nmetrics = { auroc = ["figure_code:auroc", "max"] }'
    _, there = both(app, LOGISTIC.format(run=shown) + "[secure]\nbound = 50.0\n")
    rows = [row for row in there.clients if row["round"] == 2]
    mean = sum(r["test_rows"] * r["auroc"] for r in rows) / sum(r["test_rows"] for r in rows)
    assert there.history[-1]["auroc"] == pytest.approx(mean)
    assert "auroc_error" not in rows[0]
    data = next(e for e in events.read(app.parent / "run") if e["event"] == "data")
    assert [task["support"] for tasks in data["clients"].values() for task in tasks] == [[], [], []]
    shutil.rmtree(app.parent / "run")
    with pytest.raises(md.RecipeError, match=r"run.eval_rows with \[secure\]: nodes would have to send a few"):
        both(app, LOGISTIC.format(run="eval_rows = 60") + "[secure]\nbound = 50.0\n")


def test_nodes_have_no_validation_rows(app: Path) -> None:
    with pytest.raises(md.RecipeError, match=r"run.evaluate_on = 'validation': nodes measure models on their test"):
        both(app, LOGISTIC.format(run='evaluate_on = "validation"'))


@pytest.mark.parametrize("kind", ["FedAvg", "SCAFFOLD", "FedPer"])
def test_several_inputs_a_row(kind: str, app: Path) -> None:
    text = LOGISTIC.format(run="").replace("FedAvg", kind)
    head = "[rules]\nexact = true\n" + text[text.index("[partition]") :].replace('batch = "full"', "batch = 16")
    problem = '[problem]\nkind = "Network"\nmodel = "figure_code:Two"\n[data]\nname = "figure_code:rows"\n'
    here, there = both(app, problem + head)
    assert torch.equal(here.x, there.x)
    for name in ("loss", "test_loss", "accuracy"):
        assert there.history[-1][name] == pytest.approx(here.history[-1][name], rel=1e-10), name


@pytest.mark.parametrize(
    ("middle", "spread"),
    [(0, 1), (-3, 1), (-6.5, 1), (-9, 1), (0, 15), (0, 100), (4, 0.5), (-6.5, 0.2), (0, 0.01), (0, 5000)],
)
def test_the_area_is_within_its_stated_error(middle: float, spread: float) -> None:
    rng = np.random.default_rng(3)
    z = middle + spread * rng.normal(size=20_000)
    y = rng.random(len(z)) < np.maximum(1 / (1 + np.exp(-middle - 1.5 * (z - middle) / spread)), 1e-3)
    f, right = AUROC(), roc_auc_score(y, z)
    sums = f.sums(torch.from_numpy(z), torch.from_numpy(1 * y))
    assert abs(f.figure(sums)[0] - right) <= f.within(sums)
    assert abs(f.figure(sums)[0] - right) < 5e-3 or spread in (0.01, 5000)
    n, p = sums.reshape(2, -1).numpy()
    most = sum(n[k] * p[k + 1 :].sum() + n[k] * p[k] for k in range(len(n))) / n.sum() / p.sum()  # ties all won
    assert f.within(sums) == pytest.approx(most - f.figure(sums)[0], rel=1e-9)


def test_the_area_is_that_of_rounded_logits_and_its_error_is_delongs() -> None:
    rng = np.random.default_rng(1)
    y = torch.from_numpy(rng.integers(2, size=200))
    z = torch.from_numpy(rng.normal(size=200)) + y
    f = AUROC(bins=100)
    p = np.floor(50 * (1 + np.arcsinh(4 * z.numpy()) / np.arcsinh(4000)))
    assert f(z, y) == pytest.approx(roc_auc_score(y, p), abs=1e-12)
    both = torch.stack([torch.zeros(200), z], 1)
    assert f(both, y) == f(z, y)
    parts = [f.sums(z[:70], y[:70]), f.sums(z[70:], y[70:])]
    area, error = f.figure(parts[0] + parts[1])
    assert area == pytest.approx(f(z, y), abs=1e-12)
    pos, neg = p[y.numpy() == 1], p[y.numpy() == 0]
    wins = (pos[:, None] > neg) + 0.5 * (pos[:, None] == neg)
    delong = math.sqrt(wins.mean(1).var(ddof=1) / len(pos) + wins.mean(0).var(ddof=1) / len(neg))
    assert error == pytest.approx(delong, rel=1e-10)
    assert math.isnan(f(z[y == 1], y[y == 1]))
    with pytest.raises(md.RecipeError, match="AUROC needs two classes"):
        f(torch.zeros(3, 4), y[:3])


@pytest.mark.slow
@pytest.mark.parametrize("lie", [[-1.0] + [0.0] * 99, [0.5] * 2 + [0.0] * 98, [1e9] + [0.0] * 99])
def test_counts_that_test_rows_cannot_have_are_refused(
    lie: list[float], app: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node of 38 test rows that counts 10⁹ would have the figure of all nodes to itself."""
    from medley.deploy.node.rows import NodeRows

    honest = NodeRows.evaluate

    def lies(self: NodeRows, *args: Any) -> Any:
        out = honest(self, *args)
        return {**out, "tests": [{**out["tests"][0], "sums": {"auroc": lie}}]} if self.i == 1 else out

    monkeypatch.setattr(NodeRows, "evaluate", lies)
    text = LOGISTIC.format(run='metrics = { auroc = ["figure_code:auroc", "max"] }')
    with pytest.raises(
        md.WireError, match="client 1's answer to an evaluation: the sums of auroc are impossible for 38 test rows"
    ):
        both(app, text)
    shutil.rmtree(app.parent / "run")
    _, there = both(app, text + '[reply_policy]\nfaulty = "drop"\n')
    assert there.history[-1]["auroc"] > 0.9
    assert "no answer of client 1" in caplog.text


@pytest.mark.parametrize("policy", ["replies = 2", "deadline = 2.0"])
def test_a_site_twenty_times_slower_is_late_on_nodes_as_in_one_process(app: Path, policy: str) -> None:
    """Devices' clock decides which replies are late; FedNorton takes them in the round in which they arrive."""
    text = LOGISTIC.format(run="").replace('"FedAvg"', '"FedNorton"')
    text += f"[devices]\nspeed = [1000.0, 1000.0, 50.0]\n[reply_policy]\n{policy}\n"
    here, there = both(app, text)
    assert [row["late"] for row in there.history[1:]] == [row["late"] for row in here.history[1:]] == [1, 0]
    assert there.x.tolist() == here.x.tolist()
    assert there.history[-1]["seconds"] == here.history[-1]["seconds"]


def test_intervals_of_shares_and_of_means_of_several_sites() -> None:
    """Wilson's interval of 0 of 10 is [0, 0.278]; the error of a mean is that of all rows together."""
    low, high = wilson(0.0, 10)
    assert (low, high) == (0.0, pytest.approx(0.27753, abs=1e-5))
    assert wilson(0.8, 50) == (pytest.approx(0.66963, abs=1e-5), pytest.approx(0.88756, abs=1e-5))
    rows = np.random.default_rng(0).normal(size=60)
    parts = [rows[:10], rows[10:35], rows[35:]]
    given = [(len(r), r.mean(), r.std(ddof=1) / math.sqrt(len(r))) for r in parts]
    assert pooled_error(given) == pytest.approx(rows.std(ddof=1) / math.sqrt(60), rel=1e-12)
