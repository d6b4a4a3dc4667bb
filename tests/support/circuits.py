"""The small federations that FedNorton's tests share."""

from __future__ import annotations

import medley as md

N, LR, STEPS = 5, [0.02, 0.1, 0.05, 0.08, 0.03], [1, 4, 2, 3, 7]
"""Clients, their learning rates and their steps: equal times T for none of them."""

TOY = md.problems.quadratics(clients=N, d=3, seed=4)
EIGHT = md.problems.quadratics(clients=8, d=6, seed=5)
UNEQUAL = {"lr": md.scenarios.Uniform(0.02, 0.1), "epochs": md.scenarios.Integers(1, 10)}
WHERE = ["server", "client"]
"""Who keeps the flows."""

COHORTS = [(0, 1, 2, 3, 4), (1, 3), (0, 2, 4), (4,), (0, 1, 3), (2, 3, 4), (0, 1, 2, 3, 4), (1, 2)]
"""Who takes part, round by round."""
