"""Studies of eight data sets that R ships, and of made-up rows, in three partitions, against R on all rows together.

``python benchmarks/against_r.py`` needs R with survival, MASS, metafor and jsonlite. It writes ``against_r.json``
with the largest relative difference of each comparison, and R's figures of made-up rows, which a test computes again.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medley.statistics import Rules, Study

FILE = Path(__file__).with_suffix(".json")
EXACT = Rules(rows=1, events=1, parameters=1.0, exact=True)
PARTITIONS = ("turns", "blocks", "sorted")

DATA = r"""
suppressMessages({library(survival); library(MASS)})
folder <- commandArgs(TRUE)[1]
pick <- function(d, time, event, age, g, x) {
  d <- data.frame(time = d[[time]], event = 1 * event, age = d[[age]], g = 1 * g, x = d[[x]])
  d[complete.cases(d) & d$time > 0, ]
}
put <- function(d, name) write.csv(format(d, digits = 17), file.path(folder, paste0(name, ".csv")), row.names = FALSE)
put(pick(lung, "time", lung$status == 2, "age", lung$sex == 2, "ph.karno"), "lung")
put(pick(veteran, "time", veteran$status == 1, "age", veteran$trt == 2, "karno"), "veteran")
dead <- subset(colon, etype == 2)
put(pick(dead, "time", dead$status == 1, "age", dead$sex == 1, "nodes"), "colon")
put(pick(pbc, "time", pbc$status == 2, "age", pbc$sex == "f", "albumin"), "pbc")
put(pick(rotterdam, "dtime", rotterdam$death == 1, "age", rotterdam$hormon == 1, "nodes"), "rotterdam")
put(pick(gbsg, "rfstime", gbsg$status == 1, "age", gbsg$hormon == 1, "nodes"), "gbsg")
put(pick(mgus2, "futime", mgus2$death == 1, "age", mgus2$sex == "F", "hgb"), "mgus2")
put(pick(Melanoma, "time", Melanoma$status == 1, "age", Melanoma$sex == 1, "thickness"), "melanoma")
"""

FIGURES = r"""
suppressMessages({library(survival); library(splines); library(metafor); library(jsonlite)})
args <- commandArgs(TRUE)
tight <- glm.control(epsilon = 1e-15, maxit = 100)
both <- function(f) { s <- coef(summary(f)); c(s[, 1], s[, 2]) }
out <- list()
for (file in list.files(args[1], "-.*[.]csv$")) {
  d <- read.csv(file.path(args[1], file))
  d$site <- factor(d$site)
  p <- fitted(glm(g ~ age, binomial, d, control = tight))
  d$w <- ifelse(d$g == 1, 1 / p, 1 / (1 - p))
  exact <- coxph.control(eps = 1e-14, iter.max = 100, toler.chol = 1e-14)
  cox <- function(ties) { f <- coxph(Surv(time, event) ~ age + g + strata(site), d, ties = ties, control = exact)
                          c(coef(f), sqrt(diag(vcov(f)))) }
  km <- survfit(Surv(time, event) ~ g, d)
  varied <- Filter(function(s) length(unique(s$g)) > 1, split(d, d$site))  # Medley leaves the other sites out
  own <- sapply(varied, function(s) coef(summary(lm(x ~ age + g, s)))["age", 1:2])
  rma1 <- function(m) { r <- rma(own[1, ], sei = own[2, ], method = m, control = list(threshold = 1e-12, maxiter = 1000,
                                 tol = 1e-12)); c(coef(r), r$se, r$tau2) }
  gamma <- glm(time ~ age + g, Gamma("log"), d, control = tight)
  for (k in 1:9) gamma <- update(gamma, start = coef(gamma))  # it ends by its deviance, before coefficients do
  knots <- c(45, 60); ends <- c(0, 120)
  out[[sub(".csv", "", file)]] <- list(
    "glm, binomial" = both(glm(event ~ age + g + x, binomial, d, control = tight)),
    "glm, gaussian" = both(glm(x ~ age + g, gaussian, d, control = tight)),
    "glm, poisson" = both(glm(event ~ age + g, poisson, d, control = tight)),
    "glm, gamma with log" = both(gamma),
    "glm, fixed effects of sites" = both(glm(event ~ age + g + site, binomial, d, control = tight)),
    "glm, weighted by treatment" = unname(coef(lm(x ~ g, d, weights = w))),
    "glm, spline" = deviance(glm(event ~ bs(age, knots = knots, Boundary.knots = ends), binomial, d, control = tight)),
    "cox, efron" = cox("efron"), "cox, breslow" = cox("breslow"),
    "Kaplan-Meier" = km$surv[km$n.event > 0],
    "log-rank" = survdiff(Surv(time, event) ~ g, d)$chisq,
    "restricted means" = summary(km, rmean = 300)$table[, "rmean"],
    "correlation" = cor(d$age, d$x),
    "table" = c(mean(d$age), sd(d$age), mean(d$x), sd(d$x)),
    "meta, REML" = rma1("REML"), "meta, DL" = rma1("DL"), "meta, PM" = rma1("PM"))
}
write(toJSON(out, digits = NA, auto_unbox = TRUE), file.path(args[1], "out.json"))
"""


def _fit(fit: Any) -> list[float]:
    return [*fit.params, *fit.bse]


def _meta(study: Study, way: Any) -> list[float]:
    meta = study.meta("x ~ age + g", tau2=way)
    return [meta.random.params["age"], meta.random.bse["age"], meta.heterogeneity.tau2["age"]]


def _curve(study: Study, longest: float) -> list[list[float]]:
    curves = study.kaplan_meier("time", "event", 1.0, longest, by="g")
    survival = [float(v) for g in curves.groups for v in curves.frame(g).survival]
    return [survival, [curves.logrank().statistic], [*curves.rmst(300.0).rmst[:2]]]


def _table(study: Study) -> list[float]:
    cells = study.describe(["age", "x"], quantiles=[]).cells
    return [v for c in ("age", "x") for v in (cells[c][""].mean or 0.0, cells[c][""].sd or 0.0)]


ASKS: dict[str, Callable[[Study], list[float]]] = {
    "glm, binomial": lambda s: _fit(s.glm("event ~ age + g + x", "binomial")),
    "glm, gaussian": lambda s: _fit(s.glm("x ~ age + g")),
    "glm, poisson": lambda s: _fit(s.glm("event ~ age + g", "poisson")),
    "glm, gamma with log": lambda s: _fit(s.glm("time ~ age + g", "gamma", link="log")),
    "glm, fixed effects of sites": lambda s: _fit(s.glm("event ~ age + g", "binomial", sites="fixed")),
    "glm, weighted by treatment": lambda s: [*s.glm("x ~ g", weights=s.propensity("g ~ age").weights()).params],
    "glm, spline": lambda s: [
        s.glm("event ~ bs(age, knots=[45, 60], lower_bound=0, upper_bound=120)", "binomial").deviance
    ],
    "cox, efron": lambda s: _fit(s.cox("time ~ age + g", "event")),
    "cox, breslow": lambda s: _fit(s.cox("time ~ age + g", "event", ties="breslow")),
    "correlation": lambda s: [float(s.correlation(["age", "x"]).frame().iloc[0, 1])],
    "table": _table,
    "meta, REML": lambda s: _meta(s, "REML"),
    "meta, DL": lambda s: _meta(s, "DL"),
    "meta, PM": lambda s: _meta(s, "PM"),
}
CURVES = ("Kaplan-Meier", "log-rank", "restricted means")


def made_up() -> Any:
    """Rows of no patient."""
    rng = np.random.default_rng(65)
    n = 400
    age = rng.normal(62, 10, n).round()
    g = (rng.random(n) < 1 / (1 + np.exp(-(age - 62) / 15))).astype(int)
    time = np.ceil(rng.exponential(300 * np.exp(-0.02 * (age - 62) + 0.3 * g)))
    columns = {"time": time, "event": (rng.random(n) < 0.7).astype(int), "age": age, "g": g}
    return pd.DataFrame(columns | {"x": (rng.gamma(3, 2, n) + 0.05 * age).round(2)})


def cut(frame: Any, by: str) -> dict[str, Any]:
    """Four sites: in turns, in blocks of unequal size, or sorted by age."""
    n = len(frame)
    rows = frame.sort_values("age", kind="stable") if by == "sorted" else frame
    ends = [0, n // 2, 3 * n // 4, 7 * n // 8, n] if by == "blocks" else [k * n // 4 for k in range(5)]
    return {f"s{k}": rows.iloc[k::4] if by == "turns" else rows.iloc[ends[k] : ends[k + 1]] for k in range(4)}


def far(mine: list[float], other: Any) -> float:
    """The largest difference, relative to the figures, or to their scale if they are near 0."""
    a, b = np.array(mine, float), np.atleast_1d(np.array(other, float))
    if a.shape != b.shape:
        raise ValueError(f"{len(a)} figures here and {len(b)} in R")
    return float((np.abs(a - b) / np.maximum(np.abs(b), 1e-6)).max())


def compared(frame: Any, by: str, wanted: dict[str, Any]) -> dict[str, float | str]:
    """How far each comparison is from R's figures; the message of one that is refused."""
    out: dict[str, float | str] = {}
    sites = cut(frame, by)
    for name, ask in ASKS.items():
        try:
            out[name] = far(ask(Study(sites, rules=EXACT)), wanted[name])
        except Exception as e:  # every refusal is in the file
            out[name] = f"{type(e).__name__}: {e}"[:160]
    for name, found in zip(CURVES, _curve(Study(sites, rules=EXACT), float(frame.time.max())), strict=True):
        out[name] = far(found, wanted[name])
    return out


