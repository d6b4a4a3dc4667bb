"""How often the 95 % intervals of a meta-analysis hold the truth: the table of docs/study.md.

python benchmarks/meta_coverage.py          # writes benchmarks/meta_coverage.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm, t

from medley.statistics.meta import Between, pool

DRAWS = 1000
TRUTH = 1.0


def covered(sites: int, between: float, tau2: Between) -> dict[str, Any]:
    """The shares of made-up studies whose intervals hold the mean effect, and the effect at another site.

    A site of 40 to 400 patients estimates its effect with an error that is estimated, too; effects have the standard
    deviation ``between``.
    """
    g = np.random.default_rng([sites, round(100 * between)])  # the same studies for each estimator
    inside = np.zeros(3)
    for _ in range(DRAWS):
        rows = g.integers(40, 400, sites)
        y = g.normal(TRUTH, between, sites) + g.normal(0, 2 / np.sqrt(rows))
        se = 2 / np.sqrt(rows) * np.sqrt(g.chisquare(rows - 2) / (rows - 2))
        p = pool(y, se, tau2)
        other = g.normal(TRUTH, between)
        far = abs(p.random - TRUTH)
        wide = t.isf(0.025, sites - 2) * np.sqrt(p.tau2 + p.random_se**2)
        z_half = norm.isf(0.025) * p.random_se
        inside += far < z_half, far < t.isf(0.025, sites - 1) * p.knapp_se, abs(p.random - other) < wide
    shares = dict(zip(("random effects", "Hartung-Knapp", "prediction"), (inside / DRAWS).round(3), strict=True))
    return {"sites": sites, "between": between, "tau2": tau2} | shares


if __name__ == "__main__":
    lines = [covered(k, sd, tau2) for k in (6, 12) for sd in (0.0, 0.3) for tau2 in ("REML", "DL", "PM")]
    for line in lines:
        print(line)
    Path(__file__).with_suffix(".json").write_text(json.dumps(lines, indent=0) + "\n")
