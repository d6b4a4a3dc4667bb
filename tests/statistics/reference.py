"""Writes reference.json: what statsmodels and lifelines say of the made-up patients, all rows together.

Run it where both are installed: ``PYTHONPATH=tests python tests/statistics/reference.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def plain(v: Any) -> Any:
    return {str(k): plain(x) for k, x in v.items()} if hasattr(v, "items") else float(v)


def fits(frame: Any) -> dict[str, Any]:
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    F, L = sm.families, sm.families.links
    asked = {
        "gaussian": ("pressure ~ age + C(sex)", F.Gaussian(), {}),
        "weighted": ("pressure ~ age + C(sex)", F.Gaussian(), {"var_weights": frame["weight"]}),
        "binomial": ("died ~ age + C(sex) + C(ward)", F.Binomial(), {}),
        "interaction": ("died ~ age * C(sex) + np.log(bmi) + I(age**2)", F.Binomial(), {}),
        "poisson": ("visits ~ age + C(ward)", F.Poisson(), {"exposure": frame["years"]}),
        "offset": ("visits ~ age", F.Poisson(), {"offset": frame["weight"]}),
        "gamma": ("stay ~ age + C(ward)", F.Gamma(L.InversePower()), {}),
        "gamma, log": ("stay ~ age + C(ward)", F.Gamma(L.Log()), {}),
        "negative binomial, α = 1": ("falls ~ age + C(sex)", F.NegativeBinomial(alpha=1.0), {}),
    }
    out: dict[str, Any] = {}
    for name, (formula, family, how) in asked.items():
        r = smf.glm(formula, frame, family=family, **how).fit(tol=1e-14, maxiter=100, tol_criterion="params")
        names = [k.replace("np.log", "log").replace("age ** 2", "age**2") for k in r.params.index]
        by = lambda v, names=names: {k: float(x) for k, x in zip(names, v, strict=True)}
        out[name] = {k: by(getattr(r, k)) for k in ("params", "bse", "pvalues")}
        out[name] |= {k: float(getattr(r, k)) for k in ("llf", "deviance", "pearson_chi2", "aic", "df_resid", "scale")}
        out[name]["bic"] = float(r.bic_llf)
        if not how.keys() & {"exposure", "offset"}:
            out[name]["null_deviance"] = float(r.null_deviance)
        out[name]["conf_int"] = {
            k: [float(v) for v in row] for k, row in zip(names, r.conf_int().to_numpy(), strict=True)
        }
    r = smf.negativebinomial("falls ~ age + C(sex)", frame).fit(method="newton", maxiter=200, tol=1e-14, disp=0)
    out["negative binomial"] = {k: plain(getattr(r, k)) for k in ("params", "bse", "pvalues", "llf", "aic", "bic")}
    out["negative binomial"]["conf_int"] = {k: [float(v) for v in row] for k, row in r.conf_int().T.items()}
    return out


def robust(frame: Any) -> dict[str, Any]:
    """OLS and logit as statsmodels has them; the logit's HC1 and HC3 from the textbook, as it has neither."""
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    groups, kinds = np.arange(len(frame)) % 6, ("HC0", "HC1", "HC3", "cluster")
    out: dict[str, Any] = {"ols": {}, "logit": {}}
    for kind in kinds:
        how = {"cov_kwds": {"groups": groups}} if kind == "cluster" else {}
        r = smf.ols("pressure ~ age + C(sex)", frame).fit(cov_type=kind, **how)
        out["ols"][kind] = plain(r.bse)
        logit = smf.glm("died ~ age + C(sex)", frame, family=sm.families.Binomial())
        r = logit.fit(tol=1e-14, maxiter=100, cov_type=kind if kind == "cluster" else "HC0", **how)
        X, mu, n = logit.exog, r.mu, len(frame)
        bread = np.linalg.inv((X.T * (mu * (1 - mu))) @ X)
        h = mu * (1 - mu) * np.einsum("ij,jk,ik->i", X, bread, X)
        e = logit.endog - mu
        scale = {"HC1": np.full(n, np.sqrt(n / (n - 3))), "HC3": 1 / (1 - h)}.get(kind)
        if scale is None:
            out["logit"][kind] = plain(r.bse)
        else:
            se = np.sqrt(np.diag(bread @ ((X.T * (e * scale) ** 2) @ X) @ bread))
            out["logit"][kind] = {k: float(v) for k, v in zip(r.params.index, se, strict=True)}
    return out


def lr_test(frame: Any) -> dict[str, float]:
    import statsmodels.api as sm
    import statsmodels.formula.api as smf
    from scipy.stats import chi2

    family = sm.families.Binomial()
    a, b = (smf.glm(f, frame, family=family).fit(tol=1e-14) for f in ("died ~ age + C(ward)", "died ~ age"))
    statistic = 2 * (a.llf - b.llf)
    return {"statistic": float(statistic), "pvalue": float(chi2.sf(statistic, 2))}


def survival(frame: Any) -> dict[str, Any]:
    import statsmodels.api as sm
    from lifelines import KaplanMeierFitter
    from lifelines.statistics import multivariate_logrank_test

    X = np.column_stack([frame["sex"] == "M", frame["age"]]).astype(float)[:, ::-1]
    out: dict[str, Any] = {"cox": {}, "kaplan_meier": {}}
    for ties in ("efron", "breslow"):
        model = sm.PHReg(frame["months"], X, status=frame["event"], strata=np.arange(len(frame)) % 6, ties=ties)
        r = model.fit(disp=0, method="newton", tol=1e-14)
        out["cox"][ties] = {"params": r.params.tolist(), "bse": r.bse.tolist(), "llf": float(r.llf)}
        r = sm.PHReg(frame["months"], X, status=frame["event"], ties=ties).fit(disp=0, method="newton", tol=1e-14)
        out["cox"][f"{ties}, pooled"] = {"params": r.params.tolist(), "bse": r.bse.tolist(), "llf": float(r.llf)}
    for group in "FM":
        mine = frame[frame["sex"] == group]
        km = KaplanMeierFitter().fit(mine["months"], mine["event"])
        table, ends = km.event_table, km.confidence_interval_
        at = table["observed"] > 0
        columns = {
            "at_risk": table["at_risk"],
            "events": table["observed"],
            "survival": km.survival_function_.iloc[:, 0],
        }
        columns |= {"lower": ends.iloc[:, 0], "upper": ends.iloc[:, 1]}
        out["kaplan_meier"][group] = {k: v[at].astype(float).tolist() for k, v in columns.items()}
        out["kaplan_meier"][group]["time"] = table.index[at].tolist()
    test = multivariate_logrank_test(frame["months"], frame["sex"], frame["event"])
    out["logrank"] = {"statistic": float(test.test_statistic), "pvalue": float(test.p_value)}
    return out


def main() -> None:
    from support.hospitals import patients

    frame = patients()
    found = {"glm": fits(frame), "robust": robust(frame), "lr_test": lr_test(frame), **survival(frame)}
    path = Path(__file__).parent / "reference.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