def main() -> None:
    """Compare, write the file and print its table."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["Rscript", "-e", DATA, folder], check=True)
        frames = {p.stem: pd.read_csv(p) for p in sorted(Path(folder).glob("*.csv"))} | {"made-up": made_up()}
        for name, frame in frames.items():
            for by in PARTITIONS:
                rows = pd.concat([f.assign(site=site) for site, f in cut(frame, by).items()])
                rows.to_csv(Path(folder) / f"{name}-{by}.csv", index=False)
        subprocess.run(["Rscript", "-e", FIGURES, folder], check=True)
        wanted = json.loads((Path(folder) / "out.json").read_text())
    found = {f"{n}-{by}": compared(frame, by, wanted[f"{n}-{by}"]) for n, frame in frames.items() for by in PARTITIONS}
    kept = {k: v for k, v in wanted.items() if k == "made-up-blocks"}
    FILE.write_text(json.dumps({"far": found, "figures of R": kept}, indent=0) + "\n", encoding="utf-8")
    by_name = defaultdict(list)
    for lines in found.values():
        for name, v in lines.items():
            by_name[name].append(v)
    print("| comparison | runs | largest relative difference | refused |\n|---|---|---|---|")
    for name, values in by_name.items():
        numbers = [v for v in values if isinstance(v, float)]
        print(f"| {name} | {len(values)} | {max(numbers, default=np.nan):.0e} | {len(values) - len(numbers)} |")


if __name__ == "__main__":
    main()
