"""The cause of numbers that are not finite is named, and settings that make no sense are refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import medley as md
from medley.federation.run import PreparedRun
from medley.server.options import RunOptions

X = np.random.default_rng(0).normal(size=(8, 3))
Y = np.array([0, 1] * 4)
SOFTMAX, SQUARES = md.problems.Softmax(mu=1e-3), md.problems.LeastSquares(mu=1e-3)
LOGISTIC = md.problems.Logistic(mu=0.01)
RNG = np.random.default_rng(1)


def with_one(value: float) -> np.ndarray:
    out = X.copy()
    out[5, 2] = value
    return out


@pytest.mark.parametrize("method", [md.FedAvg(), md.GradientDescent()], ids=lambda m: m.name)
def test_inputs_whose_square_overflows_are_the_cause(method: Any) -> None:
    fed = md.Federation(SQUARES, clients=[(X, Y * 1.0), (with_one(-1e300), Y * 1.0)])
    said = "client 1, row 5, column 2: the largest input is -1e[+]300, whose square overflows float64"
    with pytest.raises(md.Diverged, match=said) as e:
        md.run(method, fed, 3)
    assert "smaller lr" not in str(e.value)


def test_targets_are_a_cause_too() -> None:
    fed = md.Federation(SQUARES, clients=[(X, Y * 1.0), (X, Y * 1e300)])
    with pytest.raises(md.Diverged, match=r"client 1, row 1: the largest target is 1e\+300.* standardise the targets"):
        md.run(md.FedAvg(), fed, 3)


def test_large_inputs_are_named_beside_the_lr() -> None:
    fed = md.Federation(SQUARES, clients=[(X, Y * 1.0), (with_one(1e5), Y * 1.0)])
    with pytest.raises(md.Diverged, match=r"client 1, row 5, column 2: the largest input is 100000.*smaller lr"):
        md.run(md.FedAvg(), fed, 100)


def heights(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(60, 12, (40, 3)), rng.lognormal(7, 1, 40)


def test_least_squares_is_told_of_its_inputs_and_the_client_by_its_name(tmp_path: Path) -> None:
    clients = {"Bern": heights(0), "Lyon": heights(1)}
    pace = md.scenarios.Pace(lr=0.01)
    fed = md.Federation(md.problems.LeastSquares(intercept=True), clients=clients, pace=pace)
    who, row, column = max(
        ((k, *at) for k, (X, _) in clients.items() for at in np.ndindex(X.shape)), key=lambda p: clients[p[0]][0][p[1:]]
    )
    said = rf"client {who!r}, row {row}, column {column}: the largest input is .*: standardise the inputs, or try"
    with pytest.raises(md.Diverged, match=said):
        md.run(md.FedAvg(), fed, 10, checkpoint=tmp_path / "run")
    assert f"client {who!r}" in md.Result.load(tmp_path / "run").status.message
    scaled = {name: ((X - 60) / 12, y) for name, (X, y) in clients.items()}
    assert md.run(md.FedAvg(), md.Federation(md.problems.LeastSquares(intercept=True), clients=scaled, pace=pace), 10)


def test_a_loss_that_is_nan_before_any_step_is_not_laid_to_the_lr() -> None:
    loss = lambda out, y: torch.nn.functional.cross_entropy(out, y) * float("nan")
    fed = md.Federation(md.problems.Network(torch.nn.Linear(3, 2), loss=loss), clients=[(X, Y)])
    with pytest.raises(md.Diverged) as e:
        md.run(md.FedAvg(), fed, 3)
    advice = "look at the loss, the rows, and the weights that the run starts from"
    assert str(e.value) == f"the loss is nan at the start, before any step; {advice}"
    assert e.value.result.status.outcome == "diverged"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("engine", ["seq", "stacked", "fused"])
def test_a_client_that_sends_what_is_not_finite_has_its_name(engine: Any, workers: int) -> None:
    pace = md.scenarios.Pace(lr=1e200, epochs=3)
    fed = md.Federation(SQUARES, clients={"Bern": (X, Y * 1.0), "Lyon": (X, Y * 1.0)}, pace=pace)
    transport = md.transports.Processes(workers) if workers > 1 else md.transports.InProcess()
    with pytest.raises(md.Diverged, match=r"^client 'Bern' sent numbers that are not finite .*; try a smaller lr"):
        md.run(md.FedAvg(), fed, 3, engine=engine, transport=transport)


def test_a_host_elsewhere_has_the_names_and_a_run_inside_a_run_its_own() -> None:
    pace = md.scenarios.Pace(lr=1e200, epochs=3)
    named = md.Federation(SQUARES, clients={"Bern": (X, Y * 1.0)}, pace=pace)
    prepared = PreparedRun.of(md.FedAvg(), named, RunOptions(rounds=1))
    assert prepared.host(1).names == ("Bern",)
    nameless = md.Federation(SQUARES, clients=[(X, Y * 1.0)], pace=pace)
    errors = []

    def inside(_: Any) -> None:
        with pytest.raises(md.Diverged) as e:
            md.run(md.FedAvg(), nameless, 3)
        errors.append(str(e.value))

    md.run(md.FedAvg(), md.Federation(SQUARES, clients={"Bern": (X, Y * 1.0)}), 1, on_round=inside)
    assert {e.partition(" sent")[0] for e in errors} == {"client 0"}


def test_a_budget_that_makes_no_sense_has_the_clients_name() -> None:
    pace = md.scenarios.Pace(lr=lambda t: [0.1, -0.1])  # type: ignore[arg-type,return-value]
    fed = md.Federation(SOFTMAX, clients={"Bern": (X, Y), "Lyon": (X, Y)}, pace=pace)
    with pytest.raises(md.RecipeError, match=r"gives -0\.1 to client 'Lyon' in round 1") as e:
        md.run(md.FedAvg(), fed, 1)
    assert e.value.result is not None
    assert "client 'Lyon'" in e.value.result.status.message


def test_inputs_of_usual_size_leave_the_lr() -> None:
    fed = md.Federation(SQUARES, clients=[(X, Y * 1.0)], pace=md.scenarios.Pace(lr=1e3))
    with pytest.raises(md.Diverged, match=r"the run diverges; try a smaller lr$"):
        md.run(md.FedAvg(), fed, 100)


@pytest.mark.parametrize("what", ["input", "target"])
def test_numbers_that_float32_does_not_hold(what: str) -> None:
    rows = (with_one(1e39), Y * 1.0) if what == "input" else (X, np.where(np.arange(8) == 5, 1e39, 0.0))
    fed = md.Federation(SQUARES, clients=[(X, Y * 1.0), rows])
    with pytest.raises(md.BadData, match=f"client 1, row 5.*: the {what}.* is too large for float32") as e:
        md.run(md.FedAvg(), fed, 1, dtype="float32")
    assert e.value.client == 1
    assert md.run(md.FedAvg(), md.Federation(SOFTMAX, clients=[(X * 1e30, Y)]), 0, dtype="float32").status.ok


@pytest.mark.parametrize("weight", [1e-320, 1e300])
def test_weights_of_rows_without_all_digits(weight: float) -> None:
    odd = np.ones(8)
    odd[3] = weight
    fed = md.Federation(SOFTMAX, clients=[(X, Y, np.ones(8)), (X, Y, odd)])
    with pytest.raises(md.BadData, match=r"client 1, row 3: its weight is .*multiply all rows' weights"):
        md.run(md.FedAvg(), fed, 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clients": [(X, Y)], "test": (X[:0], Y[:0])}, "there are no rows; leave test= out"),
        ({"clients": [(X[:, :0], Y)]}, "client 0: X is .8, 0., rows without columns"),
    ],
)
def test_nothing_to_learn_from(given: dict[str, Any], words: str) -> None:
    with pytest.raises(md.BadData, match=words):
        md.Federation(SOFTMAX, **given)


def test_a_data_set_without_columns() -> None:
    with pytest.raises(md.BadData, match="rows without columns"):
        md.datasets.Dataset(torch.zeros(4, 0), torch.zeros(4))


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        ({"schedule": lambda t: "0.1"}, r"Pace\(schedule=...\) gives '0.1' in round 1: it must be a finite number"),
        ({"schedule": lambda t: np.ones(2)}, "must be a finite number"),
        ({"schedule": lambda t: 1 / (t - 1)}, "a function that fails in round 1: ZeroDivisionError"),
        ({"lr": lambda t, u: 0.1}, r"Pace\(lr=...\) is a function that fails in round 1: TypeError"),
        ({"steps": lambda t: None if t else 1 / 0, "epochs": lambda t: "2"}, r"Pace\(epochs=...\) gives '2'"),
    ],
)
def test_schedules_that_make_no_sense(pace: dict[str, Any], words: str) -> None:
    fed = md.Federation(SOFTMAX, clients=[(X, Y)], pace=md.scenarios.Pace(**pace))
    with pytest.raises(md.RecipeError, match=words):
        md.run(md.FedAvg(), fed, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "meta"}, "torch finds no such device"),
        ({"init": torch.zeros(6, device="meta")}, "init=.*has no values, on the device .meta"),
        ({"init": torch.zeros(6, dtype=torch.complex64)}, "init=.*is complex"),
    ],
)
def test_options_without_numbers(options: dict[str, Any], words: str) -> None:
    with pytest.raises(md.RecipeError, match=words):
        md.run(md.FedAvg(), md.Federation(SOFTMAX, clients=[(X, Y)]), 1, **options)


def hospitals(rows: int = 60) -> md.datasets.Dataset:
    names = np.array(["Bern"] * (rows - 1) + ["Turku"])
    y = np.where(np.arange(rows) % 2, "alive", "died")
    return md.datasets.Dataset(RNG.normal(size=(rows, 2)), y, keys={"hospital": names}, name="patients")


def test_a_data_set_with_a_key_is_pointed_to_its_natural_clients() -> None:
    with pytest.raises(md.RecipeError, match=r"partitions.ByKey\('hospital'\) makes each hospital a client"):
        md.Federation(LOGISTIC, data=hospitals())


def test_a_misspelt_label_is_named_with_all_labels_and_their_rows() -> None:
    y = np.array(["alive"] * 4 + ["died"] * 3 + ["Died "])
    data = md.datasets.Dataset(X, y, name="patients")
    said = r"patients has 3 labels: 'Died' \(1 rows\), 'alive' \(4 rows\), 'died' \(3 rows\)"
    with pytest.raises(md.BadData, match=said):
        md.Federation(LOGISTIC, data=data, partition=md.partitions.IID(2))
    md.Federation(SOFTMAX, data=data, partition=md.partitions.IID(2))


def numbers_of_classes(labels: tuple[str, ...]) -> md.datasets.Dataset:
    return md.datasets.Dataset(X, torch.arange(8) % len(labels), classes=len(labels), name="costs", labels=labels)


def own_huber(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.huber_loss(z[:, 0], y.float())


def ordinal(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss of pairs of rows, which reads the order of classes alone."""
    return F.softplus(-(z[:, 0][:, None] - z[:, 0]) * (y[:, None] - y).sign()).mean()


