"""A difference that all seeds have has no interval; test rows bound the others from below; figures have true names."""

import math
import re

import numpy as np
import pytest
import torch
from scipy import stats

import medley as md
from medley.report import paired
from medley.report.numbers import Paired, Stat
from medley.report.table import caption, latex, markdown, named, rows, told_apart
from medley.report.text import difference
from medley.storage.result import Result, Status
from medley.wire.ledger import Ledger
from support.pairs import crossed


def made(method, seed, figure, metric="accuracy", test_rows=100, **settings):
    history = [{"round": r, "loss": 1.0, metric: figure, "wall": 0.1, "seconds": 0.0} for r in (0, 5)]
    known = {"test_rows": test_rows, "evaluate_on": "test", "clients": 40, "metrics": {"steps": "higher"}} | settings
    return Result(method, seed, torch.zeros(1), history, {}, Ledger(), Status("finished"), known)


def board(base, other, metric="accuracy", **settings):
    runs = [made("A", k, v, metric, **settings) for k, v in enumerate(base)]
    return runs + [made("B", k, v, metric, **settings) for k, v in enumerate(other)]


EQUAL = {
    "two seeds": board([0.60, 0.70], [0.62, 0.72]),
    "five seeds": board([0.5, 0.6, 0.7, 0.8, 0.9], [0.51, 0.61, 0.71, 0.81, 0.91]),
    "worse": board([0.60, 0.70], [0.58, 0.68]),
    "rounding apart": board([0.6538461538461539, 0.5], [0.6153846153846154, 0.46153846153846151]),
    "test rows unknown": board([0.6, 0.7], [0.7, 0.8], test_rows=0),
    "a loss": board([1.0, 2.0], [1.5, 2.5], "test_loss"),
    "a metric in steps": board([0.25, 0.5], [0.5, 0.75], "steps"),
    "one row of a thousand": board([0.5, 0.6], [0.501, 0.601], test_rows=1000),
    "three seeds of a half": board([0.5, 0.5, 0.5], [0.75, 0.75, 0.75]),
}


