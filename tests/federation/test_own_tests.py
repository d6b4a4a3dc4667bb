"""Clients with test rows of their own: figures over clients, and the table of clients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.contract.errors import BadData

F64 = torch.float64


def opposite_sites(n: int = 40) -> list[tuple[torch.Tensor, ...]]:
    """Two sites whose labels follow opposite rules: y = [x > 0] at site 0, y = [x < 0] at site 1."""
    g = torch.Generator().manual_seed(0)
    out = []
    for sign in (1, -1):
        X, X_test = torch.randn(n, 1, generator=g, dtype=F64), torch.randn(n, 1, generator=g, dtype=F64)
        out.append((X, (sign * X[:, 0] > 0).long(), X_test, (sign * X_test[:, 0] > 0).long()))
    return out


def test_a_site_with_the_opposite_rule_has_accuracy_zero() -> None:
    fed = md.Federation(md.problems.Softmax(), clients=opposite_sites())
    # x = W [2, 1] and b [2]: the model of site 0.
    x = torch.tensor([-5.0, 5.0], dtype=F64)
    r = md.run(md.FedAvg(), fed, 0, init=torch.cat([x, torch.zeros(fed.draw(0).problem.d - 2, dtype=F64)]))
    row = r.history[0]
    assert row["client_accuracy_worst"] == 0.0
    assert row["client_accuracy_mean"] == row["accuracy"] == 0.5
    assert row["client_accuracy_spread"] == 0.5
    assert not any(name.endswith("estimate") for name in row)
    assert [(c["client"], c["rows"], c["test_rows"], c["accuracy"]) for c in r.clients] == [
        (0, 40, 40, 1.0),
        (1, 40, 40, 0.0),
    ]
    X, y, X_test, y_test = opposite_sites()[1]
    z = torch.cat([-5 * X_test, 5 * X_test], 1)
    assert r.clients[1]["test_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(z, y_test)), rel=1e-12)
    z = torch.cat([-5 * X, 5 * X], 1)
    assert r.clients[1]["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(z, y)), rel=1e-12)


def test_the_same_sites_with_shared_test_rows_have_an_estimate_only() -> None:
    sites = opposite_sites()
    shared = tuple(torch.cat([site[k] for site in sites]) for k in (2, 3))
    fed = md.Federation(md.problems.Softmax(), clients=[site[:2] for site in sites], test=shared)
    r = md.run(md.FedAvg(), fed, 0)
    assert {"client_accuracy_mean_estimate", "client_accuracy_worst_estimate"} <= r.history[0].keys()
    assert "client_accuracy_worst" not in r.history[0]
    assert r.clients == []
    told = md.run(md.FedAvg(), fed, 1, clients_every=1).clients
    assert [(c["round"], c["client"]) for c in told] == [(1, 0), (1, 1)]
    assert told[0].keys() == {"round", "client", "rows", "loss", "took_part"}


@pytest.mark.shapes
def test_tables_come_every_few_rounds_and_survive_a_resume_and_a_folder(tmp_path: Path) -> None:
    fed = md.Federation(md.problems.Softmax(), clients=opposite_sites())
    whole = md.run(md.FedAvg(), fed, 5, clients_every=2)
    assert [c["round"] for c in whole.clients] == [2, 2, 4, 4, 5, 5]

    def stop(row: md.Row) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    first = md.run(md.FedAvg(), fed, 5, clients_every=2, checkpoint=tmp_path, on_round=stop)
    assert [c["round"] for c in first.clients] == [2, 2, 3, 3]
    again = md.run(md.FedAvg(), fed, 5, clients_every=2, resume=tmp_path)
    assert [c for c in again.clients if c["round"] != 3] == whole.clients
    assert md.Result.load(tmp_path).clients == again.clients


@pytest.mark.shapes
def test_metrics_are_of_each_clients_rows_and_nan_where_they_have_no_meaning() -> None:
    sites = opposite_sites()
    one = sites[1][3] == 1
    sites[1] = (*sites[1][:2], sites[1][2][one], sites[1][3][one])

    def recall_of_zero(z: torch.Tensor, y: torch.Tensor) -> float:
        if not bool((y == 0).any()):
            raise ValueError("no row of class 0")
        return float((z.argmax(1)[y == 0] == 0).double().mean())

    r = md.run(md.FedAvg(), md.Federation(md.problems.Softmax(), clients=sites), 1, metrics={"recall": recall_of_zero})
    assert 0 <= r.clients[0]["recall"] <= 1
    assert math.isnan(r.clients[1]["recall"])


def test_a_metric_that_raises_is_named_with_its_round() -> None:
    calls = []

    def picky(z: torch.Tensor, y: torch.Tensor) -> float:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("nothing there")
        return 0.0

    sites = [site[:2] for site in opposite_sites()]
    fed = md.Federation(md.problems.Softmax(), clients=sites, test=sites[0])
    with pytest.raises(md.RecipeError, match=r"after round 2: metrics\['picky'\] raised ZeroDivisionError: nothing"):
        md.run(md.FedAvg(), fed, 5, metrics={"picky": picky})
    with pytest.raises(md.RecipeError, match=r"after round 0: metrics\['text'\] raised ValueError"):
        md.run(md.FedAvg(), fed, 5, metrics={"text": lambda z, y: "high"})


@pytest.mark.shapes
def test_without_classes_fairness_is_of_the_test_loss() -> None:
    X = torch.ones(2, 1, dtype=F64)
    clients = [(X, X[:, 0] * k, X, X[:, 0] * k) for k in (0.0, 1.0, 3.0)]
    fed = md.Federation(md.problems.LeastSquares(), clients=clients)
    row = md.run(md.FedAvg(), fed, 0, init=torch.zeros(fed.draw(0).problem.d, dtype=F64)).history[0]
    losses = [0.0, 0.5, 4.5]
    assert row["client_test_loss_mean"] == pytest.approx(np.mean(losses))
    assert row["client_test_loss_worst"] == 4.5
    assert row["client_test_loss_spread"] == pytest.approx(np.std(losses))


def digits() -> md.datasets.Dataset:
    data = md.datasets.digits()
    user = np.arange(len(data.X)) * 7 % 5
    return md.datasets.Dataset(data.X, data.y, classes=10, keys={"user": user}, name="by user").split(0.25)


def test_natural_keys_and_the_law_of_the_partition_deal_test_rows() -> None:
    data = digits()
    natural = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.ByKey("user"))
    tests = natural.whole(0)[0].tests
    assert tests is not None
    assert [sorted({*data.test_keys["user"][rows].tolist()}) for rows in tests] == [[0], [1], [2], [3], [4]]
    r = md.run(md.FedAvg(), natural, 1)
    assert sum(c["test_rows"] for c in r.clients) == len(data.y_test)
    assert r.history[-1]["accuracy"] == pytest.approx(
        sum(c["accuracy"] * c["test_rows"] for c in r.clients) / len(data.y_test), rel=1e-12
    )
    shared = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.ByKey("user"), own_test=False)
    assert md.run(md.FedAvg(), shared, 1).clients == []
    skewed = md.partitions.Dirichlet(10, 0.1)
    by_law = md.Federation(md.problems.Softmax(), data=data, partition=skewed, own_test=True).whole(3)[0]
    assert by_law.tests is not None
    assert sorted(np.concatenate(by_law.tests).tolist()) == list(range(len(data.y_test)))
    y, y_test = data.y.numpy(), data.y_test.numpy()
    for c in range(10):
        held = np.array([np.sum(y[rows] == c) for rows in by_law.parts]) / np.sum(y == c) * np.sum(y_test == c)
        got = np.array([np.sum(y_test[rows] == c) for rows in by_law.tests])
        assert np.abs(got - held).max() < 1
    assert (
        "client_accuracy_worst_estimate"
        in md.run(md.FedAvg(), md.Federation(md.problems.Softmax(), data=data, partition=skewed), 1).history[-1]
    )


def test_clients_own_rows_in_a_stream_and_for_validation() -> None:
    data = digits()
    clients = []
    for k in range(3):
        mine, its = torch.arange(len(data.y)) % 3 == k, torch.arange(len(data.y_test)) % 3 == k
        clients.append((data.X[mine], data.y[mine], data.X_test[its], data.y_test[its]))
    fed = md.Federation(md.problems.Softmax(), clients=clients, stream=md.tasks.Split(2, "class"), classes=10)
    r = md.run(md.FineTune(), fed, 2, clients_every=2)
    assert [c["round"] for c in r.clients] == [2] * 3 + [4] * 3
    both = [sum(c["test_rows"] for c in r.clients if c["round"] == t) for t in (2, 4)]
    assert sum(both) == len(data.y_test)
    assert r.history[-1]["accuracy"] == pytest.approx(
        sum(c["accuracy"] * c["test_rows"] for c in r.clients if c["round"] == 4) / both[1], rel=1e-12
    )
    held = md.Federation(md.problems.Softmax(), clients=clients, validation=0.2)
    r = md.run(md.FedAvg(), held, 1, evaluate_on="validation")
    assert [c["test_rows"] for c in r.clients] == [int(0.2 * len(y)) for _, y, _, _ in clients]


def test_slips_with_own_test_rows_name_the_client() -> None:
    X, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    make = lambda *clients, **more: md.Federation(md.problems.Softmax(), clients=clients, **more)
    assert make((X, y, X, y), (X, y), (X, y, None, None)).draw(0).tested
    with pytest.raises(md.BadData, match=r"client 1, the test rows: X is \[4, 2\] and y is \[3\]"):
        make((X, y, X, y), (X, y, X, y[:3]))
    with pytest.raises(md.BadData, match="client 1: pass both X_test and y_test"):
        make((X, y), (X, y, X, None))
    with pytest.raises(
        md.BadData, match=r"client 0, the test rows: rows have the shape \[3\], but the training rows \[2\]"
    ):
        make((X, y, torch.randn(4, 3), y))
    with pytest.raises(md.BadData, match="client 1, test row 2"):
        make((X, y, X, y), (X, y, X, torch.tensor([0, 1, 5, 0])), classes=2)
    with pytest.raises(md.BadData, match="clients have their own test rows; pass either those or test="):
        make((X, y, X, y), test=(X, y))
    with pytest.raises(md.RecipeError, match=r"own_test=True.*there are no test rows"):
        make((X, y), own_test=True)
    for wrong in ("no", 0):
        with pytest.raises(
            md.RecipeError, match=rf"^Federation\(own_test={wrong!r}\): must be True or False, or None$"
        ):
            make((X, y), own_test=wrong)
    weights = torch.ones(4)
    assert make((X, y, X, y, weights)).data.weights is not None


@pytest.mark.shapes
def test_names_of_clients_reach_frame_table_page_and_errors(tmp_path: Path) -> None:
    north, south = opposite_sites()
    fed = md.Federation(md.problems.Softmax(), clients={"Bern": north, "Lyon": south})
    assert fed.client_names == ("Bern", "Lyon")
    board = md.compare([md.FedAvg(), md.SCAFFOLD()], fed, rounds=2, seeds=2)
    r = board.results[0]
    assert r.client_names == ("Bern", "Lyon")
    assert list(r.frame("clients")["name"]) == ["Bern", "Lyon"]
    r.save(tmp_path / "kept")
    assert md.Result.load(tmp_path / "kept").client_names == ("Bern", "Lyon")
    text = board.save(tmp_path / "page.html").read_text()
    section = text[text.index("Each client") :]
    mean = np.mean([run.clients[0]["accuracy"] for run in board.results if run.method == "SCAFFOLD"])
    row = section[section.index("Bern") : section.index("Lyon")]
    assert f"{100 * mean:.1f}" in row
    bad = torch.full((40, 1), float("nan"), dtype=F64)
    with pytest.raises(md.BadData, match="client 'Lyon', row 0, column 0: nan"):
        md.Federation(md.problems.Softmax(), clients={"Bern": north, "Lyon": (bad, *south[1:])})


def test_names_by_key_leave_out_clients_with_too_few_rows() -> None:
    X = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    data = md.datasets.Dataset(X, torch.arange(7) % 2, classes=2, keys={"site": np.array(list("bbacacc"))})
    fed = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.ByKey("site", minimum=3))
    assert fed.client_names == ("c",)
    assert md.run(md.FedAvg(), fed, 1).client_names == ("c",)
    drawn = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.IID(2))
    assert drawn.client_names == () == md.run(md.FedAvg(), drawn, 1).client_names


def test_test_rows_of_a_data_set_bring_their_labels_and_their_clients() -> None:
    g = torch.Generator().manual_seed(0)
    sets = []
    for n, labels in ((8, ["a", "b", "c", "b"]), (4, ["c", "b"])):
        keys = {"site": np.array(["x", "y"] * (n // 2))}
        sets.append(md.datasets.Dataset(torch.randn(n, 2, generator=g), labels * (n // len(labels)), keys=keys))
    fed = md.Federation(md.problems.Softmax(), clients=sets[0], test=sets[1])
    assert fed.data.y_test.tolist() == [2, 1, 2, 1]
    rows = md.run(md.FedAvg(), fed, 1).clients
    assert [(row["rows"], row["test_rows"]) for row in rows] == [(4, 2), (4, 2)]


@pytest.mark.parametrize("part", ["y", "the weights", "y_test"])
def test_targets_whose_index_has_the_rows_in_another_order_are_refused(part: str) -> None:
    pd = pytest.importorskip("pandas")
    X, y = pd.DataFrame({"a": [0.0, 1.0, 2.0]}, index=[7, 8, 9]), pd.Series([0, 1, 0], index=[7, 8, 9])
    given = {"y": (X, y[::-1]), "the weights": (X, y, y[::-1] + 1.0), "y_test": (X[:2], y[:2], X, y[::-1])}[part]
    with pytest.raises(BadData, match=rf"client 1.*, row 0: X has the index 7, but (the )?{part[:1]}.* 9; "):
        md.Federation(md.problems.Softmax(), clients=[(X, y), given])
    others = [(X, y.reset_index(drop=True)), (X, np.array([0, 1, 0])), (X[::-1], y[::-1])]
    md.Federation(md.problems.Softmax(), clients=others)


LINE = md.problems.Network(nn.Linear(3, 1), loss=nn.L1Loss())
TARGETS: dict[str, Any] = {
    "test=": lambda X, y, other: md.Federation(LINE, clients=[(X, y)], test=(X, other)),
    "a client's own": lambda X, y, other: md.Federation(LINE, clients=[(X, y, X, other)]),
    "data= and test=": lambda X, y, other: md.Federation(
        LINE, data=(X, y), test=(X, other), partition=md.partitions.IID(2)
    ),
    "another client's": lambda X, y, other: md.Federation(LINE, clients=[(X, y), (X, other)]),
    "a data set": lambda X, y, other: md.datasets.Dataset(X, y, X, other),
}


@pytest.mark.parametrize("door", TARGETS)
@pytest.mark.parametrize("narrow", [False, True])
def test_targets_of_another_form_than_the_training_rows_are_refused(door: str, narrow: bool) -> None:
    X = torch.randn(20, 3)
    y, other = (X[:, 0], X[:, :1]) if narrow else (X[:, :1], X[:, 0])
    with pytest.raises(
        md.BadData, match=r"targets have the shape \[20(, 1)?\], but .* \[20(, 1)?\]; give both the same"
    ):
        TARGETS[door](X, y, other)


def test_test_rows_of_whole_numbers_become_floats_and_other_kinds_are_refused() -> None:
    X, y = torch.arange(60.0).reshape(20, 3) / 60, torch.arange(20) % 2
    net = md.problems.Network(nn.Linear(3, 2))
    loss = lambda rows: md.run(md.FedAvg(), md.Federation(net, clients=[(X, y)], test=(rows, y)), 1, progress=False)
    assert loss((60 * X).long()).summary["test_loss"] == loss(60 * X).summary["test_loss"]
    with pytest.raises(
        md.BadData, match=r"Federation.test=.*: X is uint8, from 0 to 255, and X of client 0 has floats"
    ):
        loss((60 * X).byte())


def test_data_sets_of_clients_keep_their_columns_and_their_scaling() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    age, lab = rng.normal(60, 9, 80), rng.normal(5, 1, 80)
    table = pd.DataFrame({"age": age, "lab": lab, "ill": (age > 60).astype(int)})
    public = md.datasets.frame(table, "ill").standardise()
    sets = [
        md.datasets.frame(part, "ill").standardise(like=public) for part in (table[:40], table[40:][[*table][::-1]])
    ]
    fed = md.Federation(md.problems.Logistic(mu=1e-2, intercept=True), clients=sets)
    assert fed.data.features == ("age", "lab")
    assert torch.allclose(fed.data.X, public.X)
    result = md.run(md.Newton(), fed, 6, progress=False)
    assert (result.predict(table[["lab", "age"]]) == table["ill"]).mean() > 0.95
    alone = [sets[0], md.datasets.frame(table[40:], "ill").standardise()]
    with pytest.raises(
        md.BadData, match=r"^client 1: some rows are standardised, and these are not, or by another mean"
    ):
        md.Federation(md.problems.Logistic(), clients=alone)
    with pytest.raises(md.BadData, match=r"^Federation\(test=...\): some rows are standardised"):
        md.Federation(md.problems.Logistic(), clients=sets, test=md.datasets.frame(table, "ill"))


def test_classes_that_data_sets_of_clients_name_stay(caplog: pytest.LogCaptureFixture) -> None:
    X, y = torch.randn(12, 2), np.arange(12) % 2
    text = np.array(["a", "b"])[y]
    for given, labels, places in (
        (md.datasets.Dataset(X, text, labels=("a", "b", "c")), ("a", "b", "c"), y),
        (md.datasets.Dataset(X, y, labels=(5, 7, 9)), (5, 7, 9), y),
        (md.datasets.Dataset(X, y, classes=3), (), y),
    ):
        data = md.Federation(md.problems.Softmax(), clients=[given, given]).data
        assert (data.classes, data.labels, data.inferred) == (3, labels, False)
        assert data.y.tolist() == [*places] * 2
    first, other = (md.datasets.Dataset(X, text, labels=labels) for labels in (("a", "b"), ("a", "b", "c")))
    with pytest.raises(
        md.BadData, match=r"^client 1: its data set has 3 classes, 'a', 'b', 'c', and others 2, 'a', 'b'"
    ):
        md.Federation(md.problems.Softmax(), clients=[first, other])
    kept = md.datasets.Dataset(X, y).split(0.2, validation=0.2)
    with pytest.raises(md.BadData, match=r"^client 0: it has validation rows"):
        md.Federation(md.problems.Softmax(), clients=[kept])


@pytest.mark.parametrize("named", [{}, {"classes": 2}, {"labels": ("no", "yes")}])
def test_fractions_of_test_rows_are_no_classes_and_make_values_of_whole_numbers(named: dict[str, Any]) -> None:
    X, y = torch.randn(12, 2), np.arange(12) % 2
    deal = {"data": md.datasets.Dataset(X, y, **named), "partition": md.partitions.IID(2)}
    with pytest.raises(
        md.BadData, match=r"^Federation\(test=...\), row 0, column 'y': 0.5 is not one of the classes of the train"
    ):
        md.Federation(md.problems.Logistic(), **deal, test=(X, y + 0.5))
    if not named:
        data = md.Federation(md.problems.LeastSquares(), **deal, test=(X, y + 0.5)).data
        assert data.y_test is not None
        assert (data.y.tolist(), data.y_test.tolist()) == (y.tolist(), (y + 0.5).tolist())
