"""Made-up patients of six hospitals, the same each time."""

from __future__ import annotations

from typing import Any

import numpy as np

NAMES = ("Bern", "Basel", "Chur", "Genf", "Thun", "Zug")


def patients(n: int = 900, seed: int = 7) -> Any:
    import pandas as pd

    g = np.random.default_rng(seed)
    age = g.normal(60, 12, n).round()
    sex = g.integers(0, 2, n)
    ward = g.integers(0, 3, n)
    bmi = g.gamma(20, 1.3, n).round(1)
    years = g.uniform(0.5, 3, n).round(2)
    eta = -3 + 0.04 * age + 0.5 * sex - 0.3 * (ward == 1)
    frame = pd.DataFrame(
        {
            "age": age,
            "bmi": bmi,
            "sex": np.array(["F", "M"])[sex],
            "ward": np.array(["a", "b", "c"])[ward],
            "years": years,
            "weight": g.uniform(0.5, 2, n).round(2),
            "died": (g.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "stay": g.gamma(3, np.exp(0.3 + 0.01 * age) / 3).round(3),
            "visits": g.poisson(np.exp(-1 + 0.02 * age) * years),
            "falls": g.negative_binomial(2, 2 / (2 + np.exp(-1 + 0.02 * age + 0.3 * sex))),
            "pressure": (100 + 0.5 * age + g.normal(0, 10, n)).round(1),
        }
    )
    time = g.exponential(10 * np.exp(-0.02 * (age - 60) - 0.4 * sex))
    end = g.uniform(2, 15, n)
    frame["months"] = np.minimum(time, end).round(1) + 0.1
    frame["event"] = (time <= end).astype(int)
    return frame


def sites(frame: Any, by: str = "turns") -> dict[str, Any]:
    """The rows of the six hospitals: dealt in turns, in blocks of unequal size, or sorted by age."""
    if by == "turns":
        return {name: frame.iloc[k::6] for k, name in enumerate(NAMES)}
    rows = frame if by == "blocks" else frame.sort_values("age", kind="stable")
    shares = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05]) if by == "blocks" else np.full(6, 1 / 6)
    ends = [0, *np.round(np.cumsum(shares) * len(rows)).astype(int)]
    return {name: rows.iloc[ends[k] : ends[k + 1]] for k, name in enumerate(NAMES)}
