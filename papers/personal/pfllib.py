"""PFLlib beside Medley: the same splits of Fashion-MNIST, the same network, the same settings.

    python papers/personal/pfllib.py --pfllib DIR --python DIR/venv/bin/python

DIR is a checkout of github.com/TsingZ0/PFLlib; --python is an interpreter with its requirements. Its files are run as
they are. Fashion-MNIST is looked for in $MEDLEY_DATA.

PFLlib's own functions cut 6,000 pictures into 20 clients with 2 labels each, anew for each seed, and each client's rows
into 75 % for training and 25 % for tests. Settings are PFLlib's defaults: lr 0.005, batches of 10 with the last short
one left out, 1 local epoch, all clients in every round. PFLlib's network DNN has a log-softmax between body and head
where a method splits it; Medley's has it in the same place, and begins at PFLlib's x₀. Every finished run is added to
pfllib.json, and is not run again; the table (pfllib.md) is made from that file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn

import medley as md
from medley.storage.atomic import replacing

HERE = Path(__file__).parent
CLIENTS = 20
ROUNDS = 50
LR = 0.005
BATCH = 10
ROWS = 6000
T = 2.776
"""Quantile of Student's t for 95 % intervals of 5 seeds."""

METHODS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "FedAvg": (md.FedAvg(), ()),
    "FedPer": (md.FedPer(), ()),
    "FedRep": (md.FedRep(head_epochs=1), ("-pls", "1")),
    "Ditto": (md.Ditto(mu=1.0, own_epochs=1), ("-pls", "1", "-mu", "1.0")),
}
"""A method of ours and PFLlib's options for the same."""

SPLIT = """
import os, random, sys
import numpy as np
from utils.dataset_utils import save_file, separate_data, split_data
rows, folder, seed, clients = sys.argv[1], sys.argv[2] + "/", int(sys.argv[3]), int(sys.argv[4])
random.seed(seed); np.random.seed(seed)
with np.load(rows) as f:
    X, y, how = separate_data((f["X"], f["y"]), clients, 10, True, False, "pat", class_per_client=2)
train, test = split_data(X, y)
for part in ("train", "test"):
    os.makedirs(folder + part, exist_ok=True)
places = [folder + name for name in ("config.json", "train/", "test/")]
save_file(*places, train, test, clients, 10, how, True, False, "pat")
"""
"""Run by PFLlib's interpreter in its folder `dataset`."""

READ = """
import json, sys, h5py
with h5py.File(sys.argv[1]) as f:
    print(json.dumps([float(v) for v in f["rs_test_acc"]]))
"""


def split(pfllib: Path, python: Path, seed: int) -> Path:
    """The folder of this seed's clients; made by PFLlib's functions where it is not there."""
    folder = pfllib / "dataset" / f"FashionMNIST-{seed}"
    if not (folder / "config.json").exists():
        data = md.datasets.fashion_mnist().take(ROWS, 1)
        with tempfile.TemporaryDirectory() as at:
            # PFLlib maps pixels to [−1, 1].
            X = 2 * data.X.float().reshape(-1, 1, 28, 28) - 1
            np.savez(Path(at) / "rows.npz", X=X.numpy(), y=data.y.numpy())
            command = [str(python), "-c", SPLIT, str(Path(at) / "rows.npz"), folder.name, str(seed), str(CLIENTS)]
            subprocess.run(
                command, cwd=folder.parent, env={**os.environ, "PYTHONPATH": "."}, check=True, stdout=subprocess.DEVNULL
            )
    return folder


def theirs(pfllib: Path, python: Path, method: str, seed: int) -> dict[str, Any]:
    """PFLlib's accuracy over all own test rows: after the last round, and the best of all rounds."""
    name = split(pfllib, python, seed).name
    # fmt: off
    command = [str(python), "main.py", "-data", name, "-m", "DNN", "-algo", method, "-gr", str(ROUNDS), "-dev", "cpu",
               "-lr", str(LR), "-lbs", str(BATCH), "-ls", "1", "-nc", str(CLIENTS), "-jr", "1.0", *METHODS[method][1]]
    # fmt: on
    subprocess.run(
        command, cwd=pfllib / "system", env={**os.environ, "PYTHONPATH": "."}, check=True, stdout=subprocess.DEVNULL
    )
    file = pfllib / "results" / f"{name}_{method}_test_0.h5"
    done = subprocess.run([str(python), "-c", READ, str(file)], capture_output=True, text=True, check=True)
    over = json.loads(done.stdout)
    # Its Ditto lists the server's model and the clients' own ones in turn; both count for its best accuracy.
    personal = over[1::2] if method == "Ditto" else over
    assert len(personal) == ROUNDS + 1
    return {"last": personal[-1], "best": max(over)}


def ours(pfllib: Path, python: Path, method: str, seed: int) -> dict[str, Any]:
    """Medley's accuracy over all own test rows after the last round."""
    folder = split(pfllib, python, seed)
    clients = []
    for i in range(CLIENTS):
        parts = [np.load(folder / part / f"{i}.npz", allow_pickle=True)["data"].item() for part in ("train", "test")]
        rows = [(torch.as_tensor(p["x"]).float().flatten(1), torch.as_tensor(p["y"]).long()) for p in parts]
        clients.append((*rows[0], *rows[1]))
    torch.manual_seed(0)  # PFLlib's x₀, whatever the split
    between = () if method == "Ditto" else (nn.LogSoftmax(dim=1),)
    net = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), *between, nn.Linear(100, 10))
    pace = md.scenarios.Pace(lr=LR, epochs=1, batch=BATCH, drop_last=True)
    fed = md.Federation(md.problems.Network(net, start="module"), clients=clients, classes=10, pace=pace)
    r = md.run(METHODS[method][0], fed, ROUNDS, seed=seed, eval_every=ROUNDS, progress=False)
    rows = sum(row["test_rows"] for row in r.clients)
    return {"last": sum(row["accuracy"] * row["test_rows"] for row in r.clients) / rows}


def interval(values: list[float]) -> str:
    """The mean and the half-width of its 95 % interval, in points."""
    return f"{100 * fmean(values):.2f} ± {100 * T * stdev(values) / len(values) ** 0.5:.2f}"


def main() -> None:
    """Run both, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfllib", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--methods", default="FedAvg,FedPer", help="any of " + ", ".join(METHODS))
    parser.add_argument("--out", type=Path, default=HERE / "pfllib.json")
    args = parser.parse_args()
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}

    def once(which: Any, method: str, seed: int) -> dict[str, Any]:
        key = f"{which.__name__} {method} seed={seed}"
        if key not in done:
            done[key] = which(args.pfllib.resolve(), args.python.absolute(), method, seed)
            print(key, done[key], flush=True)
            with replacing(args.out) as tmp:
                tmp.write_text(json.dumps(done, indent=0))
        return done[key]  # type: ignore[no-any-return]

    lines = ["| method | Medley | PFLlib | Medley − PFLlib | PFLlib's best round above its last |", "|" + "---|" * 5]
    for method in args.methods.split(","):
        us, them = ([once(which, method, seed) for seed in range(5)] for which in (ours, theirs))
        gaps = [u["last"] - t["last"] for u, t in zip(us, them, strict=True)]
        best = [t["best"] - t["last"] for t in them]
        columns = [[u["last"] for u in us], [t["last"] for t in them], gaps, best]
        lines.append(f"| {method} | " + " | ".join(interval(c) for c in columns) + " |")
        args.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
