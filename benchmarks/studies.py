"""Random studies against fits of all rows together by statsmodels and lifelines: equal, or refused with a true reason.

python benchmarks/studies.py --count 2000 --save benchmarks/studies.jsonl   # goes on where the file ends

A study draws a family, a link, columns (numbers of any unit, far from 0, skewed; categories with rare levels), weights,
a split over sites, some with a single row, robust errors, and whether sums are secure. It ends as one of

- equal: coefficients, standard errors and likelihoods differ by less than 1e-8, relative to the reference; under secure
  sums by less than 1e-4; quantiles by no more than their stated error
- true: the study is refused, and all rows confirm the reason: no maximum (a linear program finds a direction without
  end), a maximum at the edge of possible means, columns that are combinations (by their singular values), counts no
  more dispersed than Poisson's, an outcome of one value
- wrong: anything else
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import medley as md
from medley.statistics import Rules, Study

OPEN = Rules(rows=1, events=1, parameters=1.0, pooled=True, exact=True)

LINKS = {
    "gaussian": ("identity",), "binomial": ("logit", "logit", "log"), "poisson": ("log",), "gamma": ("log", "inverse"),
    "negative_binomial": ("log",), "cox": ("",), "curve": ("",), "table": ("",),
}  # fmt: skip

EQUAL = 1e-8
MASKED = 1e-4


class Drawn(NamedTuple):
    """A study: all rows with their site, what to fit, and the design matrix that a reference uses."""

    rows: Any
    family: str
    link: str
    formula: str
    how: dict[str, Any]
    X: np.ndarray
    secure: bool


def sample(seed: int) -> Drawn:
    """The study of this seed."""
    import pandas as pd

    g = np.random.default_rng(seed)
    family = str(g.choice([*LINKS]))
    link = str(g.choice(LINKS[family]))
    n = int(g.choice([60, 150, 400, 1500]))
    z = g.normal(size=(n, 2))
    k = int(g.integers(2, 5))
    rare = g.random() < 0.3
    secure = bool(g.random() < 0.1)
    level = g.choice(k, n, p=np.r_[np.full(k - 1, (1 - (r := 0.02 if rare else 1 / k)) / (k - 1)), r])
    unit = 10.0 ** g.choice([0, 0, 0, -9, -3, 3, 9])
    place = float(g.choice([0, 0, 0, 30, 1e3, 1e5, 1e6]))
    skewed = g.random() < 0.2
    a = unit * (place + z[:, 0])
    b = np.exp(1.5 * z[:, 1]) if skewed else z[:, 1]
    effect = g.normal(0, 0.5, k)
    eta = 0.5 * z[:, 0] * g.normal() + 0.3 * np.log(np.abs(b) + 1) * g.normal() + effect[level]
    columns: dict[str, Any] = {"a": a, "b": b, "c": np.array([f"v{j}" for j in level])}
    mean = np.exp(eta)
    if family == "gaussian":
        y = (eta + g.normal(size=n)) * 10.0 ** g.choice([0, -6, 6])
    elif family == "binomial":
        shift = float(g.choice([0, -2, -4]))
        p = (
            1 / (1 + np.exp(-eta * g.choice([1, 4]) - shift))
            if link == "logit"
            else np.minimum(np.exp(0.3 * eta - 1.5), 0.9)
        )
        y = 1.0 * (g.random(n) < p)
    elif family == "gamma":
        shape = float(g.choice([0.7, 2, 20]))
        y = g.gamma(shape, (1 / (2 + 0.2 * np.tanh(eta)) if link == "inverse" else mean) / shape)
    else:
        alpha = float(g.choice([0.05, 0.5, 2]))
        y = g.poisson(mean * (g.gamma(1 / alpha, alpha, n) if family == "negative_binomial" else 1)) * 1.0
    months = g.exponential(1 / mean).clip(1e-3).round(int(g.choice([1, 3]))) + 0.1
    columns |= {"y": y, "months": months, "event": 1.0 * (g.random(n) < 0.7), "w": g.integers(0, 4, n) * 1.0}
    right = str(g.choice(["a", "a + b", "a + C(c)", "a + b + C(c)", "C(c)", "a + b + C(c) + a:b"]))
    dummies = [1.0 * (columns["c"] == v) for v in sorted({*columns["c"]})[1:]]
    one = np.ones(n)
    s = (a - a.mean()) / unit
    parts = {"a": [s], "b": [b], "C(c)": dummies, "a:b": [s * b]}
    X = np.column_stack([one, *(v for term in right.split(" + ") for v in parts[term])])
    how: dict[str, Any] = {}
    if family in ("gaussian", "binomial", "poisson") and g.random() < 0.25:
        how["cov"] = str(g.choice(["HC0", "HC1"]))
    elif family in ("gaussian", "poisson") and g.random() < 0.2:
        how["weights"] = "w"
    return Drawn(pd.DataFrame(columns | {"at": _split(g, n, s)}), family, link, right, how, X, secure)


def _split(g: np.random.Generator, n: int, by: np.ndarray) -> np.ndarray:
    """The site of each row: at random, unequally, sorted by a column, or with sites of a single row."""
    way = g.integers(4)
    k = int(g.integers(2, 7))
    if way == 0:
        return np.asarray(g.integers(0, k, n))
    if way == 1:
        return np.minimum((g.random(n) ** 3 * k).astype(int), k - 1)
    if way == 2:
        return np.asarray(np.argsort(np.argsort(by, kind="stable")) * k // n)
    out = g.integers(2, 4, n)
    out[g.choice(n, 2, replace=False)] = 0, 1
    return out


def sites(d: Drawn) -> dict[str, Any]:
    """The frames of the sites."""
    return {f"S{k}": part.drop(columns="at") for k, part in d.rows.groupby("at")}


def outcome(seed: int) -> dict[str, Any]:
    """What came of the study of this seed: equal, true or wrong, with its largest error or its sentence."""
    d = sample(seed)
    out = {"seed": seed, "family": d.family, "link": d.link, "formula": d.formula, **d.how, "secure": d.secure}
    secure = md.SecureSum(bits=64, bound=2.0**40) if d.secure else None
    if d.secure and len({*d.rows["at"]}) < 3:
        secure = None
    study = Study(sites(d), rules=OPEN, secure=secure)
    out["secure"] = secure is not None
    try:
        error = {"curve": _curve, "table": _table, "cox": _cox}.get(d.family, _glm)(d, study)
    except md.MedleyError as e:
        return out | {"outcome": "true" if _is_true(d, str(e)) else "wrong", "said": f"{type(e).__name__}: {e}"[:300]}
    limit = MASKED if secure is not None else EQUAL
    return out | {"outcome": "equal" if error <= limit else "wrong", "error": error}


def _far(mine: Any, right: Any, least: float = 1e-12) -> float:
    """The largest relative difference."""
    a = np.asarray(mine, float)
    b = np.asarray(right, float)
    return float((np.abs(a - b) / np.maximum(np.abs(b), least)).max())


def _glm(d: Drawn, study: Study) -> float:
    """The error of a generalised linear model: of η in standard errors, of standard errors and of the likelihood."""
    import statsmodels.api as sm

    fit = study.glm(f"y ~ {d.formula}", d.family, link=d.link, **d.how)
    use = (d.rows["w"] > 0).to_numpy() if "weights" in d.how else np.ones(len(d.rows), bool)
    X = d.X[use]
    y = d.rows["y"].to_numpy()[use]
    w = d.rows["w"].to_numpy()[use]
    if d.family == "negative_binomial":
        r = sm.NegativeBinomial(y, X).fit(
            method="newton", maxiter=300, tol=1e-14, disp=0, start_params=_start(fit, X, d)
        )
    else:
        links = {"identity": "Identity", "logit": "Logit", "log": "Log", "inverse": "InversePower"}
        link = getattr(sm.families.links, links[d.link])()
        family = getattr(
            sm.families,
            {"gaussian": "Gaussian", "binomial": "Binomial", "poisson": "Poisson", "gamma": "Gamma"}[d.family],
        )(link)
        how = {"var_weights": w} if "weights" in d.how else {}
        start = _start(fit, X, d) if d.link in ("inverse", "log") and d.family != "poisson" else None
        r = sm.GLM(y, X, family=family, **how).fit(
            tol=1e-14, tol_criterion="params", maxiter=200, start_params=start,
            **({"cov_type": "HC0"} if "cov" in d.how else {}),
        )  # fmt: skip
    factor = np.sqrt(len(y) / (len(y) - X.shape[1])) if d.how.get("cov") == "HC1" else 1.0
    p = X.shape[1]
    unit = _units(d)
    errors = [_far(fit.llf, r.llf)]
    # Coefficients other than the intercept's are those of centred columns, but for a column beside an interaction.
    at = [k for k in range(1, p) if "a:b" not in d.formula or k in (1, p - 1)]
    if d.link != "identity" and d.family == "binomial" and d.link == "log" and "cov" in d.how:
        return max([*errors, _far(fit.params.iloc[at] * unit[at], r.params[at])])  # another form of the sandwich
    errors += [_far(fit.params.iloc[at] * unit[at], r.params[at], float(np.abs(r.bse[at]).min()))] if at else []
    errors += [_far(fit.bse.iloc[at] * unit[at], np.asarray(r.bse)[at] * factor)] if at else []
    return max(errors)


def _units(d: Drawn) -> np.ndarray:
    """What coefficients are multiplied by, to be those of the reference's columns."""
    unit = _unit(d)
    return np.array([1.0, *(unit if term in ("a", "a:b") else 1.0 for term in _terms(d))])


