"""Clients take 16 steps a round in the mean, some more and some fewer: the loss that methods end at, unequal_pace.svg.

A convex problem has one minimum. Methods that take a mean of models end away from it, since they are pulled to the
clients that compute most.
"""

import numpy as np

import medley as md
from medley.report.figures import Line, lines

SPREADS = np.array([0, 5, 10, 15])
toy = md.problems.synthetic_logistic(clients=10, d=10, mu=1e-2, seed=1)
curves = []
for k, method in enumerate((md.FedAvg(), md.FedNova(), md.SCAFFOLD(), md.FedNorton())):
    gaps = []
    for spread in SPREADS.tolist():
        steps = md.distributions.Integers(16 - spread, 16 + spread)  # drawn once for each client
        pace = md.scenarios.Pace(lr=0.3, epochs=steps, batch=None)
        fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace)
        gaps.append(md.run(method, fed, rounds=120, progress=False)["gap"][-1])
    curves.append(Line(method.name, k, SPREADS.astype(float), np.maximum(gaps, 1e-14)))
    print(f"{method.name:8}", *(f"{gap:.0e}" for gap in gaps))
with open("unequal_pace.svg", "w", encoding="utf-8") as file:
    labels = {"xlabel": "spread: clients take 16 ± so many steps", "ylabel": "f(x) − f* after 120 rounds"}
    file.write(lines(curves, title="Unequal pace", x="count", log=True, **labels))
