"""Multiple imputation of data sets that R ships, by Medley and by R's mice with the same models: pooled figures.

``python benchmarks/against_mice.py`` needs R with mice, MASS, survival and jsonlite. Rows are a study of two
sites, and one table for mice; both impute ``m`` times by ``norm`` and ``logreg`` and fit the same regression. It writes
``against_mice.json``. Pooled figures of m imputations have a Monte-Carlo error, by which differences are divided.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from medley.statistics import Rules, Study

FILE = Path(__file__).with_suffix(".json")
EXACT = Rules(rows=1, events=1, parameters=1.0, pooled=True, exact=True)


class Job(NamedTuple):
    """A comparison: R's expression of the rows, numbers all, of which 0 and 1 are two categories; the columns that are
    imputed together; the analysis, and its family; how many imputations, and visits of a column.
    """

    name: str
    rows: str
    columns: tuple[str, ...]
    formula: str
    family: str
    m: int
    iterations: int


JOBS = [
    Job(
        "births, holes made",
        "holes(MASS::birthwt[c('age', 'lwt', 'smoke', 'ht', 'bwt')], 'smoke')",
        ("age", "lwt", "smoke", "ht", "bwt"),
        "bwt ~ age + lwt + smoke",
        "gaussian",
        400,
        1,
    ),
    Job(
        "colon, holes made",
        "with(subset(survival::colon, etype == 2),"
        " holes(data.frame(age, sex, nodes = log1p(nodes), obstruct, dead = status), c('sex', 'nodes')))",
        ("age", "sex", "nodes", "obstruct", "dead"),
        "dead ~ age + sex + nodes + obstruct",
        "binomial",
        200,
        3,
    ),
    Job(
        "nhanes2, age in two",
        "with(mice::nhanes2, data.frame(old = 1 * (age != '20-39'), bmi, chl))",
        ("old", "bmi", "chl"),
        "chl ~ old + bmi",
        "gaussian",
        200,
        5,
    ),
]

SCRIPT = r"""
suppressMessages({library(mice); library(jsonlite)})
folder <- commandArgs(TRUE)[1]
jobs <- fromJSON(file.path(folder, "jobs.json"))
holes <- function(d, columns) {  # a fifth of their cells, more of them where the last column is large
  set.seed(66)
  y <- rank(d[[ncol(d)]]) / nrow(d)
  for (c in columns) d[[c]][runif(nrow(d)) < 0.1 + 0.25 * y] <- NA
  d
}
out <- list()
for (j in seq_len(nrow(jobs))) {
  d <- eval(parse(text = jobs$rows[j]))
  write.csv(d, file.path(folder, paste0(j, ".csv")), row.names = FALSE, na = "")
  d <- d[jobs$columns[[j]]]
  two <- sapply(d, function(x) all(x %in% c(0, 1, NA)))
  d[two] <- lapply(d[two], factor)
  method <- ifelse(colSums(is.na(d)) == 0, "", ifelse(two, "logreg", "norm"))
  imp <- mice(d, m = jobs$m[j], maxit = jobs$iterations[j], method = method, visitSequence = names(d),
              printFlag = FALSE, seed = 66, ridge = 0)
  fits <- lapply(seq_len(imp$m), function(k) {
    d <- complete(imp, k)
    if (jobs$family[j] == "gaussian") lm(as.formula(jobs$formula[j]), d)
    else glm(as.formula(jobs$formula[j]), binomial, d)
  })
  s <- summary(pool(as.mira(fits)))
  out[[jobs$name[j]]] <- list(
    params = s$estimate, bse = s$std.error, df = s$df,
    each = t(sapply(fits, coef)), variances = t(sapply(fits, function(f) diag(vcov(f)))),
    logged = if (is.null(imp$loggedEvents)) 0 else nrow(imp$loggedEvents)
  )
}
write(toJSON(out, digits = NA), file.path(folder, "out.json"))
"""


def spread(each: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Monte-Carlo errors of pooled coefficients and pooled errors, from coefficients and variances by imputation
    [m, p]: of means, and by a jackknife.
    """
    m = len(each)

    def pooled(keep: np.ndarray) -> np.ndarray:
        b = each[keep]
        return np.sqrt(variances[keep].mean(0) + (1 + 1 / len(b)) * b.var(0, ddof=1))

    left = np.array([pooled(np.arange(m) != k) for k in range(m)])
    return each.std(0, ddof=1) / np.sqrt(m), np.sqrt((m - 1) / m * ((left - left.mean(0)) ** 2).sum(0))


def compared(job: Job, frame: Any, r: dict[str, Any]) -> dict[str, Any]:
    """The pooled figures of both, and their differences divided by their Monte-Carlo errors."""
    sites = {f"s{k}": frame.iloc[k::2] for k in range(2)}
    imputed = Study(sites, rules=EXACT).impute([*job.columns], m=job.m, iterations=job.iterations, seed=66)
    fit = imputed.glm(job.formula, family=job.family)
    each = np.array([f.b for f in fit.fits]), np.array([np.diag(f.covariance) for f in fit.fits])
    mine, mice = spread(*each), spread(np.array(r["each"], float), np.array(r["variances"], float))
    b, errors = np.array(r["params"], float), np.array(r["bse"], float)
    z = (fit.b - b) / np.hypot(mine[0], mice[0]), (np.array(fit.bse) - errors) / np.hypot(mine[1], mice[1])
    most = np.abs((fit.b - b) / errors).max(), np.abs(np.array(fit.bse) / errors - 1).max()
    return {
        "rows": len(frame),
        "imputed cells": int(imputed.counts.to_numpy().sum()),
        "m": job.m,
        "names": [*fit.names],
        "medley": [fit.b.tolist(), np.array(fit.bse).tolist()],
        "mice": [b.tolist(), errors.tolist()],
        "z of coefficients": z[0].round(3).tolist(),
        "z of errors": z[1].round(3).tolist(),
        "most in errors": [float(v) for v in most],
    }


def run() -> None:
    """Compare, and write the file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jobs.json").write_text(json.dumps([job._asdict() for job in JOBS]))
        subprocess.run(["Rscript", "-e", SCRIPT, name], check=True)
        wanted = json.loads((folder / "out.json").read_text())
        frames = [pd.read_csv(folder / f"{k + 1}.csv") for k in range(len(JOBS))]
    found = dict[str, Any]()
    for job, frame in zip(JOBS, frames, strict=True):
        found[job.name] = compared(job, frame, wanted[job.name])
        FILE.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


def page() -> None:
    """Print the table."""
    print(
        "| data | rows | imputed cells | m | z of coefficients | z of errors | largest difference |\n"
        + "|---" * 7
        + "|"
    )
    for name, line in json.loads(FILE.read_text()).items():
        z = [", ".join(f"{v:.1f}" for v in line[f"z of {of}"]) for of in ("coefficients", "errors")]
        b, errors = line["most in errors"]
        head = f"| {name} | {line['rows']} | {line['imputed cells']} | {line['m']} | "
        print(head + f"{z[0]} | {z[1]} | {b:.3f} errors; {100 * errors:.1f} % of an error |")


if __name__ == "__main__":
    if sys.argv[1:] != ["page"]:
        run()
    page()