def _unit(d: Drawn) -> float:
    s = d.X[:, 1] if d.formula.startswith("a") else np.zeros(1)
    a = d.rows["a"].to_numpy()
    return float(10.0 ** np.round(np.log10(np.ptp(a) / np.ptp(s)))) if np.ptp(s) else 1.0


def _terms(d: Drawn) -> Iterator[str]:
    """The term of each column but the intercept."""
    for term in d.formula.split(" + "):
        yield from [term] * (len({*d.rows["c"]}) - 1 if term == "C(c)" else 1)


def _start(fit: Any, X: np.ndarray, d: Drawn) -> np.ndarray:
    """Coefficients near the fit's, for a reference that does not find its own way; it steps on to its own maximum."""
    link = fit.params.to_numpy()[: X.shape[1]] * _units(d)
    a = d.rows["a"].to_numpy()
    out = link.copy()
    if d.formula.startswith("a"):
        out[0] += fit.params["a"] * a.mean()
        if "a:b" in d.formula:
            out[2] += fit.params["a:b"] * a.mean()
    return np.append(out, fit.alpha * 1.01) if d.family == "negative_binomial" else out


def _cox(d: Drawn, study: Study) -> float:
    from statsmodels.duration.hazard_regression import PHReg

    fit = study.cox(f"months ~ {d.formula}", "event")
    X = d.X[:, 1:]
    start = fit.params.to_numpy() * _units(d)[1:]
    if "a:b" in d.formula:  # of a column about its mean
        start[1] += fit.params["a:b"] * d.rows["a"].mean()
    model = PHReg(d.rows["months"], X, status=d.rows["event"], strata=d.rows["at"], ties="efron")
    r = model.fit(method="newton", maxiter=200, tol=1e-14, disp=0, start_params=0.99 * start)
    unit = _units(d)[1:]
    p = X.shape[1]
    at = [k for k in range(p) if "a:b" not in d.formula or k in (0, p - 1)]
    errors = [_far(fit.llf, r.llf), _far(fit.bse.iloc[at] * unit[at], r.bse[at])]
    return max([*errors, _far(fit.params.iloc[at] * unit[at], r.params[at], float(np.abs(r.bse[at]).min()))])


