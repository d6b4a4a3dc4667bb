"""FLamby's two small sets with every method of the league tuned, FedNorton among them.

    python papers/flamby/tuned.py
    python papers/flamby/tuned.py --sets heart --methods FedAvg,FedNorton --out runs/tuned.jsonl

Centres, split, local steps, batches, rounds and x₀ are FLamby's, as in `run.py`. The clients' lr and the method's own
knob are tuned as in the league, 8 runs at most, by the figure on a fifth of the training rows. Then the five seeds
42 to 46 train on all training rows. Every run is a line of the file as it ends, and is not run again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import medley as md

HERE = Path(__file__).parent
TUNING_SEED = 100
SEEDS = range(42, 47)
LRS = {"heart": 0.01, "brca": 0.03}
"""The middle of the common grid, a tenth to three times of which every method tries first."""


def script(path: Path) -> ModuleType:
    """A script beside this one, as a module of its own name."""
    spec = importlib.util.spec_from_file_location(f"flamby_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


flamby = script(HERE / "run.py")
sys.path.append(str(HERE.parent / "league"))  # of what the entrants import
league = script(HERE.parent / "league" / "entrants.py")


def accuracy(z: Tensor, y: Tensor) -> float:
    return float(((z > 0) == (y > 0.5)).double().mean())


def once(name: str, label: str, point: Any, seed: int, tuning: bool) -> dict[str, Any]:
    """One run, as a line of the file."""
    how = flamby.SETS[name]
    torch.manual_seed(seed)
    linear = torch.nn.Linear(how.features, 1)
    x0 = torch.cat([linear.weight.detach().flatten(), linear.bias.detach()])
    problem = md.problems.Network(linear, loss=md.problems.cox if name == "brca" else flamby.bce)
    pace = md.scenarios.Pace(lr=LRS[name], steps=100, batch=how.batch)
    fed = md.Federation(
        problem,
        data=flamby.data(name),
        partition=md.partitions.ByKey("centre"),
        pace=pace,
        validation=0.2 if tuning else 0.0,
    )
    result = md.run(
        league.ENTRANTS[label].at(point),
        fed,
        how.rounds,
        seed=seed,
        init=x0,
        throw=False,
        progress=False,
        eval_every=how.rounds,
        evaluate_on="validation" if tuning else "test",
        metrics={"figure": md.metrics.concordance if name == "brca" else accuracy},
    )
    if result.status.outcome == "interrupted":
        raise KeyboardInterrupt
    good = result.status.outcome == "finished"
    figure = result.summary["figure"] if tuning else flamby.by_client(name, result.x)
    line = {"set": name, "method": label, "point": list(point), "seed": seed, "tuning": tuning}
    return line | {"status": result.status.outcome, "figure": figure if good else None}


def fill(out: Path, runs: list[dict[str, Any]], name: str, label: str) -> None:
    """The runs that a method lacks on a set."""

    def line(point: Any, seed: int, tuning: bool) -> dict[str, Any]:
        key = {"set": name, "method": label, "point": list(point), "seed": seed, "tuning": tuning}
        result = next((r for r in runs if key.items() <= r.items()), None)
        if result is None:
            result = once(name, label, point, seed, tuning)
            runs.append(result)
            with out.open("a", encoding="utf-8") as f:
                f.write(json.dumps(result) + "\n")
        return result

    def judge(point: Any) -> tuple[float, ...]:
        figure = line(point, TUNING_SEED, True)["figure"]
        return (-1.0,) if figure is None else (figure,)

    best = league.search(league.ENTRANTS[label], judge)
    for seed in SEEDS:
        line(best, seed, False)


def table(runs: list[dict[str, Any]]) -> str:
    """The methods of each set, the best mean first."""
    lines = ["| set | method | tuned | lr | knob | seeds |", "|---|---|---|---|---|---|"]
    for name in LRS:
        rows = []
        for label, entrant in league.ENTRANTS.items():
            finals = [r for r in runs if (r["set"], r["method"], r["tuning"]) == (name, label, False)]
            good = [r["figure"] for r in finals if r["figure"] is not None]
            if not good:
                continue
            k, j = finals[0]["point"]
            knob = f"{entrant.knob} {entrant.ladder[j]:g}" if entrant.knob else ""
            lr = f"{LRS[name] * 10 ** (k / 2):.2g}"
            each = ", ".join(f"{v:.3f}" for v in good)
            rows.append(
                (fmean(good), f"| {name} | {label} | {flamby.mean_and_deviation(good)} | {lr} | {knob} | {each} |")
            )
        lines += [text for _, text in sorted(rows, reverse=True)]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="heart,brca")
    parser.add_argument("--methods", default="", help="default: all of the league's groups with rounds")
    parser.add_argument("--out", type=Path, default=HERE / "tuned.jsonl")
    args = parser.parse_args()
    every = [label for label, e in league.ENTRANTS.items() if "rounds" in e.groups]
    methods = args.methods.split(",") if args.methods else every
    try:
        for allowed, names, option in ((every, methods, "--methods"), (list(LRS), args.sets.split(","), "--sets")):
            for name in names:
                if name not in allowed:
                    raise md.RecipeError.unknown(name, allowed, f"papers/flamby/tuned.py {option}")
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = args.out.read_text(encoding="utf-8") if args.out.exists() else ""
    runs = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    args.out.write_text("".join(json.dumps(r) + "\n" for r in runs), encoding="utf-8")
    try:
        for name in args.sets.split(","):
            for label in methods:
                fill(args.out, runs, name, label)
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
