"""Writes byzfl.json: vectors, and the vectors that byzfl 0.0.11 makes of them.

byzfl brings torchvision and seaborn, so it has an environment of its own:

    python -m venv /somewhere && /somewhere/bin/pip install byzfl==0.0.11
    /somewhere/bin/python tests/robust/byzfl_reference.py

Its Krum counts a − f − 1 neighbours, the paper's a − f − 2: f + 1 liars of byzfl's are f of the paper's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("byzfl.json")

CASES = [(11, 2, 7), (15, 3, 20), (20, 4, 5), (7, 0, 3)]
"""Rows, liars among them, columns."""


def case(a: int, f: int, d: int) -> dict[str, Any]:
    """Rows, of which the last ``f`` lie far off, and byzfl's vectors by name."""
    from byzfl import (  # type: ignore[import-not-found]
        NNM,
        ALittleIsEnough,
        CenteredClipping,
        GeometricMedian,
        InnerProductManipulation,
        Krum,
        Median,
        MultiKrum,
        TrMean,
    )

    g = np.random.default_rng(a)
    rows = g.standard_normal((a, d)) + 1.0
    rows[a - f :] = 30 * g.standard_normal((f, d))
    honest = rows[: a - f]
    mixed = NNM(f=f)(rows)
    vectors = {
        "TrimmedMean": TrMean(f=f)(rows),
        "Median": Median()(rows),
        "GeometricMedian": GeometricMedian(nu=1e-6, T=20000)(rows),
        "Krum": Krum(f=f + 1)(rows),
        "MultiKrum": MultiKrum(f=f + 1)(rows),
        "CentredClipping": CenteredClipping(L=3, tau=1.5)(rows),
        "mixed": mixed,
        "NNM-Median": Median()(mixed),
        "ALIE": ALittleIsEnough(tau=1.2)(honest),
        "IPM": InnerProductManipulation(tau=0.6)(honest),
    }
    return {
        "a": a,
        "f": f,
        "rows": rows.tolist(),
        "byzfl": {name: np.asarray(v).tolist() for name, v in vectors.items()},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps({"byzfl": "0.0.11", "cases": [case(*c) for c in CASES]}, indent=None) + "\n")