def _curve(d: Drawn, study: Study) -> float:
    from lifelines import KaplanMeierFitter

    error = 0.0
    curves = study.kaplan_meier("months", "event", unit=0.1, until=1000.0, by="c")
    for name, part in d.rows.groupby("c"):
        right = KaplanMeierFitter().fit(np.round(part["months"] * 10 + 0.4999999) / 10, part["event"])
        mine = curves.frame(name)
        if len(mine):
            expected = right.survival_function_at_times(mine.index + 1e-6).to_numpy()
            error = max(error, float(np.abs(mine["survival"].to_numpy() - expected).max()))
    return error


def _table(d: Drawn, study: Study) -> float:
    error = 0.0
    table = study.describe(["a", "b", "c"], by="")
    for name in "ab":
        cell = table.cells[name][""]
        x = d.rows[name]
        spread = float(x.std())
        error = max(error, abs(cell.mean - x.mean()) / spread, abs(cell.sd / spread - 1))
        for q, (value, within) in (cell.quantiles or {}).items():
            if np.isfinite(within):
                error = max(error, float(abs(value - x.quantile(q)) > within * (1 + 1e-9)))
    return max(error, float(table.cells["c"][""].counts != d.rows["c"].value_counts().to_dict()))


def _is_true(d: Drawn, claim: str) -> bool:
    """Whether all rows together confirm a refusal."""
    y = d.rows["y"].to_numpy()
    X = d.X
    if "weights" in d.how:
        X = X[d.rows["w"] > 0]
        y = y[d.rows["w"] > 0]
    if "beyond SecureSum(bound=" in claim or ("SecureSum" in claim and "round" in claim):
        return d.secure
    if "rows whose w is above 0" in claim:
        return bool(d.rows.groupby("at")["w"].max().min() == 0)
    if "one value" in claim:
        return len({*y}) == 1
    if "collinear" in claim and d.family != "cox":
        size = np.linalg.svd(X / np.linalg.norm(X, axis=0), compute_uv=False)
        return bool(size[-1] < 1e-7)
    if "separation" in claim:
        return _outlives(d) if d.family == "cox" else _grows(d, X, y)
    if "at this edge" in claim:
        return _at_edge(d, X, y)
    if "α goes to 0" in claim:
        import statsmodels.api as sm

        mu = sm.GLM(y, X, family=sm.families.Poisson()).fit().mu
        return float(((y - mu) ** 2 - y).sum()) < 0.02 * len(y)
    if "there is nothing to explain" in claim or "all rows at risk" in claim:
        return d.family == "cox" and _flat(d)
    return "parameters of" in claim and X.shape[1] >= len(y)


