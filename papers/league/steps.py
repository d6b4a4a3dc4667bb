"""FedECADO's longest extension of a window, on five of the league's development federations at one learning rate each.

    python papers/league/steps.py

A row a federation: the mean of its figure over five seeds, on test rows, for each longest extension in windows.
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
    "breast-logistic-unequal": -1.0,
    "a9a-logistic-sizes": -1.0,
    "synthetic-softmax": -1.0,
}
"""The clients' lr in half decades of the federation's own."""

REACHES = (0.0, 1.0, 3.0, 10.0)


def main() -> None:
    """Print the table."""
    print("| federation | " + " | ".join(f"reach {reach:g}" for reach in REACHES) + " |")
    print("|---" * (len(REACHES) + 1) + "|")
    for name, rate in RATES.items():
        cells = []
        for reach in REACHES:
            entrant = Entrant(md.FedECADO(reach=reach))
            scores = [once(name, entrant, (rate, 0), seed, "test")["score"] for seed in SEEDS]
            cells.append(f"{fmean(scores):.4f}")
        print(f"| {FEDERATIONS[name].text} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
