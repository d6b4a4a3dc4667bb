"""Writes reference_r.json: what R's survival::coxph says of start-stop rows, strata and clusters, all rows together.

Run it where Rscript with survival and jsonlite, and lifelines for its data sets, are installed:
``PYTHONPATH=tests:src python tests/statistics/reference_r.py``. It prints how far Medley's fits are from R's, for R's
own data sets, too, of which only these distances are kept.
"""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

FITTING = r"""
library(survival); library(jsonlite)
args <- commandArgs(TRUE)
jobs <- fromJSON(file.path(args[1], "jobs.json"), simplifyVector = FALSE)
out <- list()
for (name in names(jobs)) {
  job <- jobs[[name]]
  d <- read.csv(file.path(args[1], job$file), stringsAsFactors = TRUE)
  call <- list(as.formula(job$formula), data = d, ties = job$ties,
               control = coxph.control(eps = 1e-14, iter.max = 100, toler.chol = 1e-14))
  if (!is.null(job$cluster)) call$cluster <- d[[job$cluster]]
  f <- do.call(coxph, call)
  naive <- if (is.null(f$naive.var)) f$var else f$naive.var
  out[[name]] <- list(params = unname(f$coefficients), bse = sqrt(diag(f$var)), naive = sqrt(diag(naive)),
                      llf = f$loglik[2], n = f$n)
}
write(toJSON(out, digits = NA, auto_unbox = TRUE), file.path(args[1], "out.json"))
"""

OWN = r"""
library(survival)
folder <- commandArgs(TRUE)[1]
put <- function(d, name) write.csv(d, file.path(folder, paste0(name, ".csv")), row.names = FALSE, na = "")
put(heart, "heart"); put(subset(cgd, select = -random), "cgd")
put(bladder, "bladder"); put(subset(bladder1, stop > start), "bladder1"); put(veteran, "veteran"); put(lung, "lung")
put(mgus2, "mgus2")
"""

R_OWN: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "heart": ("id", "stop ~ age + year + surgery + C(transplant)", "event", {"entry": "start", "cluster": "id"}),
    "heart, strata": ("id", "stop ~ age + year + surgery", "event", {"entry": "start", "strata": "transplant"}),
    "cgd": ("id", "tstop ~ C(treat) + C(sex) + age", "status", {"entry": "tstart", "cluster": "id"}),
    "cgd, strata": (
        "id", "tstop ~ C(treat) + age + steroids", "status", {"entry": "tstart", "strata": "enum", "cluster": "id"},
    ),
    "bladder": ("id", "stop ~ rx + number + size", "event", {"strata": "enum", "cluster": "id"}),
    "bladder1": ("id", "stop ~ number + size", "once", {"entry": "start", "cluster": "id"}),
    "veteran": ("row", "time ~ karno + C(trt) + age", "status", {"strata": "celltype"}),
    "veteran, two strata": (
        "row", "time ~ karno + age", "status", {"strata": ["celltype", "prior"], "ties": "breslow"},
    ),
    "lung": ("row", "time ~ age + C(sex)", "died", {"cluster": "inst"}),
    "lung, strata": ("row", "time ~ age + C(sex)", "died", {"strata": "inst"}),
    "mgus2 by age": ("id", "end ~ C(sex) + hgb + creat", "death", {"entry": "age"}),
}  # fmt: skip
"""R's own data sets: the column by which rows are dealt, formula, event and settings."""


def of_r(folder: Path, name: str) -> Any:
    """A data set of R."""
    import pandas as pd

    short = name.split(",")[0].split(" ")[0]
    frame = pd.read_csv(folder / f"{short}.csv")
    frame["row"] = np.random.default_rng(0).permutation(len(frame))
    if short == "bladder1":
        frame["once"] = (frame["status"] == 1).astype(int)
    if short == "lung":
        frame = frame.dropna(subset=["inst"]).assign(died=lambda f: f["status"] - 1)
    if short == "mgus2":
        frame = frame.dropna(subset=["hgb", "creat"]).assign(end=lambda f: f["age"] + f["futime"] / 12)
    return frame[frame["time" if "time" in frame else "stop"] > 0] if short in ("lung", "veteran") else frame


def job(formula: str, event: str, how: dict[str, Any]) -> dict[str, Any]:
    """The same fit for R, with a baseline for each site."""
    stop, right = (s.strip() for s in formula.split("~"))
    times = f"{how['entry']}, {stop}" if "entry" in how else stop
    strata = how.get("strata", ())
    by = ", ".join(["site", *([strata] if isinstance(strata, str) else strata)])
    right = right.replace("C(", "factor(")
    out = {"formula": f"Surv({times}, {event}) ~ {right} + strata({by})", "ties": how.get("ties", "efron")}
    return out | ({"cluster": "rcluster"} if "cluster" in how else {})


def by_r(cases: dict[str, tuple[Any, str, str, str, dict[str, Any]]], folder: Path) -> dict[str, Any]:
    """R's figures of these cases: frame, the column by which rows are dealt, formula, event, settings; by partition."""
    from support.intervals import PARTITIONS, dealt

    jobs = {}
    for k, (name, (frame, deal, formula, event, how)) in enumerate(cases.items()):
        for part in PARTITIONS:
            site = dealt(frame, deal, part)
            cluster = [f"{s} {c}" for s, c in zip(site, frame[how.get("cluster", deal)], strict=True)]
            file = f"{k}{part}.csv"
            frame.assign(site=site, rcluster=cluster).to_csv(folder / file, index=False)
            jobs[f"{name}: {part}"] = job(formula, event, how) | {"file": file}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(["Rscript", "-e", FITTING, str(folder)], check=True)
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


def apart(case: Any, part: str, there: dict[str, Any]) -> float:
    """The largest relative difference of coefficients, errors and the log-likelihood."""
    from medley.statistics import Rules, Study
    from support.intervals import tables

    frame, deal, formula, event, how = case
    fit = Study(tables(frame, deal, part), rules=Rules(1, 1, 1.0, exact=True)).cox(formula, event, **how)
    assert fit.nobs == there["n"], (fit.nobs, there["n"])
    a = np.array([*fit.params, *fit.bse, fit.llf])
    b = np.hstack([np.atleast_1d(there["params"]), np.atleast_1d(there["bse"]), there["llf"]])
    return float((np.abs(a - b) / np.maximum(np.abs(b), 1e-3 * np.abs(b).max())).max())


def main() -> None:
    from support.intervals import FITS, LIFELINES, intervals, of_lifelines

    logging.disable(logging.WARNING)
    rows = intervals()
    cases: dict[str, Any] = {f"made, {n}": (rows, "patient", f, "event", how) for n, (f, how) in FITS.items()}
    cases |= {f"lifelines, {n}": (of_lifelines(n), *rest) for n, rest in LIFELINES.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["Rscript", "-e", OWN, name], check=True)
        cases |= {f"R, {n}": (of_r(folder, n), *rest) for n, rest in R_OWN.items()}
        found = by_r(cases, folder)
    far = {}
    for key, there in found.items():
        case, _, part = key.rpartition(": ")
        far[key] = apart(cases[case], part, there)
        print(f"{key:45} {far[key]:.1e}", flush=True)
    print(f"{len(far)} fits, {max(far.values()):.1e} at most")
    kept = {key: v for key, v in found.items() if not key.startswith("R, ")}
    path = Path(__file__).parent / "reference_r.json"
    text = json.dumps({"fits": kept, "apart": {k: float(f"{v:.1e}") for k, v in far.items()}}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
