"""Linear mixed models of data sets that lme4 and nlme ship, split over sites, against lme4 on all rows together.

``python benchmarks/against_lme4.py`` needs R with lme4, nlme, MASS and jsonlite. It writes ``against_lme4.json`` with
the largest differences of each model, and lme4's figures of made-up rows, which a test computes again.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from medley.statistics import Rules, Study

FILE = Path(__file__).with_suffix(".json")
EXACT = Rules(rows=1, events=1, parameters=1.0, exact=True)


class Job(NamedTuple):
    """A model: its name, R's expression of the rows, the formula in lme4's notation, the column that is the study's
    site there, and the column whose values are dealt in turns to four sites if there is none.
    """

    name: str
    rows: str
    formula: str
    site: str = ""
    dealt: str = ""


JOBS = [
    Job("Dyestuff", "lme4::Dyestuff", "Yield ~ 1 + (1 | Batch)", dealt="Batch"),
    Job("Dyestuff2", "lme4::Dyestuff2", "Yield ~ 1 + (1 | Batch)", dealt="Batch"),
    Job("Dyestuff, batches as sites", "lme4::Dyestuff", "Yield ~ 1 + (1 | Batch)", site="Batch"),
    Job("sleepstudy", "lme4::sleepstudy", "Reaction ~ Days + (Days | Subject)", dealt="Subject"),
    Job("sleepstudy, ||", "lme4::sleepstudy", "Reaction ~ Days + (Days || Subject)", dealt="Subject"),
    Job("sleepstudy, subjects as sites", "lme4::sleepstudy", "Reaction ~ Days + (Days | Subject)", site="Subject"),
    Job("cake", "lme4::cake", "angle ~ C(recipe) * temp + (1 | group)", dealt="group"),
    Job("Pastes", "lme4::Pastes", "strength ~ 1 + (1 | batch / sample)", site="batch"),
    Job("InstEval", "lme4::InstEval", "y ~ C(service) + (1 | s)", dealt="s"),
    Job("Orthodont", "nlme::Orthodont", "distance ~ age * C(Sex) + (age | Subject)", dealt="Subject"),
    Job("Machines", "nlme::Machines", "score ~ C(Machine) + (1 | Worker / pair)", site="Worker"),
    Job("Oats", "nlme::Oats", "yield ~ nitro + C(Variety) + (1 | Block / pair)", site="Block"),
    Job("Pixel", "nlme::Pixel", "pixel ~ day + I(day**2) + (day | Dog) + (1 | Dog:pair)", site="Dog"),
    Job("Oxboys", "nlme::Oxboys", "height ~ age + (age | Subject)", dealt="Subject"),
    Job("Rail", "nlme::Rail", "travel ~ 1 + (1 | Rail)", site="Rail"),
    Job("Milk", "nlme::Milk", "protein ~ Time + C(Diet) + (Time | Cow)", dealt="Cow"),
    Job("MathAchieve", "nlme::MathAchieve", "MathAch ~ SES + C(Minority) + (SES | School)", dealt="School"),
    Job("schools as sites", "nlme::MathAchieve", "MathAch ~ SES + C(Minority) + (SES | School)", site="School"),
    Job("ChickWeight", "datasets::ChickWeight", "weight ~ Time + C(Diet) + (Time | Chick)", dealt="Chick"),
]
"""Groups named ``group`` and ``pair`` are columns that R's script adds."""

