"""Clients that send −10 times the others' mean: accuracy over their share, for five folds of replies: liars.svg."""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

SHARES = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
folds = md.robust
methods = {
    "mean": md.FedAvg(),
    "trimmed mean": md.Robust(md.FedAvg(), fold=folds.TrimmedMean(0.3)),
    "median": md.Robust(md.FedAvg(), fold=folds.Median()),
    "multi-Krum": md.Robust(md.FedAvg(), fold=folds.MultiKrum(0.3)),
    "mixed, trimmed mean": md.Robust(md.FedAvg(), fold=folds.Mixed(folds.TrimmedMean(0.3), 0.3)),
}


def last(method, share):
    """Accuracy after 15 rounds with this share of liars."""
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.scenarios.Dirichlet(20, 1.0, minimum=10),
        pace=md.scenarios.Pace(lr=0.3),
        weights="uniform",
        attack=md.scenarios.Attack("ipm", share=share, strength=10.0),
    )
    return md.run(method, fed, rounds=15, progress=False, throw=False).history[-1]["accuracy"]


curves = []
for k, (name, method) in enumerate(methods.items()):
    curves.append(Line(name, k, SHARES, np.array([last(method, share) for share in SHARES.tolist()])))
    print(f"{name:20}", curves[-1].y.round(2))
with open("liars.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "clients that lie", "ylabel": "accuracy after 15 rounds"}
    file.write(lines(curves, title="Clients that lie", x="percent", y="percent", **labels))
