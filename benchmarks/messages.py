"""The cost of a message to a Flower SuperNode, which starts a process for each: CPU seconds of the parts.

    python benchmarks/messages.py [--repeats 5]

Needs the extra ``flower``. On top comes waiting: SuperNodes look for work every 3 seconds.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

PYTHON = [sys.executable, "-c"]
APP = "from importlib import resources; from medley import flower, recipe"
DATA = f"{APP}; r = resources.files('medley.deploy') / 'scripts' / 'recipe.txt'; "
DATA += "recipe.loads(r.read_text(encoding='utf-8')).federation().draw(0)"
PARTS = {
    "Flower's own process": ([str(Path(sys.executable).with_name("flwr-clientapp")), "--help"], None),
    "torch": ([*PYTHON, "import torch"], None),
    "Medley": ([*PYTHON, "import medley.flower"], "torch"),
    "data": ([*PYTHON, DATA], "Medley"),
}
"""Name -> what to run, and the part that it does beside."""


def seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if shutil.which(PARTS["Flower's own process"][0][0]) is None:
        print("Flower is not installed here: pip install -e '.[flower]'")
        return
    durations: dict[str, list[float]] = {name: [] for name in PARTS}
    for _ in range(args.repeats):
        for name, (command, _) in PARTS.items():
            durations[name].append(seconds(command))
    medians = {name: statistics.median(times) for name, times in durations.items()}
    costs = {name: medians[name] - (medians[baseline] if baseline else 0.0) for name, (_, baseline) in PARTS.items()}
    print(f"CPU seconds of a message at a client, medians of {args.repeats}")
    for name, cost in costs.items():
        print(f"{name:22s} {cost:5.2f}")
    print(f"{'all':22s} {sum(costs.values()):5.2f}")


if __name__ == "__main__":
    main()