@pytest.mark.parametrize("case", EQUAL)
def test_an_equal_difference_is_not_estimable_anywhere(case):
    results = EQUAL[case]
    metric = next(m for m in ("steps", "accuracy", "test_loss") if m in results[0].history[-1])
    (pair,) = paired(results, metric=metric)
    spread = np.std(
        np.array([r.history[-1][metric] for r in results[len(results) // 2 :]])
        - [r.history[-1][metric] for r in results[: len(results) // 2]]
    )
    assert spread < 1e-12 < abs(pair.diff.mean)
    assert pair.diff.equal
    assert math.isnan(pair.half)
    assert not pair.clear
    assert "± ?" in difference(pair)
    assert told_apart(results, metric) == {"A", "B"}
    if metric == "steps":
        return
    assert math.isnan(rows(results)[1]["difference_half"])
    for text in (markdown(results), latex(results).replace(r"$\\pm$", "±"), caption(results)):
        assert "no interval can be estimated" in " ".join(text.split())
    page = " ".join(re.sub(r"<[^>]+>", " ", md.report.page(results)).split())
    assert "do not tell the methods apart" in page
    assert "stands out" not in page


@pytest.mark.parametrize("n", [50, 100, 1000, 5000, 10**6])
@pytest.mark.parametrize("d", [0.02, -0.1, 0.5])
def test_the_least_is_mcnemars_with_all_rows_on_one_side(n, d):
    pair = Paired("B", "A", "accuracy", Stat.of([d - 1e-4, d + 1e-4]), 2, n)
    changed = round(n * abs(pair.diff.mean))
    # Each row's difference is 1 or 0: n |d| of them are 1. Two seeds halve the variance of the mean.
    by_row = np.concatenate([np.ones(changed), np.zeros(n - changed)])
    half = stats.norm.ppf(0.975) * by_row.std() / math.sqrt(2 * n)
    assert pair.least == pytest.approx(half, rel=1e-6, abs=1e-9)
    assert pair.half == max(pair.least, pair.diff.half)
    assert pair.clear == (abs(d) > pair.half)


def test_few_test_rows_widen_an_interval_that_the_seeds_make_narrow():
    few, many = (board([0.60, 0.70, 0.65], [0.6399, 0.7401, 0.69], test_rows=n) for n in (25, 10**6))
    (narrow,), (wide,) = paired(many), paired(few)
    assert narrow.clear
    assert not wide.clear
    assert told_apart(many, "accuracy") == {"B"}
    assert told_apart(few, "accuracy") == {"A", "B"}
    assert "so few test rows" in caption(few)
    assert "so few test rows" not in caption(many)


def test_seeds_that_are_all_equal_to_the_base_say_so():
    results = board([0.5, 0.5], [0.5, 0.5])
    (pair,) = paired(results)
    assert difference(pair) == "0.0 pp"
    assert "coincide" in md.report.page(results)
    assert "no interval" not in caption(results)


NAMES = [
    ("client_accuracy_worst", {"clients": 3}, "worst client"),
    ("client_accuracy_worst", {"clients": 14}, "worst client"),
    ("client_accuracy_worst", {"clients": 15}, "worst tenth of clients"),
    ("client_accuracy_worst", {"clients": 200}, "worst tenth of clients"),
    ("client_accuracy_worst_estimate", {"clients": 3}, "worst client, estimate"),
    ("personal_accuracy_worst", {"clients": 3}, "worst client's model"),
    ("client_test_loss_worst", {"clients": 3}, "test loss, worst client"),
    ("client_test_loss_worst", {"clients": 30, "evaluate_on": "validation"}, "validation loss, worst tenth of clients"),
    ("test_loss", {"evaluate_on": "validation"}, "validation loss"),
    ("test_loss", {}, "test loss"),
]


@pytest.mark.parametrize(("metric", "settings", "name"), NAMES)
def test_a_figure_has_the_name_of_its_rows_and_clients(metric, settings, name):
    assert named(metric, [made("A", 0, 0.5, **settings)]) == name


@pytest.mark.parametrize("held_out", ["test", "validation"])
def test_a_card_names_the_rows_of_its_figures(held_out, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = (X[:, 0] > 0).astype(int)
    fed = md.Federation(
        md.problems.Logistic(mu=0.1),
        clients=[(X[:30], y[:30]), (X[30:60], y[30:60])],
        test=(X[60:], y[60:]),
        validation=0.25,
    )
    how = {"best": "accuracy"} if held_out == "validation" else {}
    metrics = {"half": (lambda z, y: 0.5, "max")}
    run = md.run(md.FedAvg(), fed, 3, evaluate_on=held_out, metrics=metrics, progress=False, **how)
    text = (run.save_pretrained(tmp_path) / "README.md").read_text(encoding="utf-8")
    other = {"test": "validation", "validation": "test"}[held_out]
    measured = ("accuracy", run.evaluation["accuracy"]), ("loss", run.evaluation["test_loss"]), ("half", 0.5)
    for name, value in measured:
        assert f"| {name} on {held_out} rows | {value:.4g} |" in text
    assert f"on {other} rows" not in text
    assert f"| loss on training rows | {run.evaluation['loss']:.4g} |" in text


FAMILIES = [md.problems.Logistic, md.problems.LeastSquares, md.problems.Softmax]


@pytest.mark.parametrize(("family", "kind"), crossed(FAMILIES, [torch.float32, torch.float64, torch.int64]))
def test_a_linear_models_module_takes_rows_of_any_dtype(family, kind, tmp_path):
    X = torch.tensor(np.random.default_rng(0).integers(-3, 4, (60, 3)), dtype=kind)
    y = (X[:, 0] > 0).long() if family.classification else X[:, 0].double()
    fed = md.Federation(family(mu=0.1, intercept=True), clients=[(X[:30], y[:30]), (X[30:], y[30:])])
    result = md.run(md.FedAvg(), fed, 2, progress=False)
    again = Result.load(result.save(tmp_path))
    for model in (result.model, again.model, torch.export.export(result.model, (X,)).module()):
        assert torch.equal(model(X), result.outputs(X))
