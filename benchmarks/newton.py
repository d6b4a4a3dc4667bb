"""Newton on a9a with 142 clients to ‖∇f‖ ≤ 1e-10, beside SHED.fast, L-BFGS and scikit-learn's newton-cholesky: CPU
seconds on one thread, the best of three; L-BFGS, which is slow here, has one run and at most 60 rounds.

Reads a9a in svmlight's format from $MEDLEY_DATA/libsvm; without it there is nothing to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression

import medley as md

MU = 1e-3
CLIENTS = 142


def cpu(f: Callable[[], object], times: int = 3) -> float:
    """The best of so many."""
    durations = []
    for _ in range(times):
        began = time.process_time()
        f()
        durations.append(time.process_time() - began)
    return min(durations)


def main() -> None:
    path = Path(os.environ.get("MEDLEY_DATA", "")) / "libsvm" / "a9a"
    if not path.exists():
        print("MEDLEY_DATA holds no a9a")
        return
    torch.set_num_threads(1)
    X, y = load_svmlight_file(str(path), n_features=123)
    X = X.toarray()
    rows = np.array_split(np.random.default_rng(0).permutation(len(y)), CLIENTS)
    fed = md.Federation(md.problems.Logistic(mu=MU), clients=[(X[r], y[r]) for r in rows])
    for method, rounds, times in ((md.Newton(), 300, 3), (md.SHED.fast(), 300, 3), (md.LBFGS(), 60, 1)):
        runs = []
        seconds = cpu(
            lambda m=method, n=rounds, out=runs: out.append(
                md.run(m, fed, n, target={"grad_norm": 1e-10}, progress=False, throw=False)
            ),
            times,
        )
        last = runs[-1].history[-1]
        print(
            f"{method.name:10} {seconds:6.2f} s CPU  {last['round']:3.0f} rounds  {last['exchanges']:3.0f} exchanges  "
            f"{last['bytes_up'] / 1e6:7.1f} MB up  ‖g‖ {last['grad_norm']:.1e}  {runs[-1].status.outcome}",
            flush=True,
        )
    model = LogisticRegression(C=1 / (MU * len(y)), fit_intercept=False, solver="newton-cholesky", tol=1e-10)
    print(f"scikit-learn newton-cholesky {cpu(lambda: model.fit(X, y)):6.2f} s CPU")


if __name__ == "__main__":
    main()
