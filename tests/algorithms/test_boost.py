"""Boost: the same bits for any partition, the trees of a slow oracle, and those of XGBoost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.numerics import bins, forest, splits
from medley.numerics.forest import Forest
from medley.participation import Fixed
from medley.secure import SecureSum
from medley.testing.faults import Rewired, losing
from medley.transports import InProcess, Processes

LOSSES = ("squared", "logistic", "softmax", "poisson")

OBJECTIVES = {
    "squared": "reg:squarederror",
    "logistic": "binary:logistic",
    "softmax": "multi:softprob",
    "poisson": "count:poisson",
}


def table(loss: str, rows: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four columns: numbers, whole numbers, two values, a constant; and targets for this loss."""
    rng = np.random.default_rng(seed)
    X = np.stack([rng.normal(size=rows), rng.integers(20, 60, rows), rng.integers(0, 2, rows), np.full(rows, 3.0)], 1)
    score = 1.5 * X[:, 0] - (X[:, 1] > 40) * X[:, 2] + rng.normal(0, 0.3, rows)
    y = {
        "squared": score,
        "logistic": (score > 0).astype(int),
        "softmax": np.digitize(score, [-1, 0.5]),
        "poisson": rng.poisson(np.exp(score / 2)).astype(float),
    }[loss]
    return X.astype(np.float32), y


def federation(loss: str, parts: list[np.ndarray], trees: int = 4, depth: int = 3, **more: Any) -> md.Federation:
    X, y = table(loss)
    classes = {"logistic": 2, "softmax": 3}.get(loss)
    family = md.problems.Trees(loss, trees=trees, depth=depth)
    return md.Federation(family, clients=[(X[i], y[i]) for i in parts], classes=classes, **more)


def grown(fed: md.Federation, rounds: int = 4, **options: Any) -> md.Result:
    return md.run(md.Boost(bins=16), fed, rounds, progress=False, **options)


def with_gaps(loss: str) -> tuple[np.ndarray, np.ndarray]:
    """The table of this loss with a fifth of its values missing; whether the constant is there says something, too."""
    X, y = table(loss)
    rng = np.random.default_rng(2)
    X[rng.random(X.shape) < 0.2] = np.nan
    low = np.argsort(y, kind="stable")[:30]
    X[low, 3] = np.nan
    return X, y


def partitions(rows: int = 120) -> list[list[np.ndarray]]:
    order = np.random.default_rng(1).permutation(rows)
    return [[np.arange(rows)], np.array_split(order, 3), np.split(order, [1, 2, 50])]


@pytest.mark.parametrize("loss", LOSSES)
def test_any_partition_of_the_same_rows_grows_the_same_bits(loss: str) -> None:
    x = [grown(federation(loss, parts)).x for parts in partitions()]
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[0], x[2])
    assert int(x[0][forest.GROWN]) == 4


def slow(X: np.ndarray, y: np.ndarray, depth: int, eta: float = 0.3, ridge: float = 1.0) -> np.ndarray:
    """Outputs of one tree for squared errors, by all splits between values of all rows."""
    base = y.mean()

    def score(rows: np.ndarray) -> float:
        return float((base - y[rows]).sum() ** 2 / (len(rows) + ridge))

    def node(rows: np.ndarray, left: int) -> dict[int, float]:
        best: tuple[float, Any] = (1e-6, None)
        for column in range(X.shape[1]) if left else ():
            for line in np.unique(X[rows, column])[1:]:
                a = rows[X[rows, column] < line]
                b = rows[X[rows, column] >= line]
                gain = score(a) + score(b) - score(rows)
                best = max(best, (gain, (a, b)), key=lambda pair: pair[0])
        if best[1] is None:
            value = -eta * float((base - y[rows]).sum()) / (len(rows) + ridge)
            return {int(i): base + value for i in rows}
        return node(best[1][0], left - 1) | node(best[1][1], left - 1)

    out = node(np.arange(len(X)), depth)
    return np.array([out[i] for i in range(len(X))])


