"""How far a study's grids move its figures, by rows of a site: the table of docs/study.md.

python benchmarks/study_rounding.py          # writes benchmarks/study_rounding.json
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medley.contract import BadData
from medley.statistics import Rules, Study

ROWS = (40, 120, 300, 1000, 3000)
SEEDS = 5
SITES = 4


def site(n: int, g: np.random.Generator) -> Any:
    """Made-up patients."""
    age = g.normal(60, 10, n)
    sex = g.integers(0, 2, n)
    dose = g.gamma(3, 1, n)
    eta = 0.04 * (age - 60) + 0.5 * sex - 0.2 * (dose - 3)
    rows = pd.DataFrame(
        {
            "age": age,
            "sex": sex,
            "dose": dose,
            "ill": (g.random(n) < 1 / (1 + np.exp(-eta))).astype(int),
            "falls": g.poisson(np.exp(0.3 + eta)),
            "pressure": 120 + 8 * eta + g.normal(0, 9, n),
        }
    )
    g = g.spawn(1)[0]  # the other columns of the next site do not depend on these
    months, end = g.exponential(14 * np.exp(-eta)), g.uniform(3, 24, n)
    return rows.assign(months=np.minimum(months, end).round(1) + 0.1, died=(months <= end).astype(int))


def moved(n: int, y: str, family: str) -> dict[str, Any]:
    """The largest distance of a coefficient from the exact one, in standard errors, by seed; and the bits of y."""
    gaps = list[float]()
    bits = list[float]()
    refused = 0
    for seed in range(SEEDS):
        g = np.random.default_rng([n, seed])
        sites = {f"site {k}": site(n, g) for k in range(SITES)}
        studies = [Study(sites, rules=Rules(exact=exact)) for exact in (True, False)]
        try:
            x = "age + sex + dose"
            fits = [s.cox(f"months ~ {x}", y) if family == "cox" else s.glm(f"{y} ~ {x}", family) for s in studies]
        except BadData:
            refused += 1
            continue
        exact, rounded = fits
        gaps.append(float((np.abs(exact.params - rounded.params) / exact.bse).max()))
        bits.append(float(rounded.disclosure.xs(y, level="column")["bits"].max()))
    middle = lambda v: round(float(np.median(v)), 5) if v else None
    most = round(max(gaps), 5) if gaps else None
    return {"rows": n, "outcome": y, "median": middle(gaps), "largest": most, "bits": middle(bits), "refused": refused}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    kinds = {"ill": "binomial", "falls": "poisson", "pressure": "gaussian", "died": "cox"}
    lines = [moved(n, y, family) for n in ROWS for y, family in kinds.items()]
    for line in lines:
        print(line)
    Path(__file__).with_suffix(".json").write_text(json.dumps(lines, indent=0) + "\n")
