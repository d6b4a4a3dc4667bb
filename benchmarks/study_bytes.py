"""Bytes that a site sends for a logistic regression: `statistics.glm`, Newton and SHED, by the number of columns.

python benchmarks/study_bytes.py 10 100 1000
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import medley as md

SITES = 4
GAP = 1e-10
"""Sites, and the distance of the loss to its least value at which a method has arrived."""


def problem(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [20 d, d] of independent columns, and outcomes of 0 and 1."""
    g = np.random.default_rng(0)
    X = g.normal(size=(20 * d, d))
    y = g.random(len(X)) < 1 / (1 + np.exp(-X @ g.normal(size=d) / np.sqrt(d)))
    return X, y.astype(int)


def study(X: np.ndarray, y: np.ndarray) -> tuple[int, float]:
    """Exchanges of a fit without intercept, and bytes that a site sends."""
    import pandas as pd

    names = [f"x{k}" for k in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=names).assign(y=y)
    rules = md.statistics.Rules(rows=1, events=1, parameters=1.0)
    s = md.statistics.Study({str(k): frame.iloc[k::SITES] for k in range(SITES)}, rules=rules)
    fit = s.glm(f"y ~ 0 + {' + '.join(names)}", "binomial")
    return fit.exchanges, fit.bytes_up / SITES


def run(method: md.Algorithm, X: np.ndarray, y: np.ndarray, rounds: int) -> tuple[int, float] | None:
    """Rounds of a method until its loss is at its least value, and bytes that a site sends; None: not within these."""
    data = md.datasets.Dataset(torch.from_numpy(X), torch.from_numpy(y), classes=2)
    fed = md.Federation(md.problems.Logistic(mu=1e-12), data=data, partition=md.partitions.IID(SITES))
    least = md.run(md.Newton(), fed, 12, dtype="float64", progress=False).history[-1]["loss"]
    for row in md.run(method, fed, rounds, dtype="float64", progress=False).history:
        if row["loss"] - least < GAP:
            return row["round"], row["bytes_up"] / SITES
    return None


def main(columns: list[int]) -> None:
    """A line for each method and number of columns."""
    for d in columns:
        X, y = problem(d)
        results = {"statistics.glm": study(X, y)}
        results |= {name: run(m, X, y, 60) for name, m in {"Newton": md.Newton(), "SHED.fast": md.SHED.fast()}.items()}
        for name, traffic in results.items():
            what = "not within 60 rounds"
            if traffic is not None:
                what = f"{traffic[0]:3} exchanges or rounds {traffic[1] / 1e3:12.1f} kB"
            print(f"d = {d:5}  {name:16} {what}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("columns", nargs="*", type=int, default=[10, 100])
    main(parser.parse_args().columns)