def test_a_tree_is_that_of_a_slow_search_over_all_values() -> None:
    X, y = table("squared", rows=12)
    fed = md.Federation(md.problems.Trees("squared", trees=1, depth=2), clients=[(X[::2], y[::2]), (X[1::2], y[1::2])])
    result = md.run(md.Boost(), fed, rounds=1, progress=False)
    assert np.abs(result.predict(X) - slow(X, y.astype(np.float32).astype(float), 2)).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_workers_a_resumed_run_and_secure_sums_have_the_same_bits(loss: str, tmp_path: Path) -> None:
    parts = partitions()[1]
    whole = grown(federation(loss, parts))
    assert torch.equal(whole.x, grown(federation(loss, parts), transport=Processes(2)).x)
    grown(federation(loss, parts), rounds=2, checkpoint=tmp_path)
    resumed = grown(federation(loss, parts), resume=tmp_path)
    assert torch.equal(whole.x, resumed.x)
    assert torch.equal(whole.x, grown(federation(loss, parts), secure=SecureSum(bits=64, bound=2.0**16)).x)


def test_a_client_that_drops_out_leaves_the_tree_at_that_level() -> None:
    parts = partitions()[1]
    lost = {(1, 7, 2)}  # exchanges 0 to 5 are of bins, 6 of the root
    result = grown(federation("squared", parts), 1, transport=Rewired(InProcess(), losing(lost, requests_arrive=True)))
    levels = [e for e in result.ledger if e.method == "level"]
    assert {e.client for e in levels} >= {0, 1}
    tree = Forest.of(result.x).trees[0, 0]
    leaves = tree[(tree[:, forest.FEATURE] < 0) & (tree[:, forest.COVER] > 0), forest.COVER].sum()
    assert tree[0, forest.COVER] == 120
    assert leaves in (len(parts[0]) + len(parts[1]), 120)
    assert leaves < 120


def test_clients_that_come_later_get_the_trees_and_continue_them() -> None:
    parts = partitions()[1]
    result = grown(federation("logistic", parts, participation=Fixed([[0], [1, 2], [0, 1, 2], [2]])))
    assert result.history[-1]["loss"] < result.history[1]["loss"] < result.history[0]["loss"]


def test_gradients_are_rounded_so_that_sums_are_exact_in_any_order() -> None:
    y = np.random.default_rng(0).normal(0, 1e3, 1000).astype(np.float32)
    unit = splits.unit_of("squared", splits.exponents_of(y), len(y))
    assert np.log2(unit) == int(np.log2(unit))
    g = splits.rounded(y.astype(float) / 3, unit)
    assert np.abs(g - y.astype(float) / 3).max() <= unit / 2
    assert g.sum() == g[::-1].sum() == sum(g.reshape(10, 100).sum(1))


def test_cells_divide_until_bins_have_rows_alike() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(2000, 1, 5000), rng.lognormal(0, 3, 5000)], 1).astype(np.float32)
    cells = bins.Cells.first(bins.octaves(X)[:, : bins.OCTAVES])
    for bits in range(bins.FIRST, bins.FINEST, bins.STEP):
        coarse = cells.coarse(bits, 8)
        cell = cells.start[coarse] >> (32 - bits)
        cells = cells.refined(coarse, bins.divided(X, cells.column[coarse], cell, bits))
    assert cells.count.sum() == 10_000
    for column, cuts in zip(bins.codes(X, cells.cuts(2, 8)), cells.cuts(2, 8), strict=True):
        assert len(cuts) == 7
        sizes = np.bincount(column, minlength=8)
        assert sizes.min() > 0.7 * 625
        assert sizes.max() < 1.3 * 625


def test_keys_have_the_order_of_numbers_and_give_them_back() -> None:
    values = np.array([-np.float32(1e30), -2, -1.5, -1e-40, 0, 1e-40, 1, 1.5, 1e30], np.float32)
    keys = bins.keys_of(values)
    assert (np.diff(keys.astype(np.int64)) > 0).all()
    assert (bins.numbers_of(keys) == values).all()
    assert bins.keys_of(np.array([-0.0], np.float32)) == bins.keys_of(np.array([0.0], np.float32))


