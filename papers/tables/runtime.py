"""FedECADO's Table 6: a round's time relative to FedProx, VGG-11 on CIFAR-10 with 100 clients.

    python papers/tables/runtime.py
    python papers/tables/runtime.py --methods "FedECADO;FedNorton"    # beside FedProx; the others' figures stay

The CPU time of four rounds is that of a run of six without that of a run of two. The methods take turns in every
repeat, on the same clients; the least of the repeats counts. Writes results/runtime.json.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from run import HERE

import medley as md
from experiments import EXPERIMENTS, FIRST_ORDER

REPEATS = 5
SHORT = 2
LONG = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=";".join(FIRST_ORDER), help="separated by ;, default all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    fed = EXPERIMENTS["fedecado-1"].build()
    best = dict.fromkeys(["FedProx", *args.methods.split(";")], float("inf"))
    for repeat in range(REPEATS):
        for name in best:
            best[name] = min(best[name], seconds(fed, name, LONG) - seconds(fed, name, SHORT))
        print(repeat, {name: f"{s / (LONG - SHORT):.3f} s" for name, s in best.items()}, flush=True)
    figures = {name: round(s / best["FedProx"], 3) for name, s in best.items()}
    HERE.mkdir(exist_ok=True)
    path = HERE / "runtime.json"
    if path.exists():
        figures = json.loads(path.read_text(encoding="utf-8"))["of FedProx"] | figures
    figures = {name: figures[name] for name in FIRST_ORDER if name in figures}
    path.write_text(json.dumps({"repeats": REPEATS, "of FedProx": figures}, indent=1) + "\n", encoding="utf-8")


def seconds(fed: md.Federation, name: str, rounds: int) -> float:
    began = time.process_time()
    md.run(
        FIRST_ORDER[name],
        fed,
        rounds,
        eval_every=rounds,
        eval_rows=100,
        transport=md.transports.InProcess(),
        progress=False,
    )
    return time.process_time() - began


if __name__ == "__main__":
    main()
