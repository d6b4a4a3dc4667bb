"""How often the 95 % intervals of a study with imputed cells hold the truth: the figures of docs/study.md.

python benchmarks/imputation_coverage.py run     # a line for each 50 made-up studies; begins where it stopped
python benchmarks/imputation_coverage.py page
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medley.statistics import Rules, Study

OUT = Path(__file__).with_suffix(".jsonl")
DRAWS = 1000
CHUNK = 50
OPEN = Rules(rows=1, events=1, parameters=1.0, exact=True)
TRUTH = {"linear": {"x": 1.0, "z": -0.5}, "logistic": {"x": 0.8, "z": -0.5}}


def rows(kind: str, g: np.random.Generator) -> Any:
    """Patients with an outcome y, and columns x and z; a third lack x, more of them if y or z is large.

    Of a logistic outcome, x is normal given y and z, so that its regression on them is the right model.
    """
    n = 90
    z = g.normal(size=n)
    b = TRUTH[kind]
    if kind == "linear":
        x = 0.5 * z + g.normal(size=n)
        y = 2 + b["x"] * x + b["z"] * z + g.normal(size=n)
    else:
        # P(y = 1 | z) and x | y, z ~ N(.5 z + b_x y, 1) give logit P(y = 1 | x, z) = c + b_x x + b_z z.
        y = 1.0 * (g.random(n) < 1 / (1 + np.exp(-(b["z"] + 0.5 * b["x"]) * z)))
        x = 0.5 * z + b["x"] * y + g.normal(size=n)
    lacks = g.random(n) < 1 / (1 + np.exp(1.2 - 0.8 * (y - y.mean()) - 0.5 * z))
    return pd.DataFrame({"x": np.where(lacks, np.nan, x), "z": z, "y": y})


def held(kind: str, seed: int) -> dict[str, list[bool]]:
    """Whether the intervals of a made-up study of three hospitals hold the truth: imputed, and complete rows alone."""
    g = np.random.default_rng([seed, len(kind)])
    study = Study({name: rows(kind, g) for name in ("Bern", "Chur", "Zug")}, rules=OPEN)
    family = "gaussian" if kind == "linear" else "binomial"
    out = {}
    for name, of in (("imputed", study.impute(["x", "z", "y"], m=20, seed=seed)), ("complete rows", study)):
        ends = of.glm("y ~ x + z", family=family).conf_int()
        out[name] = [bool(ends.loc[c].iloc[0] <= v <= ends.loc[c].iloc[1]) for c, v in TRUTH[kind].items()]
    return out


def run() -> None:
    """Make the draws that the file lacks."""
    lines = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    done = {(line["kind"], line["first"]) for line in lines}
    for kind in TRUTH:
        for first in range(0, DRAWS, CHUNK):
            if (kind, first) in done:
                continue
            each = [held(kind, seed) for seed in range(first, first + CHUNK)]
            counts = {name: np.sum([e[name] for e in each], 0).tolist() for name in each[0]}
            with OUT.open("a") as file:
                file.write(json.dumps({"kind": kind, "first": first, "draws": CHUNK, **counts}) + "\n")


def page() -> None:
    """Print the shares."""
    lines = [json.loads(line) for line in OUT.read_text().splitlines()]
    print("| outcome | draws | imputed: x, z | complete rows: x, z |\n|---|---|---|---|")
    for kind in TRUTH:
        mine = [line for line in lines if line["kind"] == kind]
        n = sum(line["draws"] for line in mine)
        if n:
            shares = [np.sum([line[name] for line in mine], 0) / n for name in ("imputed", "complete rows")]
            print(f"| {kind} | {n} | " + " | ".join(", ".join(f"{v:.3f}" for v in s) for s in shares) + " |")


if __name__ == "__main__":
    page() if sys.argv[1:] == ["page"] else run()