def test_importance_sums_gain_and_cover_by_column() -> None:
    model: Any = grown(federation("squared", partitions()[0])).model
    sums = model.importance()
    assert sums["gain"][0] > sums["gain"][1] > 0
    assert sums["gain"][3] == sums["splits"][3] == 0
    assert sums["cover"].sum() >= 4 * 120


@pytest.mark.parametrize("loss", LOSSES)
def test_xgboost_reads_the_forest_and_predicts_the_same(loss: str, tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost")
    result = grown(federation(loss, partitions()[1]))
    X, _ = table(loss)
    model: Any = result.model
    booster = xgboost.Booster(model_file=model.to_xgboost(tmp_path / "model.json"))
    margins = booster.predict(xgboost.DMatrix(X), output_margin=True)
    assert np.abs(margins - result.outputs(X).numpy()).max() < 1e-6


@pytest.mark.parametrize("loss", LOSSES)
def test_missing_values_go_to_the_side_that_gains_more_at_any_partition_and_in_xgboost(
    loss: str, tmp_path: Path
) -> None:
    X, y = with_gaps(loss)
    classes = {"logistic": 2, "softmax": 3}.get(loss)
    family = md.problems.Trees(loss, trees=4, depth=3, missing=True)
    results = [
        grown(md.Federation(family, clients=[(X[i], y[i]) for i in parts], classes=classes)) for parts in partitions()
    ]
    assert all(torch.equal(results[0].x, r.x) for r in results)
    nodes = Forest.of(results[0].x).trees[..., forest.MISSING]
    inner = Forest.of(results[0].x).trees[..., forest.FEATURE] >= 0
    assert {*nodes[inner].tolist()} == {0.0, 1.0}
    assert (Forest.of(results[0].x).trees[inner][:, forest.FEATURE] == 3).any()  # divided by whether there is a value
    xgboost = pytest.importorskip("xgboost")
    model: Any = results[0].model
    booster = xgboost.Booster(model_file=model.to_xgboost(tmp_path / "model.json"))
    rows = np.concatenate([X, np.full((1, 4), np.nan, np.float32)])
    margins = booster.predict(xgboost.DMatrix(rows), output_margin=True)
    assert np.abs(margins - results[0].outputs(rows).numpy()).max() < 1e-6
    settings = {"objective": OBJECTIVES[loss], "max_depth": 3, "max_bin": 256, "nthread": 1, "eta": 0.3}
    settings |= {"num_class": 3} if loss == "softmax" else {}
    fine = md.run(md.Boost(bins=256), md.Federation(family, clients=[(X, y)], classes=classes), 4, progress=False)
    train = xgboost.DMatrix(X, y)
    train.set_base_margin(np.tile(Forest.of(fine.x).base, (len(X), 1)).squeeze())
    theirs = xgboost.train(settings, train, 4).predict(train, output_margin=True)
    assert np.abs(theirs - fine.outputs(X).numpy()).max() < 1e-4


def test_missing_values_come_in_by_every_door_and_only_where_they_are_declared(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = with_gaps("logistic")
    table = pandas.DataFrame(X[:, :3], columns=["a", "b", "c"])
    table["flag"] = pandas.Series([None, True, False] * 40, dtype=object)
    table["label"] = y
    table.to_csv(tmp_path / "rows.csv", index=False)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    np.save(tmp_path / "X.npy", X)
    trees = md.problems.Trees("logistic", trees=2, depth=2, missing=True)
    by_csv = md.datasets.csv(tmp_path / "rows.csv", "label", missing=True)
    by_frame = md.datasets.frame(table, "label", missing=True)
    assert np.array_equal(by_csv.X.numpy(), by_frame.X.numpy(), equal_nan=True)
    assert int(by_csv.X.isnan().sum()) == int(np.isnan(X[:, :3]).sum()) + 40
    saved = md.datasets.saved(md.datasets.disk.save(by_csv, tmp_path / "saved"))
    sources: list[Any] = [
        saved, table, (X, y), (np.load(tmp_path / "X.npy", mmap_mode="r"), y),
        md.datasets.npz(tmp_path / "rows.npz", missing=True), md.datasets.Dataset(X, y, missing=True),
        torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y)),
    ]  # fmt: skip
    for source in sources:
        result = grown(md.Federation(trees, clients=[source], classes=2), 2)
        rows = table.drop(columns="label") if result.features else X
        assert result.predict(rows).shape == (120,)
        with pytest.raises(md.BadData, match=r"missing=True|is not finite|not a number|it is empty"):
            grown(md.Federation(md.problems.Trees("logistic", trees=2), clients=[source], classes=2), 2)
    with pytest.raises(md.BadData, match=r"this Logistic does not read; give problems.Trees\(..., missing=True\)"):
        md.Federation(md.problems.Logistic(), data=by_csv, partition=md.partitions.IID(clients=2))
    with pytest.raises(md.BadData, match="inf is not finite"):
        md.datasets.Dataset(np.where(np.isnan(X), np.inf, X), y, missing=True)
    with pytest.raises(md.BadData, match="column 'y': nan is not finite"):
        md.datasets.Dataset(X, np.where(y > 0, np.nan, 0.0), missing=True)
    with pytest.raises(md.BadData, match="trees need no scaling"):
        by_csv.standardise()
    (tmp_path / "words.csv").write_text("a,label\n1,0\nNA,1\n")
    with pytest.raises(md.BadData, match=r"row 1, column 'a': 'NA' says that there is no number"):
        md.datasets.csv(tmp_path / "words.csv", "label", missing=True)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_categories_as_columns_grow_the_forest_of_xgboost_that_splits_one_from_the_others(loss: str) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    ward = rng.choice(list("abcdef"), 300)
    frame = pandas.DataFrame({"age": rng.integers(20, 90, 300), "ward": ward})
    score = frame["age"] / 20 + 2 * (ward == "c") - 3 * (ward == "e") + rng.normal(size=300)
    frame["y"] = (score > 2).astype(int) if loss == "logistic" else score.astype(np.float32)
    sites = [frame[:100], frame[100:]]
    with pytest.raises(md.BadData, match=r"row 0, column 'ward': '.' is not a number; code such columns as numbers"):
        md.Federation(md.problems.Trees(loss), clients=[(site[["age", "ward"]], site["y"]) for site in sites])
    pytest.importorskip("formulaic")
    study = md.statistics.Study({str(k): site[["age", "ward"]] for k, site in enumerate(sites)})
    prepared = study.prepare(["age: median", "ward: mode, encode"])
    data = [md.datasets.frame(site, "y", prepared=prepared) for site in sites]
    family = md.problems.Trees(loss, trees=4, depth=3)
    result = md.run(md.Boost(bins=256), md.Federation(family, clients=data), 4, progress=False)
    inner = Forest.of(result.x).trees[..., forest.FEATURE]
    assert {2 + 1, 4 + 1} <= {*inner[inner >= 0].tolist()}  # "c" and "e"
    xgboost = pytest.importorskip("xgboost")
    rows = frame[["age", "ward"]].astype({"ward": "category"})
    train = xgboost.DMatrix(rows, frame["y"], enable_categorical=True)
    train.set_base_margin(np.full(len(rows), Forest.of(result.x).base[0]))
    settings = {"objective": OBJECTIVES[loss], "max_depth": 3, "max_bin": 256, "max_cat_to_onehot": 100, "nthread": 1}
    theirs = xgboost.train(settings, train, 4).predict(train, output_margin=True)
    assert np.abs(theirs - result.outputs(frame[["age", "ward"]]).numpy()).max() < 1e-4


