"""FedECADO's inductor and the longest extension of a window, on development federations at one learning rate each.

    python papers/league/steps.py

A row a federation: the mean of its figure over five seeds, on test rows, for each longest extension in windows, without
the node's inductor and with it. The clocks' figure is the virtual seconds to the target.
"""

from __future__ import annotations

from statistics import fmean

from entrants import Entrant
from federations import FEDERATIONS
from run import SEEDS, once

import medley as md

RATES = {
    "digits-softmax-dirichlet": -1.0,
    "years-mlp-natural": -0.5,
    "news-regression-channels": 0.0,
    "a9a-logistic-sizes": -1.0,
    "synthetic-softmax": -1.0,
    "mnist-mlp-two-labels": -1.0,
    "clock-digits": 0.0,
    "clock-mnist-phones": 0.0,
    "clock-fashion-hospitals": 0.0,
}
"""The clients' lr in half decades of the federation's own."""

FORMS = [(reach, inertia) for inertia in (False, True) for reach in (0.0, 1.0, 3.0)]


def main() -> None:
    """Print the table."""
    heads = [f"{reach:g}{', inductor' if inertia else ''}" for reach, inertia in FORMS]
    print("| federation | " + " | ".join(heads) + " |")
    print("|---" * (len(FORMS) + 1) + "|")
    for name, rate in RATES.items():
        cells = []
        for reach, inertia in FORMS:
            entrant = Entrant(md.FedECADO(reach=reach, inertia=inertia))
            scores = [once(name, entrant, (rate, 0), seed, "test")["score"] for seed in SEEDS]
            cells.append(f"{fmean(scores):.4f}")
        print(f"| {FEDERATIONS[name].text} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