@pytest.mark.parametrize("loss", ["mse", nn.L1Loss(), nn.HuberLoss(), F.smooth_l1_loss, own_huber])
def test_a_loss_of_values_is_not_fitted_to_numbers_of_classes(loss: Any) -> None:
    """Costs of 100, 150 and 200 would be fitted as 0, 1 and 2."""
    network, deal = md.problems.Network(nn.Linear(3, 1), loss=loss), md.partitions.IID(2)
    text = r"^Network\(loss=.*\) fits values, .* of costs are the classes '100', '150', '200'; .*regression=True$"
    with pytest.raises(md.BadData, match=text):
        md.Federation(network, data=numbers_of_classes(("100", "150", "200")), partition=deal)
    md.Federation(network, data=numbers_of_classes(("0", "1.0", "2")), partition=deal)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), lambda z, y: F.cross_entropy(z, y.long()), nn.MultiMarginLoss(), ordinal]
)
def test_a_loss_of_classes_takes_classes_of_any_name(loss: Any) -> None:
    network, names = md.problems.Network(nn.Linear(3, 3), loss=loss), ("100", "150", "200")
    md.Federation(network, data=numbers_of_classes(names), partition=md.partitions.IID(2)).draw(0)


def test_two_named_classes_are_probabilities_and_three_are_none() -> None:
    network = md.problems.Network(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), loss=nn.BCEWithLogitsLoss())
    md.Federation(network, data=numbers_of_classes(("no", "yes")), partition=md.partitions.IID(2)).draw(0)
    three = md.Federation(network, data=numbers_of_classes(("a", "b", "c")), partition=md.partitions.IID(2))
    with pytest.raises(md.BadData, match=r"BCEWithLogitsLoss\) needs targets from 0 to 1, but this one is 2"):
        three.draw(0)


