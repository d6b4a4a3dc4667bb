"""A million rows by each kind of file and by a frame, and the first round of ten million clients: CPU time and memory.

    python benchmarks/doors.py [--rows 1000000] [--repeats 7]
    python benchmarks/doors.py --other ../before --to benchmarks/doors.json   # a checkout with its own .venv

Five numbers, a label and one of a thousand clients a row, read into a `Dataset`. Each measurement is a process of its
own on one thread; with ``--other`` the two checkouts take turns. Printed are the medians of CPU seconds, user and
system, without imports, and of the process's peak memory in MiB; ``--to`` also writes the single figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

READ = """
import logging, resource
import torch
import medley as md
md.datasets.npz
logging.disable(logging.CRITICAL)
begin = resource.getrusage(resource.RUSAGE_SELF)
{code}
end = resource.getrusage(resource.RUSAGE_SELF)
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
print(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime, peak)
"""

CASES = {
    "CSV": 'md.datasets.csv("rows.csv", "label", keys=["client"])',
    "Parquet": 'md.datasets.parquet("rows.parquet", "label", keys=["client"])',
    "npz, labels are numbers": 'md.datasets.npz("numbers.npz", keys=["client"])',
    "npz, labels are text": 'md.datasets.npz("texts.npz", keys=["client"])',
    "a frame": "md.datasets.frame(table, 'label', 'client')",
}
"""What is read, in a folder with the files."""

BEFORE = {"a frame": "import pandas as pd; table = pd.read_pickle('rows.pickle')\n"}
"""What a case needs before the clock starts."""

POPULATION = """
import sys; sys.path.insert(0, {folder!r})
from population import measure
case = measure("FedAvg", {clients})
print(case["first"], case["memory"])
"""


def write(folder: Path, rows: int) -> None:
    """The files of all cases."""
    import numpy as np
    import pandas as pd

    g = np.random.default_rng(0)
    X = g.normal(size=(rows, 5)).astype("float32")
    y = g.integers(0, 3, rows)
    texts = np.array(["ill", "unknown", "well"])[y]
    client = np.array([f"site {k}" for k in range(1000)])[g.integers(0, 1000, rows)]
    table = pd.DataFrame(X, columns=[*"abcde"]).assign(label=texts, client=client)
    table.to_csv(folder / "rows.csv", index=False)
    table.to_parquet(folder / "rows.parquet", index=False)
    table.to_pickle(folder / "rows.pickle")
    np.savez(folder / "numbers.npz", X=X, y=y, client=client)
    np.savez(folder / "texts.npz", X=X, y=texts, client=client)


def measured(checkout: Path, code: str, folder: Path) -> tuple[float, float]:
    """CPU seconds and MiB of one process."""
    python = checkout / ".venv" / "bin" / "python"
    command = [str(python if python.exists() else Path(sys.executable)), "-c", code]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "cache")}  # imports compile once
    out = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout
    seconds, memory = map(float, out.split()[-2:])
    return seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3, help="repeats of the first round")
    parser.add_argument("--other", type=Path)
    parser.add_argument("--only", help="the one case to measure; the others stay in the file as they are")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    checkouts = {**({"before": options.other.resolve()} if options.other else {}), "now": ROOT}
    cases = json.loads(options.to.read_text())["cases"] if options.only and options.to and options.to.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, options.rows)
        codes = {case: BEFORE.get(case, "") + READ.format(code=code) for case, code in CASES.items()}
        repeats = dict.fromkeys(codes, options.repeats) | {"first round": options.rounds}
        for case, times in repeats.items():
            if options.only not in (None, case):
                continue
            figures = {which: {"seconds": list[float](), "MiB": list[float]()} for which in checkouts}
            for _ in range(times):
                for which, checkout in checkouts.items():
                    population = POPULATION.format(folder=str(checkout / "benchmarks"), clients=options.clients)
                    seconds, memory = measured(checkout, codes.get(case, population), folder)
                    figures[which]["seconds"].append(round(seconds, 3))
                    figures[which]["MiB"].append(round(memory, 1))
            cases[case] = figures
            middle = {w: {k: statistics.median(v) for k, v in f.items()} for w, f in figures.items()}
            line = ", ".join(f"{w} {m['seconds']:.3f} s {m['MiB']:.0f} MiB" for w, m in middle.items())
            if options.other:
                ratios = [middle["now"][k] / middle["before"][k] for k in ("seconds", "MiB")]
                line += f"; ratios {ratios[0]:.3f} and {ratios[1]:.3f}"
            print(f"{case:25} {line}", flush=True)
    if options.to:
        sizes = {"rows": options.rows, "clients": options.clients}
        table = {"load": round(os.getloadavg()[0], 1), **sizes, "cases": cases}
        options.to.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
