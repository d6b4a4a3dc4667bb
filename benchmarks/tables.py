"""Four kinds of models on the same public tables: a GLM, trees, a network and Fed3R, each beside a run on all rows.

    export MEDLEY_DATA=...
    python benchmarks/tables.py            # makes what tables.json lacks, a run at a time, and prints the table

A table has natural sites where it has any. The GLM is fitted by SHED.fast until its gradient is 1e-6; the trees are
`Boost`'s, 100 of 4 levels at a rate of .1; the network is an MLP of 32 units under FedNorton, whose learning rate and
number of rounds, at most 100 of one epoch, are chosen by validation rows; Fed3R has 500 random Fourier features, their
scale chosen by the error of its own cross-validation. Beside each is the same on one client that has all rows. Figures
are of test rows: the share of wrong classes, or the mean square of errors over the targets' variance.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import medley as md

RESULTS = Path(__file__).with_suffix(".json")
LRS = (0.03, 0.1, 0.3)
SCALES = (0.3, 0.6, 1.0, 2.0)
ROUNDS = 100

Data = tuple[Any, Any]
"""The data set, and who has which rows."""


def heart() -> Data:
    return md.datasets.heart_disease(), md.partitions.ByKey("centre")


def a9a() -> Data:
    data = md.datasets.a9a().take(8000, 4000)
    ages = data.X[:, :5].argmax(1).numpy()
    return dataclasses.replace(data, keys={"age": ages}), md.partitions.ByKey("age")


def news() -> Data:
    data = md.datasets.online_news().split(0.2).standardise()
    assert data.y_test is not None
    middle = data.y.median()
    y, y_test = ((v > middle).long() for v in (data.y, data.y_test))
    return dataclasses.replace(data, y=y, y_test=y_test, classes=2), md.partitions.ByKey("weekday")


def years() -> Data:
    data = md.datasets.msd_years().split(0.2, by="year").standardise()
    assert data.y_test is not None
    mean, deviation = data.y.mean(), data.y.std()
    y, y_test = ((v - mean) / deviation for v in (data.y, data.y_test))
    return dataclasses.replace(data, y=y, y_test=y_test), md.partitions.ByKey("year")


def breast() -> Data:
    return md.datasets.breast_cancer().standardise(), md.partitions.Dirichlet(5, 0.5, minimum=8)


def digits() -> Data:
    return md.datasets.digits().flatten(), md.partitions.Dirichlet(10, 0.1, minimum=5)


TABLES: dict[str, tuple[str, Callable[[], Data]]] = {
    "heart": ("heart disease, 4 hospitals", heart),
    "a9a": ("a9a, incomes, 5 age brackets", a9a),
    "news": ("online news above the median, 7 weekdays", news),
    "years": ("years of songs, a site for each year", years),
    "breast": ("breast cancer, 5 sites, Dirichlet 0.5", breast),
    "digits": ("digits, 10 sites, Dirichlet 0.1", digits),
}


def federation(data: Any, partition: Any, problem: Any, **how: Any) -> md.Federation:
    return md.Federation(problem, data=data, partition=partition, validation=0.15, **how)


def wrong(run: md.Result) -> float:
    """The share of wrong classes, or the mean square of the errors of standardised targets."""
    last = run.history[-1]
    return 1 - last["accuracy"] if "accuracy" in last else last["test_loss"]


def run(method: Any, fed: md.Federation, rounds: int, **options: Any) -> md.Result:
    return md.run(method, fed, rounds, eval_every=rounds, progress=False, **options)


def glm(data: Any, partition: Any) -> tuple[float, md.Result]:
    of = md.problems.LeastSquares if not data.classes else md.problems.Logistic
    family = of if data.classes in (None, 2) else md.problems.Softmax
    result = run(
        md.SHED.fast(), federation(data, partition, family(mu=1e-4, intercept=True)), ROUNDS, target={"grad_norm": 1e-6}
    )
    return wrong(result) * (1 if data.classes else 2), result  # ½ of the square


def trees(data: Any, partition: Any) -> tuple[float, md.Result]:
    loss = "squared" if not data.classes else "logistic" if data.classes == 2 else "softmax"
    family = md.problems.Trees(loss, trees=100, depth=4)  # type: ignore[arg-type]
    result = run(md.Boost(server_lr=0.1), federation(data, partition, family), 100)
    return wrong(result) * (1 if data.classes else 2), result


def columns(data: Any) -> Any:
    """The data, for a network of one output: targets in a column."""
    if data.classes:
        return data
    names = ("y", "y_test", "y_validation")
    return dataclasses.replace(data, **{n: getattr(data, n)[:, None] for n in names if getattr(data, n) is not None})


def network(data: Any, partition: Any) -> tuple[float, md.Result]:
    method: Any = md.FedAvg() if partition == md.partitions.IID(1) else md.FedNorton()
    data = columns(data)
    problem = md.problems.Network(
        md.models.mlp(data.X.shape[1], data.classes or 1, (32,)), loss="cross_entropy" if data.classes else "mse"
    )

    def at(lr: float, rounds: int, **options: Any) -> md.Result:
        fed = federation(data, partition, problem, pace=md.scenarios.Pace(lr=lr, batch=16))
        return md.run(method, fed, rounds, progress=False, throw=False, **options)

    figure = "accuracy" if data.classes else "test_loss"
    tried = dict[tuple[float, int], float]()
    for lr in LRS:
        rows = at(lr, ROUNDS, evaluate_on="validation", eval_every=5).history[1:]
        tried |= {(lr, row["round"]): -row[figure] if data.classes else row[figure] for row in rows}
    lr, rounds = min(tried, key=lambda k: tried[k] if math.isfinite(tried[k]) else math.inf)
    result = at(lr, rounds, eval_every=rounds)
    return wrong(result), result


def fed3r(data: Any, partition: Any) -> tuple[float, md.Result]:
    data = columns(data)

    def at(scale: float) -> md.Result:
        problem = md.problems.Network(
            md.models.fourier(data.X.shape[1], data.classes or 1, width=500, scale=scale),
            loss="cross_entropy" if data.classes else "mse",
        )
        return run(md.Fed3R(), federation(data, partition, problem), 1)

    result = min((at(s) for s in SCALES), key=lambda r: r.history[-1]["validation_error"])
    return wrong(result), result


MODELS = {"GLM": glm, "trees": trees, "network": network, "Fed3R": fed3r}


def make(done: dict[str, Any]) -> None:
    """Add the runs that are lacking, and save after each."""
    for name, (_, load) in TABLES.items():
        data, partition = load()
        for model, fit in MODELS.items():
            for place, cut in (("sites", partition), ("one place", md.partitions.IID(1))):
                key = f"{name}, {model}, {place}"
                if key not in done:
                    error, result = fit(data, cut)
                    last = result.history[-1]
                    done[key] = {
                        "error": error,
                        "rounds": last["round"],
                        "megabytes": (result.ledger.up + result.ledger.down) / 1e6,
                    }
                    RESULTS.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
                    print(key, f"{error:.4f}", flush=True)


def table(done: dict[str, Any]) -> str:
    """The page's table: the error at sites, and in brackets that of all rows in one place; and megabytes."""
    lines = [f"| table | {' | '.join(MODELS)} |", "|---" * (1 + len(MODELS)) + "|"]
    for name, (title, _) in TABLES.items():
        cells = []
        for model in MODELS:
            sites, place = (done.get(f"{name}, {model}, {where}") for where in ("sites", "one place"))
            both = sites and place
            cells.append(f"{sites['error']:.3f} ({place['error']:.3f}), {sites['megabytes']:,.3g} MB" if both else "")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    make(results)
    print(table(results))