def test_text_labels_of_pairs_reach_the_problem_that_they_fit() -> None:
    text = np.where(Y > 0, "yes", "no")
    binary = md.problems.Network(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), loss=nn.BCEWithLogitsLoss())
    fed = md.Federation(binary, clients=[(X, text), (X, text, X, text)])
    assert set(md.run(md.FedAvg(), fed, 1, progress=False).predict(X)) <= {"no", "yes"}
    assert md.Federation(md.problems.Logistic(), clients=[(X, np.ones(len(X), int))], classes=2).data.classes == 2


def test_a_third_text_is_named_with_its_client() -> None:
    text = np.where(Y > 0, "yes", "no")
    third = text.astype(object)
    third[5] = "Yes"
    said = r"Logistic has two classes, and own data has 3 labels: 'Yes' \(1 rows\), 'no' \(8 rows\), .*problems.Softmax"
    with pytest.raises(md.BadData, match=f"^client 'Lyon', row 5, column 'y': {said}"):
        md.Federation(LOGISTIC, clients={"Bern": (X, text), "Lyon": (X, third)})
    with pytest.raises(md.BadData, match=f"^Logistic .*'Yes' {chr(92)}(2 rows"):
        md.Federation(LOGISTIC, clients=[(X, third), (X, third)])


def test_a_client_that_lost_its_training_rows_is_told(caplog: pytest.LogCaptureFixture) -> None:
    lost = next(d for s in range(50) if "Turku" in (d := hospitals().split(0.5, seed=s)).test_keys["hospital"])
    md.Federation(LOGISTIC, clients=lost)
    said = "patients: Turku of 'hospital' has test rows but no training rows, and is no client"
    assert [r.getMessage().partition(";")[0] for r in caplog.records] == [said]
    caplog.clear()
    for s in range(10):
        kept = hospitals().split(0.5, seed=s, by="hospital")
        assert md.Federation(LOGISTIC, clients=kept).client_names == ("Bern", "Turku")
        assert len(kept.X_test) == 30
    assert not caplog.records


def test_a_run_of_unscaled_rows_that_ends_far_up_is_told_to_standardise() -> None:
    rows = X * np.array([1.0, 1.0, 3000.0])
    fed = md.Federation(LOGISTIC, clients=[(rows, Y)] * 2, pace=md.scenarios.Pace(lr=1.0, epochs=3, batch=2))
    with pytest.raises(
        md.Diverged, match=r"began at .*largest input is .* standardise the inputs, or try a smaller lr"
    ):
        md.run(md.FedAvg(), fed, 20, progress=False)
