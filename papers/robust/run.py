"""Accuracy and attack success over the share of attackers: nine rules against six attacks on unequal clients.

    python papers/robust/run.py --out papers/robust/results.jsonl

Every finished run is one line of the file, and is not run again. The table beside it (.md), the page (.html) and the
pictures (.svg) are made from the file. --only gives some attacks.

21 clients hold the 1,438 training rows of the digits: client 0 is the server's root set, 100 rows drawn uniformly, and
never lies; the others have the rest by Dirichlet's law (α = 0.3), 10 rows at least. A network of one hidden layer of 32
trains by FedAvg for 60 rounds of one epoch, with weights of 1/21. Each rule counts on the true share of attackers.

Every cell has ten seeds. It gets thirty if its mean over the ten is within five points of the bound by which the page
calls a rule broken, or of what the page says of a backdoor; and so does every cell without attackers.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import lying

import medley as md
from medley.partitions import Dirichlet
from medley.runtime import streams
from medley.scenarios import Attack, Pace
from medley.storage.atomic import replacing

R = md.robust

KINDS = ("label flip", "sign flip", "gaussian", "alie", "ipm", "backdoor")
SHARES = (0.1, 0.2, 0.4)
ROUNDS = 60
ROOT_ROWS = 100
RULES = (
    "mean", "TrimmedMean", "Median", "GeometricMedian", "Krum", "MultiKrum", "CentredClipping", "FLTrust",
    "NNM-TrimmedMean",
)  # fmt: skip
SEEDS = 10
MORE = 30
NEAR = 0.05
SUCCESSES = (lying.SUCCEEDS, 0.1)
"""How near is near, and the backdoor's successes that the page speaks of."""


def method(name: str, share: float) -> md.contract.algorithm.Algorithm[Any, Any]:
    """FedAvg with this rule, which bears this share of attackers: of 21 clients, as many as `Attack` takes."""
    share = int(share * 21 + 1e-9) / 21
    rules = {
        "TrimmedMean": R.TrimmedMean(share),
        "Median": R.Median(),
        "GeometricMedian": R.GeometricMedian(),
        "Krum": R.Krum(share),
        "MultiKrum": R.MultiKrum(share),
        "CentredClipping": R.CentredClipping(),
        "FLTrust": R.FLTrust(0),
        "NNM-TrimmedMean": R.Mixed(R.TrimmedMean(share), share),
    }
    return md.FedAvg() if name == "mean" else md.Robust(md.FedAvg(), rule=rules[name])


@functools.cache
def clients(seed: int) -> list[tuple[Any, Any]]:
    """The root set, and the other rows by Dirichlet's law."""
    data = md.datasets.digits()
    order = streams.rng(seed, "root").permutation(len(data.X))
    root = order[:ROOT_ROWS]
    rest = np.sort(order[ROOT_ROWS:])
    parts = Dirichlet(20, 0.3, minimum=10).split(data.y[rest].numpy(), len(rest), seed, {})
    return [(data.X[rows], data.y[rows]) for rows in (root, *(rest[p] for p in parts))]


def once(rule: str, kind: str, share: float, seed: int) -> dict[str, Any]:
    """One run. Accuracy and success are means of the last three evaluations, ten rounds apart."""
    data = md.datasets.digits()
    # Without attackers, the trigger's success is that on a model which has never seen it.
    attack = Attack("backdoor" if kind == "none" else kind, share, honest=(0,))  # type: ignore[arg-type]
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 10, (32,))),
        clients=clients(seed),
        test=(data.X_test, data.y_test),
        classes=10,
        pace=Pace(lr=0.1, epochs=1, batch=16),
        weights="uniform",
        attack=attack,
    )
    r = md.run(method(rule, share), fed, ROUNDS, seed=seed, eval_every=10, throw=False, progress=False)
    if r.status.outcome == "interrupted":
        raise KeyboardInterrupt
    out = {"fold": rule, "attack": kind, "share": share, "seed": seed, "status": r.status.outcome}
    for column in ("accuracy", "attack_success"):
        values = [row[column] for row in r.history[-3:] if column in row]
        if values:
            out[column] = sum(values) / len(values)
    return out


def cells(kinds: Sequence[str]) -> list[tuple[str, str, float]]:
    """Rule, attack and share of each cell."""
    at = [("none", 0.0), *itertools.product(kinds, SHARES)]
    return [(rule, kind, share) for kind, share in at for rule in RULES]


def near(results: Sequence[dict[str, Any]], cell: tuple[str, str, float]) -> bool:
    """Whether the mean of this cell over the first seeds is near a bound."""
    mean = lambda of, key: float(
        np.mean([r.get(key, np.nan) for r in results if cell_of(r) == of and r["seed"] < SEEDS])
    )
    bounds = [("accuracy", mean((RULES[0], "none", 0.0), "accuracy") - lying.BREAKS)]
    bounds += [("attack_success", success) for success in SUCCESSES if cell[1] == "backdoor"]
    return cell[1] == "none" or any(abs(mean(cell, key) - bound) <= NEAR for key, bound in bounds)


def cell_of(r: dict[str, Any]) -> tuple[str, str, float]:
    """Rule, attack and share of a run."""
    return r["fold"], r["attack"], r["share"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="attacks, with commas; default: all")
    parser.add_argument("--out", type=Path, default=Path("papers/robust/results.jsonl"))
    args = parser.parse_args()
    kinds = args.only.split(",") if args.only else KINDS
    results = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(*cell_of(r), r["seed"]) for r in results}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as file:
        for seeds in (range(SEEDS), range(SEEDS, MORE)):
            to_do = [cell for cell in cells(kinds) if seeds.start == 0 or near(results, cell)]
            for case in ((*cell, seed) for seed in seeds for cell in to_do):
                if case not in done:
                    results.append(once(*case))
                    file.write(json.dumps(results[-1]) + "\n")
                    file.flush()
    keys = ("fold", "attack", "share", "seed", "accuracy", "attack_success")
    points = [lying.Point(*(r.get(k) for k in keys)) for r in results]
    written = {
        ".md": lying.table(points),
        ".html": lying.page(
            points, title="Rules against attackers", command=f"python papers/robust/run.py --out {args.out}"
        ),
        ".svg": lying.picture(points),
    }
    for suffix, text in written.items():
        with replacing(args.out.with_suffix(suffix)) as tmp:
            tmp.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