def _grows(d: Drawn, X: np.ndarray, y: np.ndarray) -> bool:
    """Whether a linear program finds a direction in which the likelihood does not fall, and rises for a row."""
    from scipy.optimize import linprog

    Z = X / np.abs(X).max(0)
    logit = d.link == "logit"
    sign = np.where(y > 0, 1.0, -1.0)
    A = -sign[:, None] * Z if logit else Z[y == 0]
    bound = {} if logit else {"A_eq": Z[y > 0], "b_eq": np.zeros(int((y > 0).sum()))}
    r = linprog(A.sum(0), A_ub=A, b_ub=np.zeros(len(A)), bounds=[(-1, 1)] * X.shape[1], **bound)
    return bool(r.status == 0 and r.fun < -1e-7)


def _outlives(d: Drawn) -> bool:
    """The same of a Cox model: those with the event are above all at risk; m bounds those at risk at each time."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    Z = d.X[:, 1:] / np.abs(d.X[:, 1:]).max(0)
    entries = list[list[tuple[int, float]]]()
    p = width = Z.shape[1]
    for _, part in d.rows.groupby("at"):
        times = np.unique(part["months"][part["months"] >= part["months"][part["event"] > 0].min()])
        m = {t: width + k for k, t in enumerate(times)}
        width += len(times)
        for a, b in itertools.pairwise(times):
            entries.append([(m[b], 1.0), (m[a], -1.0)])
        for i in part.index[part["months"] >= times[0]] if len(times) else ():
            x = [(j, float(v)) for j, v in enumerate(Z[i])]
            at = m[part["months"][i]]
            entries.append([*x, (at, -1.0)])
            if part["event"][i] > 0:
                entries.append([*((j, -v) for j, v in x), (at, 1.0)])
    rows, columns, values = zip(*((k, j, v) for k, e in enumerate(entries) for j, v in e), strict=True)
    M = coo_array((values, (rows, columns)), (len(entries), width)).tocsr()
    gain = np.array([e[-1][1] < 0 for e in entries])  # of rows below their bound, and of bounds that fall
    r = linprog(M[gain].sum(0), A_ub=M, b_ub=np.zeros(len(entries)), bounds=[(-1, 1)] * p + [(-p, p)] * (width - p))
    return bool(r.status == 0 and r.fun < -1e-7)


def _flat(d: Drawn) -> bool:
    """Whether in a column all rows at risk are alike at each event, at each site."""
    alike = np.ones(d.X.shape[1] - 1, bool)
    for _, part in d.rows.groupby("at"):
        for t in part["months"][part["event"] > 0]:
            alike &= np.ptp(d.X[part.index[part["months"] >= t], 1:], axis=0) < 1e-12
    return bool(alike.any())


def _at_edge(d: Drawn, X: np.ndarray, y: np.ndarray) -> bool:
    """Whether the best coefficients that a constrained search finds have a mean at the edge."""
    from scipy.optimize import LinearConstraint, minimize

    Z = X / np.abs(X).max(0)

    def loss(b: np.ndarray) -> float:
        eta = np.minimum(Z @ b, -1e-12)
        return -float((y * eta + (1 - y) * np.log(-np.expm1(eta))).sum())

    start = np.r_[-2.0, np.zeros(X.shape[1] - 1)]
    r = minimize(loss, start, constraints=LinearConstraint(Z, -np.inf, -1e-9), method="SLSQP", options={"maxiter": 500})
    return d.link == "log" and d.family == "binomial" and float((Z @ r.x).max()) > -1e-3


def main() -> None:
    """Run the studies that the file does not have, and print how many ended how."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    done = run(range(args.first, args.first + args.count), args.save)
    print(summary(done))
    sys.exit(any(r["outcome"] == "wrong" for r in done))


