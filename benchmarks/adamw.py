"""The row of docs/choose.md for clients that run AdamW: accuracy of methods on digits, unequal labels, an MLP.

    python benchmarks/adamw.py

Each method has its default settings, its best of four learning rates on validation rows (seed 100), then four fresh
seeds on test rows. Prints a line a method, then the row. About four minutes on one core.
"""

from __future__ import annotations

import logging
import math

import torch

import medley as md

METHODS = (
    md.FedAvg(), md.FedAvgM(), md.FedAdam(), md.FedCM(), md.FedDyn(), md.FedDC(), md.AFedPD(), md.SCAFFOLD(),
    md.FedNorton(), md.FedECADO(),
)  # fmt: skip
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
ROUNDS = 30
SEEDS = range(4)


def federation(lr: float) -> md.Federation:
    """10 clients, half of them a round, two passes of AdamW."""
    return md.Federation(
        md.problems.Network(md.models.mlp(64, 10)),
        data=md.datasets.digits().split(0.2),
        partition=md.partitions.Dirichlet(clients=10, alpha=0.3),
        participation=0.5,
        validation=0.2,
        pace=md.scenarios.Pace(lr=lr, epochs=2, batch=32, optimizer=torch.optim.AdamW),
    )


def accuracy(method: md.Algorithm, lr: float, seed: int, rows: str) -> float:
    """The final accuracy; 0 of a run that diverged. Raises Unsupported and RecipeError where the method refuses."""
    options = {"evaluate_on": rows, "eval_every": ROUNDS, "progress": False, "throw": False}
    r = md.run(method, federation(lr), ROUNDS, seed=seed, **options)
    return r.summary.get("accuracy", 0.0) if r.status.ok else 0.0


def main() -> None:
    """Measure, and print the row."""
    logging.getLogger("medley").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    times = dict[str, float]()
    refusing = list[str]()
    for method in METHODS:
        try:
            lr = max(RATES, key=lambda lr: accuracy(method, lr, 100, "validation"))
            ends = [accuracy(method, lr, seed, "test") for seed in SEEDS]
        except (md.Unsupported, md.RecipeError) as e:
            refusing.append(method.name)
            print(f"{method.name:10} refuses: {str(e)[:90]}", flush=True)
            continue
        mean = times[method.name] = sum(ends) / len(ends)
        sd = math.sqrt(sum((v - mean) ** 2 for v in ends) / (len(ends) - 1))
        print(f"{method.name:10} {mean:.3f} (sd {sd:.3f}) at lr {lr:g}", flush=True)
    ranked = sorted(times, key=lambda m: -times[m])
    figures = ", ".join(f"{m} {times[m]:.2f}".replace("0.", ".") for m in ranked)
    print(
        f"\n| must run Adam or another optimizer of their own | {', '.join(f'`{m}`' for m in ranked[:3])} | accuracy "
        f"on digits under AdamW, best of {len(RATES)} rates, {len(SEEDS)} seeds (`benchmarks/adamw.py`): {figures}; "
        f"{' and '.join(refusing) or 'none'} refuse |"
    )


if __name__ == "__main__":
    main()
