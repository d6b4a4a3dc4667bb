"""Predictions on a user's rows: labels as the data had them, rows in any dtype, and errors with a remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import medley as md
from medley import RecipeError
from medley.problems import Logistic, Network
from medley.storage.predictions import probabilities

G = np.random.default_rng(0)
X = G.normal(size=(40, 4)).round(2)
Y = (X[:, 0] > 0).astype(int)
IDS = G.integers(0, 10, (40, 5))


def run(problem: Any, *pair: Any, **more: Any) -> md.Result:
    clients = [pair, pair] if pair else more.pop("clients")
    return md.run(md.FedAvg(), md.Federation(problem, clients=clients, **more), 2, progress=False)


@pytest.mark.parametrize("kind", ["frame", "objects", "csv"])
@pytest.mark.parametrize(
    ("names", "dtype"),
    [((0, 1), "i"), ((-1, 1), "i"), ((1.0, 2.0), "i"), ((False, True), "b"), (("n", "p"), "U")],
)
def test_labels_come_back_as_the_table_had_them(names: tuple[Any, Any], dtype: str, kind: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=list("abcd"))
    table["y"] = pandas.Series([names[k] for k in Y], dtype=object if kind == "objects" else None)
    table["client"] = np.arange(40) % 2
    table.to_csv(tmp_path / "table.csv", index=False)
    data = md.datasets.csv(tmp_path / "table.csv", target="y", keys=["client"]) if kind == "csv" else table
    r = run(Logistic(intercept=True), clients=data)
    for result in (r, md.Result.load(r.save(tmp_path / "run"))):
        predictions = result.predict(table[list("abcd")])
        assert predictions.dtype.kind == dtype
        assert (predictions == table.y).mean() > 0.8
    assert [str(k) for k in md.Federation(Logistic(), clients=data).describe().labels] == [
        str(k) for k in r.settings["labels"]
    ]


def test_labels_of_fractions_keep_their_values(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": X[:, 0], "y": np.where(Y, 1.5, 2.0)})
    assert md.datasets.frame(table, "y", regression=False).labels == (1.5, 2)


@pytest.mark.parametrize("y", [2 * Y - 1, 2.0 * Y - 1, 1.0 * Y, Y])
def test_labels_of_a_logistic_regression_come_back_from_pairs_and_data_sets(y: np.ndarray) -> None:
    fed = [md.Federation(Logistic(), clients=[(X, y), (X, y)])]
    if y.dtype.kind == "f" or y.min() == 0:
        fed.append(md.Federation(Logistic(), data=md.datasets.Dataset(X, y), partition=md.partitions.IID(2)))
    for f in fed:
        predictions = md.run(md.FedAvg(), f, 2, progress=False).predict(X)
        assert set(predictions.tolist()) == {*y.tolist()}
        assert (predictions == y).mean() > 0.8


@pytest.mark.parametrize("problem", [Logistic(), Network(nn.Linear(4, 2))], ids=["linear", "network"])
def test_integers_booleans_lists_and_sparse_rows_are_cast_to_the_models_floats(problem: Any) -> None:
    r = run(problem, X, Y)
    integers = (3 * X).round()
    want = r.outputs(integers)
    forms = (
        integers.astype(int),
        integers.astype(int).tolist(),
        scipy.sparse.csr_matrix(integers),
        scipy.sparse.coo_array(integers),
    )
    for form in forms:
        torch.testing.assert_close(r.outputs(form, batch=7), want)  # a kernel's sums may depend on the batch
    assert torch.equal(r.outputs(X > 0), r.outputs((X > 0).astype(float)))
    assert torch.equal(r.outputs((X > 0).astype(np.uint8)), r.outputs(X > 0))
    with pytest.raises(md.BadData, match=r"row 0, column 0: .* is complex"):
        r.outputs(torch.ones(2, 4, dtype=torch.complex64))


@pytest.mark.shapes
def test_sparse_training_rows_predict() -> None:
    rows = scipy.sparse.csr_matrix(X)
    r = run(Logistic(), rows, Y)
    assert (r.predict(rows) == r.predict(X)).all()
    assert (r.predict(md.datasets.Dataset(rows, Y).X) == r.predict(X)).all()


class Notes(nn.Module):
    """Ids, of which the network embeds one and counts the other, and ages."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 3)
        self.last = nn.Linear(5, 2)

    def forward(self, tokens: Tensor, ages: Tensor) -> Tensor:
        return self.last(torch.cat([self.embed(tokens).mean(1), ages], 1))  # type: ignore[no-any-return]


