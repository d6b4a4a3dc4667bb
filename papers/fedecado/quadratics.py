"""FedECADO on ten unequal quadratics: the method, and Algorithm 2 as printed but for its signs, for several L.

    python papers/fedecado/quadratics.py

"As printed" is `taken_back.Printed`: no weights p_i, absolute L, Kirchhoff's sum over the clients that reply, and
clients that go on from their own states. It prints distances to the optimum of Σ p_i f_i and to that of the plain mean.
"""

from __future__ import annotations

import torch
from taken_back import Printed

import medley as md


def main() -> None:
    torch.set_num_threads(1)
    toy = md.problems.synthetic_quadratics(clients=10, d=5, seed=1)
    H = torch.stack([X.T @ X / len(y) for X, y in toy.clients])
    b = torch.stack([X.T @ y / len(y) for X, y in toy.clients])
    plain = torch.linalg.solve(H.mean(0), b.mean(0))
    pace = md.scenarios.Pace(
        lr=md.distributions.Uniform(0.01, 0.1), epochs=md.distributions.Integers(1, 10), batch=None
    )
    print(f"{'clients':>8} {'L':>6}  {'FedECADO':>20}  {'as printed':>20}  distances to x*, to the plain mean's")
    for part in (None, 0.4):
        for L in (0.1, 0.3, 1.0, 3.0, 10.0):
            cells = []
            for method in (md.FedECADO(L=L), Printed(L=L)):
                fed = md.Federation(toy.problem, clients=toy.clients, pace=pace, participation=part)
                x = md.run(method, fed, rounds=1000, eval_every=1000, progress=False, throw=False).x
                cells.append(f"{float((x - toy.x_star).norm()):9.1e} {float((x - plain).norm()):9.1e}")
            print(f"{part or 1:8.0%} {L:6g}  {cells[0]:>20}  {cells[1]:>20}", flush=True)


if __name__ == "__main__":
    main()
