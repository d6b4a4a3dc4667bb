"""Clients that send −10 times the others' mean: accuracy over their share, for five rules: byzantine.svg."""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

SHARES = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
rules = md.robust
methods = {
    "mean": md.FedAvg(),
    "trimmed mean": md.Robust(md.FedAvg(), rule=rules.TrimmedMean(0.3)),
    "median": md.Robust(md.FedAvg(), rule=rules.Median()),
    "multi-Krum": md.Robust(md.FedAvg(), rule=rules.MultiKrum(0.3)),
    "mixed, trimmed mean": md.Robust(md.FedAvg(), rule=rules.Mixed(rules.TrimmedMean(0.3), 0.3)),
}


def last(method, share):
    """Accuracy after 15 rounds with this share of Byzantine clients."""
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.Dirichlet(20, 1.0, minimum=10),
        pace=md.scenarios.Pace(lr=0.3),
        weights="uniform",
        attack=md.scenarios.Attack("ipm", share=share, strength=10.0),
    )
    return md.run(method, fed, rounds=15, progress=False, throw=False).history[-1]["accuracy"]


curves = []
for k, (name, method) in enumerate(methods.items()):
    curves.append(Line(name, k, SHARES, np.array([last(method, share) for share in SHARES.tolist()])))
    print(f"{name:20}", curves[-1].y.round(2))
with open("byzantine.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "clients that lie", "ylabel": "accuracy after 15 rounds"}
    file.write(lines(curves, title="Clients that lie", x="percent", y="percent", **labels))
