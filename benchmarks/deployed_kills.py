"""Runs on a deployment with a node, the server's app or the SuperLink killed at a random moment, to their end.

python benchmarks/deployed_kills.py --count 30 --save benchmarks/sound.json

TLS, proxy, keys and three nodes are those of ``medley deploy init``. Each run has the digest of a run of the same
method that nothing happened to. Needs ``pip install "medley-fl[flower]"`` and nginx.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from differential import report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.killed import METHODS, VICTIMS, deployment, ended


def kills(wanted: int, seed: int, methods: Sequence[str] = METHODS) -> Iterator[dict[str, Any]]:
    """So many kills at random moments, the methods and victims in turn; yields the counts after each run.

    Raises AssertionError at another digest.
    """
    rng, counts, ran = random.Random(seed), Counter[str](), Counter[str]()
    restarts, times, loads = 0, list[float](), list[float]()
    for k, kind in enumerate(methods):
        share = wanted // len(methods) + (k < wanted % len(methods))
        with (
            tempfile.TemporaryDirectory(prefix="medley-kills-") as tmp,
            deployment(Path(tmp) / "server", kind) as there,
        ):
            whole, turn = ended(there, "whole"), count(k)
            while ran[kind] < share:
                n = next(turn)
                victim = list(VICTIMS)[n % len(VICTIMS)]
                end = ended(there, f"run{n}", victim, rng.uniform(0, whole.seconds), rng)
                print(
                    f"{kind}, {victim}: {end.killed} killed, {end.restarts} restarts, {end.seconds:.0f} s", flush=True
                )
                assert end.digest == whole.digest, f"{kind}, {victim}:\n{end.log}\n{whole.log}\n{there.logs()}"
                counts[victim] += end.killed
                ran[kind] += end.killed
                restarts += end.restarts
                times.append(end.seconds)
                loads.append(os.getloadavg()[0])
                yield {
                    "kills": sum(counts.values()),
                    "by_process": dict(counts),
                    "by_method": dict(ran),
                    "restarts": restarts,
                    "seed": seed,
                    "seconds a run": [round(f(times), 1) for f in (min, statistics.median, max)],
                    "load": [round(f(loads), 1) for f in (min, max)],
                    "failures": 0,
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--methods", default=",".join(METHODS), help="which of the methods, with commas between them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="put the counts into this JSON file")
    args = parser.parse_args()
    began = time.monotonic()
    for found in kills(args.count, args.seed, args.methods.split(",")):
        report("deployed kills", found, began, args.save)


if __name__ == "__main__":
    sys.exit(main())