FIGURES = r"""
suppressMessages({library(lme4); library(jsonlite)})
folder <- commandArgs(TRUE)[1]
jobs <- fromJSON(file.path(folder, "jobs.json"))
tight <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhobeg = 0.02, rhoend = 1e-9, maxfun = 1e6),
                     calc.derivs = FALSE, check.conv.singular = "ignore")
# bobyqa compares values of the criterion and stops where these are equal in their last digits, so that half of theta's
# digits are left; Newton's steps on central differences of wide, extrapolated spacing find the others.
slope <- function(f, x, h = 1e-3) {
  sapply(seq_along(x), function(k) {
    d <- function(h) { e <- replace(0 * x, k, h); (f(x + e) - f(x - e)) / (2 * h) }
    (64 * d(h) - 20 * d(2 * h) + d(4 * h)) / 45
  })
}
polished <- function(f, x, free) {
  of <- function(y) f(replace(x, free, y))
  for (k in 1:4) {
    y <- x[free]
    H <- sapply(seq_along(y), function(j) {
      e <- replace(0 * y, j, 1e-3)
      (slope(of, y + e) - slope(of, y - e)) / 2e-3
    })
    x[free] <- y - solve((H + t(H)) / 2, slope(of, y))
  }
  x
}
out <- list()
for (j in seq_len(nrow(jobs))) {
  d <- read.csv(file.path(folder, paste0(j, ".csv")), stringsAsFactors = FALSE)
  text <- gsub("C(", "factor(", gsub("**", "^", jobs$formula[j], fixed = TRUE), fixed = TRUE)
  for (way in c("REML", "ML")) {
    parts <- lFormula(as.formula(text), d, REML = way == "REML", control = tight)
    f <- do.call(mkLmerDevfun, parts)
    best <- optimizeLmer(f, optimizer = "bobyqa", control = tight$optCtrl)
    x <- best$par
    free <- !(parts$reTrms$lower == 0 & x < 1e-5)  # a deviation at its boundary stays there
    if (any(free)) x <- polished(f, x, free)
    best$par <- x; best$fval <- f(x)
    m <- mkMerMod(environment(f), best, parts$reTrms, parts$fr)
    vc <- VarCorr(m)
    out[[jobs$name[j]]][[way]] <- list(
      params = unname(fixef(m)), bse = unname(sqrt(diag(as.matrix(vcov(m))))), criterion = as.numeric(-2 * logLik(m)),
      covariances = lapply(vc, function(v) unname(matrix(v, nrow(v)))), scale = sigma(m)^2, singular = isSingular(m),
      default = unname(fixef(suppressMessages(suppressWarnings(lmer(as.formula(text), d, REML = way == "REML")))))
    )
  }
}
write(toJSON(out, digits = NA, auto_unbox = FALSE), file.path(folder, "out.json"))
"""

ROWS = r"""
folder <- commandArgs(TRUE)[1]
jobs <- jsonlite::fromJSON(file.path(folder, "jobs.json"))
for (j in seq_len(nrow(jobs))) if (jobs$rows[j] != "") {
  d <- as.data.frame(eval(parse(text = jobs$rows[j])))
  for (c in names(d)) if (is.factor(d[[c]])) d[[c]] <- as.character(d[[c]])
  if (jobs$name[j] == "cake") d$group <- paste(d$recipe, d$replicate)
  within <- c(Machines = "Machine", Oats = "Variety", Pixel = "Side")[jobs$name[j]]
  if (!is.na(within)) d$pair <- paste(d[[jobs$site[j]]], d[[within]])
  write.csv(format(d, digits = 17), file.path(folder, paste0(j, ".csv")), row.names = FALSE)
}
"""


def made_up() -> Any:
    """Rows of no patient: 5 wards, the patients within them with 3 to 5 visits, and a column of theirs."""
    g = np.random.default_rng(66)
    patient = np.repeat(np.arange(60), 3 + np.arange(60) % 3)
    day = np.concatenate([np.arange(3.0 + k % 3) for k in range(60)])
    own, ward = g.normal(0, [4, 1], (60, 2))[patient], (patient % 5)
    age = g.normal(60, 9, 60).round()[patient]
    y = 20 + g.normal(0, 3, 5)[ward] + own[:, 0] + (1.5 + own[:, 1]) * day + 0.1 * age + g.normal(0, 2, len(day))
    return pd.DataFrame({"ward": ward, "patient": patient, "day": day, "age": age, "y": y.round(2)})