class OneHot(nn.Module):
    """Ids without an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(10, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(nn.functional.one_hot(ids, 10).float().mean(1))  # type: ignore[no-any-return]


@pytest.mark.shapes
def test_each_input_is_cast_to_what_the_training_rows_were() -> None:
    rows = {"tokens": IDS, "ages": G.normal(size=(40, 2))}
    r = run(Network(Notes()), rows, Y)
    integers = {**rows, "ages": np.ones((40, 2), int)}
    assert torch.equal(r.outputs(integers), r.outputs({"ages": np.ones((40, 2)), "tokens": IDS.astype(float)}))
    hot = run(Network(OneHot()), IDS, Y)
    assert torch.equal(hot.outputs(IDS.astype(np.int32)), hot.outputs(IDS.astype(float)))
    del r.settings["integers"]  # as results of an earlier version are
    assert torch.equal(r.outputs(rows), r.outputs({**rows, "ages": rows["ages"].astype(np.float32)}))
    with pytest.raises(md.BadData, match=r"missing .*'ages'; its forward takes \(tokens: .*, ages: "):
        r.predict({"tokens": IDS, "age": rows["ages"]})
    with pytest.raises(md.BadData, match=r"cannot read ids\['tokens'\] 5..14 \(.*\); it was trained on smaller ids"):
        r.predict({**rows, "tokens": IDS + 5})


class Squeezed(nn.Linear):
    """A layer whose outputs lose the rows where there is one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


