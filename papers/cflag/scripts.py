"""C-FLAG as the authors' scripts run it, task-incremental, beside C-FLAG as published.

    python papers/cflag/scripts.py            # what scripts.jsonl lacks; MEDLEY_DATA has Fashion-MNIST
    python papers/cflag/scripts.py --table    # the table of README.md

The scripts are Task_incremental of SatishKeshri/Continual_FL at 3c5484f with the flags of its run_experiment.sh. They
are tuned as the other methods: six learning rates (of Adam), judged on validation rows of one seed that no table has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lines
import run
import settings
import torch

import medley as md
from medley.algorithms.cflag.messages import Anchor, Memory, Server, Snapshot, Update
from medley.contract import Client, Cohort, Model, Rows, Vec, on_client

OUT = Path(__file__).with_name("scripts.jsonl")
LRS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TABLES = ("ti_dir", "ti_iid")
BESIDE = ("CFLAG.joint", "ERring", "CFLAG as published", "CFLAG as published, average", "CFLAG as published, worst")
CLAMP = 0.5
EPS = 1e-6
MEMORY_BATCH = 16
"""Defaults of the scripts; gradients of memory batches are summed, and divided by the number of rows."""


def agreement(u: Vec, v: Vec) -> float:
    """Σ over parameters of the mean of u·v, in the place of an inner product."""
    sizes = [p.numel() for p in settings.net().parameters()]
    return sum(float(p.mean()) for p in (u * v).split(sizes))


@dataclass(frozen=True)
class InScripts(md.CFLAG):
    """Local steps are Adam's, along the factor of Table 1 times ∇g − ∇g_i + ∇_b g_i(z), then one of Adam on the memory.

    Clients have equal weights, as many steps as their own epochs make, and no table.
    """

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← the mean of the clients' models."""
        at_x = {i: up for i, up in clients.ask(self.snapshot, Model(s.x)).each().items() if up.g is not None}
        request = Anchor(mean([up.g for up in at_x.values()]), mean([up.f for up in at_x.values()]), 0, len(at_x))
        ups = clients.ask(self.learn, request, ids=tuple(at_x)).each()
        s.x = s.x - torch.stack([up.delta for up in ups.values()]).mean(0)

    @on_client
    def snapshot(self, me: Client[Memory], request: Model) -> Snapshot:
        """∇g_i, and ∇f_i as the scripts scale it."""
        g = me.problem.grad(request.x) if me.problem.n else None
        f = me.replay.problem.grad(request.x) / MEMORY_BATCH if me.replay else None
        me.memory = Memory(request.x, g, f)
        return Snapshot(g=g, f=f, n=me.problem.n, m=0, past=0, steps=me.steps)

    @on_client
    def learn(self, me: Client[Memory], request: Anchor) -> Update:
        """x − z_E after two epochs and the step on the memory."""
        x, g_i, f, beta = me.memory.x, me.memory.g, request.f, me.pace.lr
        assert x is not None
        assert g_i is not None
        me.memory = Memory()
        alpha_t, beta_t = (beta, beta) if f is None else rates(f, request.g, beta, beta, beta, self.L)

        def steered(z: Vec, g: Vec, rows: Rows) -> Vec:
            G = request.g - g_i + g
            if f is not None:
                G = G * rates(f, G, alpha_t, beta_t, beta, self.L)[1] / beta
            return G.clamp(-CLAMP, CLAMP)

        adam = replace(me, pace=replace(me.pace, optimizer="adam"))
        z = x + adam.descend(x, correct=steered).step
        if me.replay:
            v = (me.replay.problem.grad(z) / MEMORY_BATCH).clamp(-CLAMP, CLAMP)
            z = z - beta * v / (v.abs() + 1e-8)  # Adam's first step
        return Update(x - z, 0.0, alpha_t)


def rates(f: Vec, G: Vec, alpha_t: float, beta_t: float, lr: float, L: float) -> tuple[float, float]:
    """Table 1 as the scripts have it: the rate on the memory, which they do not use for its step, and that of G.

    Args:
        f, G: gradients of the memory and of the task.
        alpha_t, beta_t: the rates of the server; ``lr`` before it has any.
        lr: Adam's.
        L: the smoothness.
    """
    along = agreement(f, G)
    if along <= 0:
        return lr * (1 - along / max(agreement(f, f), EPS)), beta_t
    return alpha_t, max((1 - alpha_t * L) / max(L * agreement(G, G), EPS) * max(along, EPS), EPS)


def mean(vectors: Sequence[Vec | None]) -> Vec | None:
    """The mean of those that are there."""
    there = [v for v in vectors if v is not None]
    return torch.stack(there).mean(0) if there else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    args = parser.parse_args()
    lines.quiet()
    for table in [] if args.table else TABLES:
        grid = [{"lr": lr} for lr in LRS]
        tuning = [stored(table, "tuning", point, settings.TUNED_ON) for point in grid]
        for seed in settings.SEEDS:
            stored(table, "final", run.chosen(tuning), seed)
    print(markdown())
    return 0


def stored(table: str, kind: str, point: dict, seed: int) -> lines.Line:
    """The line of a run; it is made if it is not there."""
    key = {"kind": kind, "table": table, "method": "CFLAG in the scripts", "point": point, "seed": seed}
    line = lines.find(there(), key)
    if line is None:
        fed = settings.federation(table)
        began = time.process_time()
        r = md.run(
            md.Tuned(InScripts(), point["lr"]),
            fed,
            settings.ROUNDS,
            seed=seed,
            eval_every=10,
            evaluate_on="validation" if kind == "tuning" else "test",
            throw=False,
            progress=False,
        )
        line = key | {
            "status": r.status.outcome,
            "figures": {k: v for k, v in r.summary.items() if k in run.KEPT},
            "megabytes": round((r.ledger.up + r.ledger.down) / 1e6, 3),
            "cpu_seconds": round(time.process_time() - began, 3),
        }
        with OUT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return line


def there() -> list[lines.Line]:
    """The finished runs."""
    return [json.loads(line) for line in OUT.read_text(encoding="utf-8").splitlines()] if OUT.exists() else []


def markdown() -> str:
    """By table: Acc, Fgt and Learn, and the difference to C-FLAG as published with fixed rates."""
    text = []
    for table in TABLES:
        ours = [x for x in there() if x["kind"] == "final" and x["table"] == table]
        others = {name: run.finals(lines.HERE, table, name) for name in BESIDE}
        text += [f"### {table}, and the scripts", "", *run.heading("CFLAG as published")]
        rows = {"CFLAG in the scripts": ours, **others}
        text += [run.row(name, its, [others["CFLAG as published"]]) for name, its in rows.items()] + [""]
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