MADE_UP = Job("made-up", "", "y ~ day + age + (day | patient) + (1 | ward)", site="ward")


def asked(job: Job, frame: Any, reml: bool) -> Any:
    """The study's fit to rows that are split over its sites."""
    if job.site:
        sites = {str(name): rows.drop(columns=job.site) for name, rows in frame.groupby(job.site)}
    else:
        codes = pd.factorize(frame[job.dealt])[0]
        sites = {f"s{k}": frame[codes % 4 == k] for k in range(4)}
    formula = re.sub(rf"(\| ){job.site}( /|:|\))", r"\1site\2", job.formula) if job.site else job.formula
    return Study(sites, rules=EXACT).mixed(formula, reml=reml)


def far(job: Job, fit: Any, lme4: dict[str, Any]) -> dict[str, float]:
    """The largest differences: of coefficients in standard errors, and of the others relative to them; of covariances
    relative to the deviations of both, or to the residuals' if these are larger.
    """

    def b(key: str) -> np.ndarray:
        return np.array(lme4[key], float).ravel()

    covariances = list[float]()
    merged: dict[str, list[np.ndarray]] = {}
    for name, block in lme4["covariances"].items():  # "sample:batch", or "Subject.1" of a second term
        parts = name.partition(".")[0].split(":")
        group = "site" if parts == [job.site] else next(part for part in parts if part != job.site)
        merged.setdefault(group, []).append(np.atleast_2d(np.array(block, float)))
    for group, blocks in merged.items():
        mine, at = fit.covariances[group].to_numpy(), 0
        size = np.maximum(np.sqrt(np.diag(mine)), 0.01 * fit.sigma)
        for block in blocks:
            k = slice(at, at + len(block))
            covariances.append(float((np.abs(mine[k, k] - block) / np.outer(size[k], size[k])).max()))
            at = k.stop
        if at != len(mine):
            raise ValueError(f"{job.name}: lme4 has {at} effects of {group}, and the study {len(mine)}")
    return {
        "coefficients": float((np.abs(np.array(fit.params) - b("params")) / b("bse")).max()),
        "errors": float((np.abs(np.array(fit.bse) / b("bse") - 1)).max()),
        "variances": max(*covariances, abs(fit.scale / b("scale")[0] - 1)),
        "criterion": abs(fit.criterion / b("criterion")[0] - 1),
        "default": float((np.abs(b("default") - b("params")) / b("bse")).max()),
    }


def main() -> None:
    """Compare, write the file and print its table."""
    jobs = [*JOBS, MADE_UP]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jobs.json").write_text(json.dumps([job._asdict() for job in jobs]))
        made_up().to_csv(folder / f"{len(jobs)}.csv", index=False)
        for script in (ROWS, FIGURES):
            subprocess.run(["Rscript", "-e", script, name], check=True)
        wanted = json.loads((folder / "out.json").read_text())
        frames = {job.name: pd.read_csv(folder / f"{k + 1}.csv") for k, job in enumerate(jobs)}
    found, sizes = {}, {}
    for job in jobs:
        for way, figures in wanted[job.name].items():
            fit = asked(job, frames[job.name], way == "REML")
            found[f"{job.name}, {way}"] = far(job, fit, figures)
            sizes[f"{job.name}, {way}"] = [fit.nobs, len(fit.sites), bool(fit.singular)]
    kept = {"far": found, "rows, sites, singular": sizes, "figures of lme4": wanted[MADE_UP.name]}
    FILE.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")
    print("| model | rows | sites | coefficients, in errors | errors | variances | criterion | lme4 as it comes |")
    print("|---|---|---|---|---|---|---|---|")
    for name, line in found.items():
        rows, sites, singular = sizes[name]
        print(
            f"| {name}{', singular' * singular} | {rows} | {sites} | "
            + " | ".join(f"{v:.0e}" for v in line.values())
            + " |"
        )


if __name__ == "__main__":
    main()
