"""Where methods end up with plain SGD, momentum, Adam and a clip at the clients, on quadratics with a known optimum.

    python papers/fixed_points.py

Ten clients with matrices, minimisers and paces of their own take full-batch steps in every round. The figure is
‖x − x*‖ / ‖x*‖ after the last round: a method whose fixed point is the optimum gets it to the rounding, and one that
is misled by what the optimizer does to unequal gradients stays where the optimizer's own fixed point is.
"""

from __future__ import annotations

import sys

import medley as md

METHODS = (
    md.FedAvg(),
    md.FedNova(),
    md.FedProx(mu=1.0),
    md.FedCM(),
    md.SCAFFOLD(),
    md.FedDyn(alpha=8.0),
    md.FedDC(alpha=1.0),
    md.FedADMM(prox=5.0),
    md.AFedPD(prox=5.0),
    md.FedLESAM(),
    md.FedGAMMA(),
    md.FedSpeed(prox=5.0),
    md.FedSMOO(prox=5.0),
    md.FedNorton(),
)
OPTIMIZERS = {
    "SGD": {},
    "momentum 0.9": {"momentum": 0.9},
    "Adam": {"optimizer": "adam"},
    "clip 6": {"clip": 6.0},
}
"""At the minimum the clients' gradients have lengths from 2.8 to 9, and a clip of 6 shortens half of them."""


def ends(method: md.FedAvg, rounds: int, **how: object) -> str:
    """‖x − x*‖ / ‖x*‖ at the end, or the run's status where it did not finish."""
    toy = md.problems.synthetic_quadratics(clients=10, d=10, seed=0)
    # Adam moves by lr a step whatever the gradient, so that a tenth of the lr has steps of a like length here.
    lr = 0.005 if how.keys() & {"momentum", "optimizer"} else 0.05
    pace = md.scenarios.Pace(lr=lr, epochs=md.distributions.Integers(1, 10), batch=None, **how)
    fed = md.Federation(toy.problem, clients=toy.clients, pace=pace)
    try:
        result = md.run(method, fed, rounds, throw=False, progress=False, eval_every=rounds // 10)
    except md.MedleyError as error:
        return f"refused: {type(error).__name__}"
    if not result.status.ok:
        return result.status.outcome
    return f"{float((result.x - toy.x_star).norm() / toy.x_star.norm()):.1e}"


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"‖x − x*‖ / ‖x*‖ after {rounds} rounds\n")
    print(f"| method | {' | '.join(OPTIMIZERS)} |")
    print("|---" * (len(OPTIMIZERS) + 1) + "|")
    for method in METHODS:
        print(
            f"| {method.name} | {' | '.join(ends(method, rounds, **how) for how in OPTIMIZERS.values())} |", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