class Flat(nn.Linear):
    """Outputs of all steps of all rows, one below the other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(0, 1)


def pair(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y.flatten())


@pytest.mark.parametrize(
    ("problem", "y", "rows", "message"),
    [
        (lambda: Network(Squeezed(4, 1), loss="mse"), 1.0 * Y, X[:1], r"of one row have shape \[\], .*squeeze\(1\)"),
        (lambda: Network(Squeezed(4, 2)), Y, X[:1], r"of one row have shape \[2\], without the rows"),
        (lambda: Network(nn.Linear(4, 6)), np.where(Y, "b", "a"), X, "give the network 2 outputs"),
        (lambda: Network(nn.Linear(4, 2)), Y, X[:, :3], "whose first layer takes 4 columns"),
    ],
)
def test_rows_and_outputs_that_do_not_fit_are_refused_with_a_remedy(
    problem: Callable[[], Any], y: np.ndarray, rows: np.ndarray, message: str
) -> None:
    r = run(problem(), X, y)
    if "6" in str(r.model):
        assert r.model is not None
        r.model.bias.data[4] = 100.0
    with pytest.raises(md.BadData, match=message):
        r.predict(rows)


def test_a_last_batch_of_one_row_keeps_outputs_of_several_steps() -> None:
    steps = np.stack([X, X], 1)
    r = run(Network(Flat(4, 2), loss=pair), steps, np.stack([Y, Y], 1))
    torch.testing.assert_close(r.outputs(steps, batch=13), r.outputs(steps))


def test_weights_are_named_safetensors(tmp_path: Path) -> None:
    r = run(Logistic(), X, Y)
    with pytest.raises(md.RecipeError, match=r"name the file w\.safetensors; for torch's own format call torch\.save"):
        r.save_weights(tmp_path / "w.pt")
    assert r.save_weights(tmp_path / "w").exists()


def test_predictions_take_and_refuse_the_arrays_that_clients_may_have() -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    result = md.run(md.Newton(), md.Federation(md.problems.Logistic(mu=1e-2), clients=[(X, X[:, 0] > 0)]), 3)
    want = result.outputs(X)
    for rows in (X[::-1][::-1], X.astype(">f8"), X.astype(np.longdouble), np.ma.masked_array(X)):
        assert torch.equal(result.outputs(rows), want)
    assert torch.equal(result.outputs(X[:, ::-1][:, ::-1]), want)
    assert torch.equal(result.outputs(X[::-1]), want.flip(0))
    with pytest.raises(md.BadData, match=r"predict\(X\), row 2, column 1: .* is masked; fill such entries") as e:
        result.predict(np.ma.masked_equal(X, X[2, 1]))
    assert e.value.row == 2


def test_inputs_beside_their_targets_are_refused_with_the_way_to_the_inputs_alone() -> None:
    data = md.datasets.gaussian_classes(n=30, features=3, classes=2, test=10)
    result = md.run(md.Newton(), md.Federation(md.problems.Logistic(mu=1e-2), clients=[(data.X, data.y)]), 2)
    want = result.predict(data.X_test)
    pairs = TensorDataset(data.X_test, data.y_test)
    for X, remedy, rows in (
        (data, r"a Dataset; give its rows, predict\(data.X_test\)", data.X_test),
        (pairs, r"a TensorDataset; .* torch.stack\(\[x for x, ", torch.stack([x for x, *_ in pairs])),
        (DataLoader(pairs, 4), r"a DataLoader; .* torch.cat\(\[x", torch.cat([x for x, *_ in DataLoader(pairs, 4)])),
        ([*pairs], r"list of tuples; .* torch.stack\(\[x for x, ", torch.stack([x for x, *_ in [*pairs]])),
    ):
        with pytest.raises(md.BadData, match=rf"predict\(X\): X is .*{remedy}"):
            result.predict(X)
        assert (result.predict(rows) == want).all()


def test_rows_of_another_rank_than_the_training_rows_are_refused() -> None:
    r = run(Network(nn.Linear(4, 2)), X, Y)
    for rows in (X[None], X[:, None], (X,)):
        with pytest.raises(md.BadData, match="of 3 dimensions, but the training rows have 2"):
            r.predict(rows)


BINARY = {"classes": 2, "problem": "Network", "decision": 0.0}


@pytest.mark.parametrize(
    ("settings", "outputs", "wanted"),
    [
        ({"problem": "Softmax", "classes": 3}, [[0.0, 0.0, 0.0]], [[1 / 3, 1 / 3, 1 / 3]]),
        ({"problem": "Logistic", "classes": 2}, [0.0, math.log(3)], [[0.5, 0.5], [0.25, 0.75]]),
        ({"problem": "Trees", "loss": "logistic", "classes": 2}, [math.log(3)], [[0.25, 0.75]]),
        ({**BINARY, "loss": "BCEWithLogitsLoss"}, [[math.log(3)]], [[0.25, 0.75]]),
        ({**BINARY, "loss": "BCELoss", "decision": 0.5}, [[0.75]], [[0.25, 0.75]]),
        ({"problem": "Network", "loss": "BCEWithLogitsLoss"}, [[0.0, math.log(3)]], [[0.5, 0.75]]),
        ({"problem": "Network", "loss": "NLLLoss", "classes": 2}, [[math.log(0.25), math.log(0.75)]], [[0.25, 0.75]]),
    ],
)
def test_probabilities_of_outputs(settings, outputs, wanted):
    np.testing.assert_allclose(probabilities(torch.tensor(outputs), settings), wanted, atol=1e-6)


@pytest.mark.parametrize("loss", ["own", "mse", "MultiMarginLoss", "hinge"])
def test_outputs_that_are_no_probabilities_are_refused(loss):
    with pytest.raises(RecipeError, match=r"result\.outputs\(X\), torch\.softmax\(outputs, 1\)"):
        probabilities(torch.zeros(2, 2), {"problem": "Network", "loss": loss, "classes": 2})


def test_a_loss_called_as_one_of_torch_is_the_users_own():
    def cross_entropy(outputs, y):
        return (outputs[:, 0] - y).square().mean()

    network = md.problems.Network(md.models.mlp(4, 2), loss=cross_entropy)
    assert network.settings()["loss"] == "own"
    assert md.problems.Network(md.models.mlp(4, 2), loss=torch.nn.CrossEntropyLoss()).settings()["loss"] == (
        "CrossEntropyLoss"
    )