def test_samples_of_columns_are_the_same_at_any_partition_and_samples_of_rows_are_drawn_by_clients() -> None:
    method = md.Boost(bins=16, column_share=0.5)
    x = [md.run(method, federation("softmax", parts), 4, progress=False).x for parts in partitions()]
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[0], x[2])
    for trees in Forest.of(x[0]).trees[..., forest.FEATURE]:
        assert len({*trees[trees >= 0].tolist()}) <= 2
    method = md.Boost(bins=16, row_share=0.5)
    rows = [md.run(method, federation("squared", partitions()[1]), 4, progress=False).x for _ in range(2)]
    assert torch.equal(rows[0], rows[1])
    roots = Forest.of(rows[0]).trees[:, 0, 0, forest.COVER]
    assert ((roots > 40) & (roots < 80)).all()
    assert len({*roots.tolist()}) > 1
    fewer = md.run(method, federation("squared", partitions()[1]), 2, progress=False)
    assert torch.equal(fewer.x[forest.FIXED :][:181], rows[0][forest.FIXED :][:181])


@pytest.mark.slow
def test_trees_are_those_of_xgboost_where_bins_are_the_same() -> None:
    """Digits has at most 17 values in a column, so that both have a bin for each."""
    xgboost = pytest.importorskip("xgboost")
    data = md.datasets.digits()
    X = data.X.numpy()
    y = (data.y.numpy() >= 5).astype(int)
    parts = np.array_split(np.arange(len(X)), 3)
    family = md.problems.Trees("logistic", trees=10, depth=4)
    fed = md.Federation(family, clients=[(X[i], y[i]) for i in parts], classes=2)
    result = md.run(md.Boost(), fed, 10, progress=False)
    settings = {"objective": "binary:logistic", "max_depth": 4, "max_bin": 64, "nthread": 1}
    rows = xgboost.DMatrix(X, y)
    rows.set_base_margin(np.full(len(X), Forest.of(result.x).base[0]))
    theirs = xgboost.train(settings, rows, 10).predict(rows, output_margin=True)
    assert np.abs(theirs - result.outputs(X).numpy()).max() < 1e-4