def run(seeds: range, file: Path | None = None) -> list[dict[str, Any]]:
    """The outcomes of these seeds; those in the file are read, and others are written to it at once."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    saved = {r["seed"]: r for r in map(json.loads, lines)}
    for seed in seeds:
        if seed not in saved:
            saved[seed] = outcome(seed)
            if file is not None:
                with file.open("a", encoding="utf-8") as f:
                    f.write(json.dumps(saved[seed], ensure_ascii=False) + "\n")
                    f.flush()
                    os.fsync(f.fileno())
    return [saved[seed] for seed in seeds]


def summary(done: list[dict[str, Any]]) -> str:
    """How many studies ended how, the largest error of those that are equal, and those that are wrong."""
    ends = Counter(r["outcome"] for r in done)
    equal = [r for r in done if r["outcome"] == "equal"]
    plain, masked = (max((r["error"] for r in equal if r["secure"] is s), default=0.0) for s in (False, True))
    counts = f"{ends['equal']} equal, {ends['true']} refused with a reason that is true, {ends['wrong']} wrong"
    lines = [f"{len(done)} studies: {counts}"]
    lines.append(f"largest error of the equal ones {plain:.1e}, under secure sums {masked:.1e}")
    lines += [f"seed {r['seed']}: {r}" for r in done if r["outcome"] == "wrong"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
