"""Treatment effects over sites against the truth: coverage of intervals, type I errors, power, equality with one table.

python benchmarks/effects.py             # goes on where benchmarks/effects.jsonl ends, then prints the tables

**Coverage**: three sites of 150 patients, four confounders, a linear outcome and a treatment whose effect is 1 for
everybody; `glm` with weights for all patients, for the treated and for overlap, each in every draw.

**The design of FedECA** (Ogier du Terrail et al., Nature Communications 16, 2025), at a smaller size: ten normal
columns with correlations 0.5^|i − j|, a treatment by a logistic model whose slope sets the overlap, and Weibull times
with a hazard ratio; `cox` with weights for all patients, with one baseline for each of three sites. FedECA has one
baseline for all, so its figures and these are of two estimators; equality is with the same estimator on one table.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medley.statistics import Rules, Study, Weights

FILE = Path(__file__).with_suffix(".jsonl")
SITES = ("A", "B", "C")
BATCH = 50
COVERAGE = 1000
ESTIMANDS = ("ATE", "ATT", "overlap")
OVERLAPS = (0.5, 1.0, 2.0)
RATIOS = (1.0, 0.6)
DRAWS = 80
COLUMNS = 10
PATIENTS = 450


def confounded(g: np.random.Generator) -> Any:
    """Patients whose treatment depends on what their outcome depends on; its effect is 1."""
    x = g.normal(0, 1, (PATIENTS, 4))
    treated = g.random(PATIENTS) < 1 / (1 + np.exp(-x @ [0.5, -0.4, 0.3, 0.2]))
    y = x @ [1.0, 0.5, -0.5, 0.8] + treated + g.normal(0, 1 + 0.5 * treated, PATIENTS)
    return pd.DataFrame(x, columns=[f"x{k}" for k in range(4)]).assign(treated=treated.astype(int), y=y)


def fedeca(g: np.random.Generator, overlap: float, ratio: float) -> Any:
    """Patients of FedECA's design: a large ``overlap`` is a steep propensity, so that few patients are alike."""
    places = np.arange(COLUMNS)
    x = g.multivariate_normal(np.zeros(COLUMNS), 0.5 ** np.abs(places[:, None] - places), PATIENTS)
    slopes = np.where(places % 2, -0.3, 0.3)
    treated = g.random(PATIENTS) < 1 / (1 + np.exp(-overlap * x @ slopes))
    risk = x @ np.linspace(0.3, 0, COLUMNS) + np.log(ratio) * treated
    time = (g.exponential(1, PATIENTS) / np.exp(risk)) ** (1 / 1.5)
    end = g.uniform(0.5, 3, PATIENTS)
    table = pd.DataFrame(x, columns=[f"x{k}" for k in places]).assign(treated=treated.astype(int))
    return table.assign(time=np.minimum(time, end), event=(time <= end).astype(int))


def propensity(columns: int) -> str:
    """The formula of the propensity model."""
    return "treated ~ " + " + ".join(f"x{k}" for k in range(columns))


def study(table: Any) -> Study:
    """The study of three sites with a third of the rows each."""
    size = PATIENTS // len(SITES)
    sites = {name: table.iloc[k * size : (k + 1) * size] for k, name in enumerate(SITES)}
    return Study(sites, rules=Rules(rows=1, events=1, parameters=1.0, exact=True))


def on_one_table(table: Any) -> float:
    """The log hazard ratio on one table: weights by Newton's steps, and a weighted partial likelihood for each site."""
    Z = np.column_stack([np.ones(PATIENTS), table[[f"x{k}" for k in range(COLUMNS)]]])
    a = table["treated"].to_numpy(float)
    gamma = np.zeros(Z.shape[1])
    for _ in range(25):
        e = 1 / (1 + np.exp(-Z @ gamma))
        gamma = gamma + np.linalg.solve(Z.T @ ((e * (1 - e))[:, None] * Z), Z.T @ (a - e))
    w = a / e + (1 - a) / (1 - e)
    site = np.arange(PATIENTS) // (PATIENTS // len(SITES))
    time = table["time"].to_numpy()
    at_risk = (time[None] >= time[:, None]) & (site[None] == site[:, None])
    events = w * table["event"].to_numpy()
    b = 0.0
    for _ in range(25):
        r = w * np.exp(b * a)
        mean = at_risk @ (r * a) / (at_risk @ r)
        b += float(events @ (a - mean) / (events @ (mean * (1 - mean))))
    return b