def test_what_a_forest_cannot_do_is_a_sentence() -> None:
    parts = partitions()[1]
    fed = federation("squared", parts, trees=1)
    with pytest.raises(md.RecipeError, match=r"room for 1 rounds of trees; give problems.Trees\(trees=2\)"):
        grown(fed, 2)
    other = grown(federation("poisson", parts, trees=1), 1)
    for init in (other, torch.zeros(len(other.x)), torch.ones(len(other.x))):
        with pytest.raises(md.RecipeError, match=r"run\(init=...\): these numbers are no forest of this problem"):
            md.run(md.Boost(), fed, 1, init=init, progress=False)
    with pytest.raises(md.Unsupported, match=r"FedAvg trains by gradients .* use Boost"):
        md.run(md.FedAvg(), fed, 1, progress=False)
    softmax = md.Federation(md.problems.Softmax(), clients=[table("softmax")], classes=3)
    with pytest.raises(md.Unsupported, match="Boost cannot be private: the thresholds"):
        md.Private(md.Boost(), noise=1.0, clip=1.0)
    with pytest.raises(md.Unsupported, match="Boost cannot be robust: the thresholds"):
        md.Robust(md.Boost(), rule=md.robust.Median())
    with pytest.raises(md.Unsupported, match=r"Boost needs a forest, problems\.Trees"):
        md.run(md.Boost(), softmax, 1, progress=False)
    X, y = table("squared")
    flat = md.Federation(md.problems.Trees("squared"), clients=[(X[:, 3:], y)])
    with pytest.raises(md.BadData, match="all 1 columns are constant"):
        md.run(md.Boost(), flat, 1, progress=False)
    with pytest.raises(md.BadData, match="needs counts, but this is -1"):
        md.Federation(md.problems.Trees("poisson"), clients=[(X, np.full(len(X), -1.0))])
    with pytest.raises(md.BadData, match="two classes, 0 and 1, but this label is 2; use Trees"):
        md.Federation(md.problems.Trees("logistic"), clients=[table("softmax")], classes=3)


def test_more_columns_than_rows_and_clients_of_one_class_grow() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10, 40)).astype(np.float32)
    y = (X[:, 7] > 0).astype(int)
    family = md.problems.Trees("logistic", trees=3, depth=2)
    fed = md.Federation(family, clients=[(X[y == 0], y[y == 0]), (X[y == 1], y[y == 1])], classes=2)
    result = md.run(md.Boost(min_child_weight=0.0), fed, 3, progress=False)
    assert (result.predict(X) == y).all()
