"""Membranes of nerve cells: a segmentation network of three hospitals beside one that is trained on all slices.

    python benchmarks/membranes.py --write      # goes on where benchmarks/membranes.jsonl ends

It reads membranes.npz in $MEDLEY_DATA: 30 slices of an electron microscope, 256 × 256, and their masks. MONAI's UNet
must be importable. In run k of five, slices 6k to 6k + 5 are the test; the other 24, in their order, are eight slices
each of three hospitals. Every run begins with other weights. Three ways train the same network, with Adam, in batches
of two slices, for as many passes through the slices:

- together: FedAvg over the three hospitals, one pass a round
- central: a plain torch loop over the 24 slices, without Medley
- alone: that loop at each hospital; its figures are means over the three

A line of the file is one run: its way, its settings and its figures. --write puts the table into the page of imaging.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import medley as md

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "benchmarks" / "membranes.jsonl"
PAGE = ROOT / "docs" / "tutorials" / "imaging.md"
BEGIN = "<!-- membranes: begin -->\n"
END = "<!-- membranes: end -->\n"
WAYS = {"together": "FedAvg, three hospitals", "central": "all slices in one place", "alone": "each hospital alone"}
METRICS = {"dice": md.metrics.Dice(), "hausdorff": md.metrics.Hausdorff()}
BATCH = 2
TEST = 6

Slices = tuple[Tensor, Tensor]


def slices(every: int) -> Slices:
    """The images [30, 1, side, side] and the masks [30, side, side], with every so many pixels a side."""
    packed = np.load(Path(os.environ["MEDLEY_DATA"]) / "membranes.npz")
    images = packed["images"][:, None, ::every, ::every].astype(np.float32) / 255
    masks = np.unpackbits(packed["masks"], axis=2)[:, ::every, ::every].astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(masks)


def network(seed: int) -> nn.Module:
    """MONAI's UNet as it is, with the weights of a seed."""
    from monai.networks.nets import UNet

    torch.manual_seed(seed)
    return UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2))


def by_hand(net: nn.Module, rows: Slices, passes: int, lr: float) -> nn.Module:
    """The network after a plain loop of torch."""
    optimizer = torch.optim.Adam(net.parameters(), lr)
    for _ in range(passes):
        for batch in torch.randperm(len(rows[0])).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(rows[0][batch]), rows[1][batch]).backward()
            optimizer.step()
    return net


def figures(outputs: Tensor, truth: Tensor) -> dict[str, float]:
    """Dice and Hausdorff of the test slices."""
    return {name: metric(outputs, truth) for name, metric in METRICS.items()}


def run(way: str, seed: int, passes: int, every: int, lr: float) -> dict[str, float]:
    """The figures of one run."""
    X, y = slices(every)
    order = torch.arange(len(X))
    is_test = (order >= TEST * seed) & (order < TEST * (seed + 1))
    train = order[~is_test].chunk(3)
    test = X[is_test], y[is_test]
    if way == "together":
        fed = md.Federation(
            md.problems.Network(network(seed), start="module"),
            clients={f"hospital {k}": (X[part], y[part]) for k, part in enumerate(train, 1)},
            test=test,
            classes=2,
            pace=md.scenarios.Pace(lr=lr, batch=BATCH, optimizer=torch.optim.Adam),
        )
        result = md.run(md.FedAvg(), fed, rounds=passes, seed=seed, metrics=METRICS, eval_every=passes, progress=False)
        return {name: result.summary[name] for name in METRICS}
    parts = [torch.cat(train)] if way == "central" else train
    several = []
    for part in parts:
        net = by_hand(network(seed), (X[part], y[part]), passes, lr)
        with torch.no_grad():
            several.append(figures(net.eval()(test[0]), test[1]))
    return {name: float(np.mean([one[name] for one in several])) for name in METRICS}


def table(runs: list[dict[str, Any]]) -> str:
    """The figures by way, and their differences from the central runs, seed by seed."""
    lines = ["| | Dice | against central | Hausdorff, pixels |", "|---|---|---|---|"]
    by_way = {way: sorted((r for r in runs if r["way"] == way), key=lambda r: int(r["seed"])) for way in WAYS}
    for way, label in WAYS.items():
        dice, base = (np.array([r["dice"] for r in by_way[of]]) for of in (way, "central"))
        against = "" if way == "central" else spread(dice - base, "+.4f")
        distance = spread(np.array([r["hausdorff"] for r in by_way[way]]), ".1f")
        lines.append(f"| {label} | {spread(dice, '.4f')} | {against} | {distance} |")
    return "\n".join(lines) + "\n"


def spread(values: np.ndarray, form: str) -> str:
    """The mean and the half-width of Student's 95 % interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():{form}} ± {half:{form.lstrip('+')}}".replace("-", "−")


def main() -> None:
    """Make the runs that the file lacks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="at most 5: each has six test slices of its own")
    parser.add_argument("--passes", type=int, default=30)
    parser.add_argument("--every", type=int, default=1, help="2 halves the slices' sides")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--save", type=Path, default=RUNS)
    parser.add_argument("--write", action="store_true", help="into docs/tutorials/imaging.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = args.save.read_text(encoding="utf-8") if args.save.exists() else ""
    runs = [json.loads(line) for line in text.splitlines()]
    settings = {"passes": args.passes, "every": args.every, "lr": args.lr}
    mine = []
    for seed in range(args.seeds):
        for way in WAYS:
            key = {"way": way, "seed": seed, **settings}
            done = next((r for r in runs if key.items() <= r.items()), None)
            if done is None:
                began = time.process_time()
                done = {**key, **run(way, seed, **settings)}
                done["cpu_s"] = round(time.process_time() - began, 1)
                with args.save.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done) + "\n")
                print(done, flush=True)
            mine.append(done)
    print(table(mine))
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(before + BEGIN + table(mine) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
