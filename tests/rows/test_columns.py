"""Columns keep their values: numbers until something is subtracted from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.rows.precision import kept_apart
from medley.storage.predictions import rows_of

RNG = np.random.default_rng(0)
N = 400
TIMES, FAR = 1.7e9 + RNG.uniform(0, 10, N), 1e8 + RNG.uniform(0, 4, N)
NEAR = RNG.normal(size=N)
X = np.c_[TIMES, NEAR]


def read(kind: str, folder: Path) -> md.datasets.Dataset:
    """Time stamps and targets near 1e8, from a file or a frame."""
    path = folder / f"rows.{kind}"
    if kind == "npz":
        np.savez(path, X=X, y=FAR)
        return md.datasets.npz(path, regression=True)
    if kind.startswith("svm"):
        lines = zip(FAR.tolist(), TIMES.tolist(), NEAR.tolist(), strict=True)
        path.write_text("".join(f"{y!r} 1:{t!r} 2:{a!r}\n" for y, t, a in lines))
        sparse = kind == "svm, sparse"
        return md.datasets.svmlight(path, regression=True, sparse=sparse, zero_based=False)
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"t": TIMES, "a": NEAR, "y": FAR})
    if kind == "frame":
        return md.datasets.frame(table, "y")
    if kind == "csv":
        table.to_csv(path, index=False)
        return md.datasets.csv(path, "y", regression=True)
    pytest.importorskip("pyarrow")
    table.to_parquet(path, index=False)
    return md.datasets.parquet(path, "y", regression=True)


@pytest.mark.parametrize("kind", ["csv", "frame", "npz", "parquet", "svm", "svm, sparse"])
def test_readers_keep_numbers_apart_that_float32_would_merge(kind: str, tmp_path: Path) -> None:
    d = read(kind, tmp_path)
    rows: Any = d.X.matrix.toarray() if kind == "svm, sparse" else d.X.numpy()  # type: ignore[attr-defined]
    assert np.array_equal(rows[:, 0], TIMES)
    assert np.array_equal(d.y.numpy(), FAR)  # float32 has one value in place of 400
    if kind == "svm, sparse":
        with pytest.raises(md.BadData, match=r"standardise.* subtracts means, which would make sparse rows dense"):
            d.standardise()
        return
    assert np.array_equal(rows[:, 1], NEAR.astype(np.float32))
    assert np.allclose(d.standardise().X[:, 0], (TIMES - TIMES.mean()) / TIMES.std(), atol=1e-6)


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (NEAR, torch.float32),
        (NEAR * 1e6, torch.float32),
        (np.arange(N) + 1990.0, torch.float32),  # exact
        (np.full(N, 0.1), torch.float32),  # a constant has nothing to tell apart
        (37 + NEAR, torch.float32),
        (TIMES, torch.float64),
        (TIMES.astype(np.int64) * 10**9 + np.arange(N), torch.float64),
        (FAR.astype(np.float32).astype(np.float64), torch.float32),
        (np.r_[TIMES, 0.0], torch.float64),
        (TIMES[:1], torch.float64),
        (np.full(N, TIMES[0]), torch.float64),
        (np.round(NEAR) + 1e-9 * NEAR, torch.float32),
    ],
)
def test_float64_is_for_columns_far_from_0(column: np.ndarray, dtype: torch.dtype) -> None:
    assert torch.from_numpy(kept_apart(column[:, None])).dtype == dtype


@pytest.mark.parametrize(
    ("column", "constant"),
    [
        (1e9 + 1e-3 * NEAR, False),
        (1e9 + 0.3 + 0 * NEAR, True),
        (0.1 + 0 * NEAR, True),
        ((0.1 + 0 * NEAR).astype(np.float32), True),
        ((1e6 + 2 * NEAR).astype(np.float32), False),  # 2e-6 of the mean
        (NEAR.astype(np.float16), False),
        (TIMES, False),
    ],
)
def test_a_column_is_constant_by_what_its_dtype_resolves(column: np.ndarray, constant: bool) -> None:
    d = md.datasets.Dataset(column[:, None], np.arange(N) % 2).standardise()
    assert d.scaling is not None
    assert (float(d.scaling.deviation) == 1.0) is constant
    assert float(d.X.std(correction=0)) == pytest.approx(0 if constant else 1, abs=2e-3)


def test_rows_standardised_by_the_data_set_train_as_those_standardised_by_hand() -> None:
    y = (NEAR + (TIMES - TIMES.mean()) > 0).astype(int)
    by_hand = (X - X.mean(0)) / X.std(0)
    P = md.problems.Logistic(mu=1e-2, intercept=True)
    data = [md.datasets.Dataset(X, y).standardise(), md.datasets.Dataset(by_hand, y)]
    one, two = (md.run(md.Newton(), md.Federation(P, data=d, partition=md.partitions.IID(4)), 12) for d in data)
    assert one.summary["loss"] == pytest.approx(two.summary["loss"], rel=1e-6)


def test_the_log_says_where_a_network_merges_numbers(caplog: pytest.LogCaptureFixture) -> None:
    net = md.problems.Network(torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0)), loss="mse")
    near = np.c_[NEAR, NEAR]
    for rows, y, said in ((X, NEAR, "inputs"), (near, FAR, "targets"), (near, NEAR, ""), (X - X.mean(0), NEAR, "")):
        caplog.clear()
        with caplog.at_level("WARNING", "medley"):
            md.Federation(net, clients=[(rows, y)]).draw(0)
        assert caplog.text.count("merges some of them: standardise them") == bool(said)
        assert f"the {said} are" in caplog.text or not said


def test_a_stamp_is_the_same_number_whichever_rows_it_stands_among(tmp_path: Path) -> None:
    for rows in (np.r_[TIMES, 0.0, -1.0], TIMES[:1], np.full(9, TIMES[0])):
        assert np.array_equal(kept_apart(rows[:, None])[:, 0], rows)
    path = tmp_path / "rows.svm"
    lines = [f"{k % 2} 1:{t!r} 2:{a!r}" for k, (t, a) in enumerate(X[:9].tolist())]
    path.write_text("\n".join([*lines, "1 2:0.1"]))
    dense, sparse = (md.datasets.svmlight(path, sparse=s, zero_based=False).X for s in (False, True))
    assert np.array_equal(dense.numpy()[:, 0], np.r_[TIMES[:9], 0.0])
    assert np.array_equal(sparse.matrix.toarray(), dense.numpy())  # type: ignore[attr-defined]
    pd = pytest.importorskip("pandas")
    d = md.datasets.frame(pd.DataFrame({"t": np.r_[TIMES, 0.0], "y": np.arange(N + 1) % 2}), "y").standardise()
    result = md.run(
        md.Newton(), md.Federation(md.problems.Logistic(mu=1e-2), data=d, partition=md.partitions.IID(2)), 2
    )
    assert d.scaling is not None
    stamp = rows_of(pd.DataFrame({"t": TIMES[:1]}), result.features, d.scaling.plain())
    assert float(stamp) == float(((TIMES[0] - d.scaling.mean) / d.scaling.deviation).float())
