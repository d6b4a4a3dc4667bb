"""Made-up patients who enter late and have several rows, the same each time; and fits of them."""

from __future__ import annotations

from typing import Any

import numpy as np

FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "late entry": ("stop ~ age + C(sex)", {"entry": "start"}),
    "strata": ("stop ~ age + dose", {"strata": "ward"}),
    "two strata and late entry": ("stop ~ age + dose", {"strata": ["ward", "sex"], "entry": "start"}),
    "clusters": ("stop ~ age + C(sex)", {"cluster": "patient"}),
    "clusters, Breslow": ("stop ~ age + C(sex)", {"cluster": "patient", "ties": "breslow"}),
    "rows of a patient": ("stop ~ age + C(sex) + dose", {"entry": "start", "cluster": "patient"}),
    "all": ("stop ~ age + C(sex) + dose", {"entry": "start", "strata": "ward", "cluster": "patient"}),
    "all, Breslow": (
        "stop ~ age + C(sex) + dose", {"entry": "start", "strata": "ward", "cluster": "patient", "ties": "breslow"},
    ),
}  # fmt: skip
"""Formulas and settings, by name."""

LIFELINES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "heart": ("id", "stop ~ age + year + surgery + transplant", "event", {"entry": "start", "cluster": "id"}),
    "recur": ("ID", "TIME1 ~ AGE + TREAT", "CENSOR", {"entry": "TIME0", "cluster": "ID"}),
    "recur, strata": (
        "ID", "TIME1 ~ AGE + TREAT", "CENSOR",
        {"entry": "TIME0", "strata": "EVENT", "cluster": "ID", "ties": "breslow"},
    ),
    "lung": ("row", "time ~ age + C(sex)", "status", {"strata": "ph.ecog", "cluster": "inst"}),
    "aids": ("row", "T ~ AIDSY", "D", {"entry": "W"}),
    "larynx": ("row", "time ~ age", "death", {"strata": ["Stage_II", "Stage_III", "Stage_IV"]}),
}  # fmt: skip
"""Data sets that lifelines has."""


PARTITIONS = ("turns", "blocks", "sizes")
"""How patients are dealt to sites."""


def intervals(n: int = 400, seed: int = 65) -> Any:
    """Rows (start, stop] of patients: some enter late, the dose changes, and some have the event more than once."""
    import pandas as pd

    g = np.random.default_rng(seed)
    rows = []
    for patient in range(n):
        age, sex, ward = round(g.normal(60, 12)), "FM"[g.integers(2)], "abc"[g.integers(3)]
        start = round(g.uniform(0, 4) * (g.random() < 0.4), 1)
        for _ in range(3):
            dose = round(g.gamma(2.0), 2)
            until = start + round(g.uniform(1, 6), 1)
            hazard = 0.08 * np.exp(0.03 * (age - 60) + 0.5 * (sex == "M") - 0.3 * dose)
            time = start + max(round(g.exponential(1 / hazard), 1), 0.1)
            event = int(time <= until)
            stop = round(min(time, until), 1)
            rows.append((patient, age, sex, ward, dose, start, stop, event))
            start = stop
            if g.random() < 0.25 + 0.4 * event:
                break
    return pd.DataFrame(rows, columns=["patient", "age", "sex", "ward", "dose", "start", "stop", "event"])


def of_lifelines(name: str) -> Any:
    """A data set, with numbered rows and without missing values in what is fitted."""
    from lifelines import datasets

    short = name.split(",")[0]
    long = {"heart": "stanford_heart_transplants", "aids": "multicenter_aids_cohort_study"}.get(short, short)
    frame = getattr(datasets, f"load_{long}")()
    frame = frame.assign(row=np.arange(len(frame)))
    if short == "recur":
        frame = frame[frame["TIME0"] < frame["TIME1"]]
    if short == "lung":
        frame = frame.dropna(subset=["inst", "ph.ecog"]).assign(status=lambda f: f["status"] - f["status"].min())
    return frame[frame["W"] < frame["T"]] if short == "aids" else frame


def dealt(frame: Any, cluster: str, how: str, sites: int = 3) -> np.ndarray:
    """The site of each row: values of a column are dealt in turns, in blocks, or to sites of unequal sizes."""
    of = np.unique(frame[cluster].to_numpy(), return_inverse=True)[1].ravel()
    k = of.max() + 1
    if how == "turns":
        return np.asarray(of % sites)
    if how == "blocks":
        return np.asarray(of * sites // k)
    return np.searchsorted(np.cumsum([0.6, 0.25]) * k, of, side="right")


def tables(frame: Any, cluster: str, how: str, sites: int = 3) -> dict[str, Any]:
    """A frame for each site."""
    site = dealt(frame, cluster, how, sites)
    return {f"site{k}": frame[site == k] for k in range(sites)}