def rounded(*values: float) -> list[float]:
    """Figures as the file has them."""
    return [float(f"{v:.5g}") for v in values]


def coverage(batch: int) -> dict[str, Any]:
    """For each draw and estimand, whether the interval of 95 % has the truth."""
    inside = []
    for draw in range(batch * BATCH, (batch + 1) * BATCH):
        table = confounded(np.random.default_rng([65, draw]))
        for estimand in ESTIMANDS:
            fit = study(table).glm("y ~ treated", weights=Weights(propensity(4), estimand))
            low, high = fit.conf_int().loc["treated"]
            inside.append([estimand, bool(low <= 1 <= high), *rounded(fit.params["treated"], fit.bse["treated"])])
    return {"inside": inside}


def design(overlap: float, ratio: float) -> dict[str, Any]:
    """For each draw the log hazard ratio, its error, its p-value, and how far it is from that of one table."""
    lines = []
    for draw in range(DRAWS):
        table = fedeca(np.random.default_rng([66, int(10 * overlap), int(10 * ratio), draw]), overlap, ratio)
        fit = study(table).cox("time ~ treated", "event", weights=Weights(propensity(COLUMNS)))
        b = float(fit.params["treated"])
        gap = abs(b - on_one_table(table))
        lines.append(rounded(b, fit.bse["treated"], fit.pvalues["treated"], gap))
    return {"draws": lines}


def tables(results: dict[str, Any]) -> str:
    """The two tables, in Markdown."""
    inside = [line for key, value in results.items() if key.startswith("coverage") for line in value["inside"]]
    out = ["| weights for | draws | intervals with the truth | mean effect | SD of effects | mean error |"]
    out.append("|---|---|---|---|---|---|")
    for estimand in ESTIMANDS:
        mine = [line for line in inside if line[0] == estimand]
        effects = np.array([line[2] for line in mine])
        share = np.mean([line[1] for line in mine])
        error = np.mean([line[3] for line in mine])
        out.append(
            f"| {estimand} | {len(mine)} | {share:.3f} | {effects.mean():.3f} | {effects.std():.3f} | {error:.3f} |"
        )
    out += ["", "| overlap | hazard ratio | draws | p < 0.05 | mean log hazard ratio | SD | mean error | largest gap |"]
    out.append("|---|---|---|---|---|---|---|---|")
    for overlap in OVERLAPS:
        for ratio in RATIOS:
            line = results.get(f"design {overlap} {ratio}")
            if line is None:
                continue
            b, error, p, gap = np.array(line["draws"]).T
            out.append(
                f"| {overlap:g} | {ratio:g} | {len(b)} | {(p < 0.05).mean():.2f} | {b.mean():.3f} | {b.std():.3f} | "
                f"{error.mean():.3f} | {gap.max():.1e} |"
            )
    return "\n".join(out)


def main() -> None:
    """Compute what the file lacks, a line at a time, and print the tables."""
    logging.disable(logging.WARNING)
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    results: dict[str, Any] = {line["key"]: line for line in map(json.loads, lines)}
    jobs: dict[str, Any] = {f"coverage {k}": (coverage, (k,)) for k in range(COVERAGE // BATCH)}
    jobs |= {f"design {o} {r}": (design, (o, r)) for o in OVERLAPS for r in RATIOS}
    for key, (job, arguments) in jobs.items():
        if key not in results:
            results[key] = {"key": key, **job(*arguments)}
            with FILE.open("a") as file:
                file.write(json.dumps(results[key]) + "\n")
            print(key, flush=True)
    print(tables(results))


if __name__ == "__main__":
    main()
