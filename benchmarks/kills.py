"""Runs of every kind killed with SIGKILL at random moments, finished, and compared with runs that were never killed.

python benchmarks/kills.py --count 200 --save benchmarks/sound.json

The work: md.run, md.compare with one and two jobs, md.tune with a folder, and the commands run, compare and tune.
benchmarks/soak.py kills single runs of more methods.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from differential import report

import medley as md
from medley.cli import app
from medley.storage.run_folder import holds_run

RECIPE = """
[problem]
kind = "Softmax"
mu = 1e-3
[data]
name = "digits"
train = 300
validation = 0.2
[partition]
kind = "IID"
clients = 4
[run]
rounds = 12
seeds = 2
checkpoint_every = 3
[[methods]]
kind = "FedAvg"
[[methods]]
kind = "SCAFFOLD"
[tune]
rounds = 6
grid = { lr = [0.3, 1.0] }
"""


def jobs(recipe: Path) -> dict[str, Callable[[Path], str]]:
    """Work by name: each takes a folder, goes on where an earlier call was killed, and returns a digest."""
    r = md.recipe.load(recipe)
    fed = r.federation()
    both = r.methods()

    def run(folder: Path) -> str:
        where: dict[str, Any] = {"resume" if holds_run(folder) else "checkpoint": folder}
        return md.run(both[1], fed, 40, **where, checkpoint_every=3, progress=False).digest

    def compare(folder: Path) -> str:
        board = md.compare(both, fed, 12, 2, jobs=1, save=folder, progress=False)
        return " ".join(result.digest for result in board.results)

    def compare_2(folder: Path) -> str:
        board = md.compare(both, fed, 12, 2, jobs=2, save=folder, progress=False)
        return " ".join(result.digest for result in board.results)

    def tune(folder: Path) -> str:
        best = md.tune(both[0], fed, {"lr": [0.3, 1.0, 3.0]}, rounds=8, seeds=2, jobs=1, save=folder, progress=False)
        return f"{best.lr} {json.dumps(best.record, sort_keys=True, default=str)}"

    def command(*words: str) -> None:
        with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.redirect_stderr(open(os.devnull, "w")):
            app(list(words), standalone_mode=False)

    def run_command(folder: Path) -> str:
        exists = holds_run(folder)
        where = ["--resume", str(folder)] if exists else [str(recipe), "--method", "scaffold", "--save", str(folder)]
        command("run", *([str(recipe), "--method", "scaffold"] if exists else []), *where)
        return md.Result.load(folder).digest

    def compare_command(folder: Path) -> str:
        command("compare", str(recipe), "--jobs", "2", "--save", str(folder))
        return " ".join(md.Result.load(path.parent).digest for path in sorted(folder.glob("*/seed-*/result.json")))

    def tune_command(folder: Path) -> str:
        folder.mkdir(exist_ok=True)
        tuned = folder / "tuned.toml"
        if tuned.exists():
            md.recipe.load(tuned).methods()  # whole, or not there
        command("tune", str(recipe), "--jobs", "1", "--save", str(tuned))
        return tuned.read_text()

    work = (run, compare, compare_2, tune, run_command, compare_command, tune_command)
    return {f.__name__: f for f in work}


def kills(count: int, first: int) -> dict[str, Any]:
    """``count`` kills with SIGKILL at random moments; the work is finished, and has the digest of a whole run."""
    rng = random.Random(first)
    counts = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="medley-differential-") as base:
        recipe = Path(base) / "recipe.toml"
        recipe.write_text(RECIPE)
        all_jobs = jobs(recipe)
        references: dict[str, tuple[str, float]] = {}
        for name, work in all_jobs.items():
            began = time.perf_counter()
            references[name] = work(Path(base) / f"whole-{name}"), time.perf_counter() - began
        assert references["compare"][0] == references["compare_2"][0], "2 jobs: other bits"
        k = 0
        while sum(counts.values()) < count:
            name = list(all_jobs)[k % len(all_jobs)]
            folder = Path(base) / str(k)
            want, seconds = references[name]
            k = k + 1
            for _ in range(rng.randint(1, 3)):
                counts[name] += killed(lambda: all_jobs[name](folder), rng.uniform(0, seconds))  # noqa: B023 (called at once)
            digest = finished(all_jobs[name], folder)
            assert digest == want, f"{name}, attempt {k}: {digest}, and whole {want}"
    return {"kills": sum(counts.values()), "finished": k, "by_kind": dict(counts)}


def finished(work: Callable[[Path], str], folder: Path) -> str:
    """The digest once the work is done. Workers of a killed parent may hold on for a moment."""
    for _ in range(100):
        try:
            return work(folder)
        except md.RecipeError as e:
            if "is in use" not in str(e):
                raise
            time.sleep(0.1)
    raise AssertionError(f"{folder} stays locked")


def killed(work: Callable[[], object], after: float) -> int:
    """1 if a process that does this was killed so many seconds after its birth, 0 if it had ended by then."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return int(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="put the counts into this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.CRITICAL)
    began = time.monotonic()
    outcome = kills(args.count, args.seed)
    report("kills", outcome | {"failures": 0}, began, args.save)


if __name__ == "__main__":
    sys.exit(main())
