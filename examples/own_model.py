"""A network of your own on clients that differ, and a picture of its accuracy: own_model.svg."""

import numpy as np
from torch import nn

import medley as md
from medley.report.figures import Line, lines

net = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 10))
fed = md.Federation(
    md.problems.Network(net),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=20, alpha=0.3),
    pace=md.scenarios.Pace(lr=0.1, epochs=2),
    participation=0.5,
)
runs = [md.run(method, fed, rounds=30, progress=False) for method in (md.FedAvg(), md.SCAFFOLD())]
curves = [Line(r.method, k, np.array(r["round"]), np.array(r["accuracy"])) for k, r in enumerate(runs)]
with open("own_model.svg", "w", encoding="utf-8") as file:
    file.write(lines(curves, title="A network of one's own", ylabel="accuracy", y="percent"))
print({r.method: round(r.summary["accuracy"], 3) for r in runs})
