"""The effect of each difference between clients on FedAvg, as four pictures: data, sizes, pace and participation.

Every curve is the mean of two seeds with the digits at 20 clients. Run with: python docs/tutorials/laws.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import medley as md
from medley.report.figures import Line, lines

CLIENTS, ROUNDS, SEEDS = 20, 15, 2
BASE: dict[str, Any] = {
    "partition": md.partitions.Dirichlet(CLIENTS, 0.3),
    "pace": md.scenarios.Pace(lr=0.2, epochs=3),
    "participation": None,
}

PICTURES: dict[str, dict[str, dict[str, Any]]] = {
    "data": {
        "IID": {"partition": md.partitions.IID(CLIENTS)},
        "Dirichlet, α = 1": {"partition": md.partitions.Dirichlet(CLIENTS, 1.0)},
        "Dirichlet, α = 0.1": {"partition": md.partitions.Dirichlet(CLIENTS, 0.1)},
        "Shards, 2 a client": {"partition": md.partitions.Shards(CLIENTS, 2)},
        "Labels, 1 a client": {"partition": md.partitions.Labels(CLIENTS, 1)},
    },
    "sizes": {
        "IID": {"partition": md.partitions.IID(CLIENTS)},
        "Quantity, α = 1": {"partition": md.partitions.Quantity(CLIENTS, 1.0)},
        "Quantity, α = 0.2": {"partition": md.partitions.Quantity(CLIENTS, 0.2)},
    },
    "pace": {
        "3 epochs": {},
        "1 epoch": {"pace": md.scenarios.Pace(lr=0.2, epochs=1)},
        "1 to 10 epochs": {"pace": md.scenarios.Pace(lr=0.2, epochs=md.distributions.Integers(1, 10))},
        "lr from 0.01 to 1": {"pace": md.scenarios.Pace(lr=md.distributions.LogUniform(0.01, 1.0), epochs=3)},
    },
    "participation": {
        "everyone": {},
        "a tenth": {"participation": md.participation.Fraction(0.1)},
        "each by chance 0.1": {"participation": md.participation.Bernoulli(0.1)},
        "5 groups in turn": {"participation": md.participation.Cyclic(5)},
    },
}
"""Curves of each picture, and the settings in which they differ from BASE."""

TITLES = {
    "data": "Labels dealt unevenly",
    "sizes": "Rows dealt unevenly",
    "pace": "Unequal training",
    "participation": "Some of them at a time",
}


def curve(slot: int, name: str, changed: dict[str, Any]) -> Line:
    """FedAvg's accuracy by round under these settings."""
    fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), **(BASE | changed))
    seen = [md.run(md.FedAvg(), fed, rounds=ROUNDS, seed=s, progress=False)["accuracy"] for s in range(SEEDS)]
    mean = np.array(seen).mean(0)
    print(f"{name:20} {mean[-1]:.2f}")
    return Line(name, slot, np.arange(ROUNDS + 1.0), mean)


def main(folder: Path) -> None:
    """Write the pictures into ``folder``, and print each curve's last accuracy."""
    for picture, curves in PICTURES.items():
        drawn = [curve(slot, name, changed) for slot, (name, changed) in enumerate(curves.items())]
        markup = lines(drawn, title=TITLES[picture], ylabel="FedAvg's accuracy", y="percent")
        (folder / f"{picture}.svg").write_text(markup, encoding="utf-8")


if __name__ == "__main__":
    main(Path())
