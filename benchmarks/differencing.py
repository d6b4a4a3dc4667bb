"""Random sequences of questions to a study whose table is sorted, grown, restarted or on a full disk: what they tell.

Each sequence asks for sums of one column over random conditions, of a table that changes between the questions, and
keeps what is answered. Then the attacker, who knows which rows each answer has, looks for a linear combination of the
answers that has fewer than five patients: a leak.

    python benchmarks/differencing.py --times 200          # writes benchmarks/differencing.json
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import medley.statistics.register as module
from medley.contract import MedleyError
from medley.statistics import Rules, Study
from medley.statistics.rules import recoverable

LEAST = 5


def table(g: np.random.Generator, ids: np.ndarray) -> Any:
    """Patients; who has which id does not change."""
    of = [np.random.default_rng(int(i)) for i in ids]
    return pd.DataFrame(
        {
            "id": ids,
            "age": [float(r.integers(20, 95)) for r in of],
            "sex": ["FM"[r.integers(2)] for r in of],
            "pay": [round(r.normal(500, 50), 2) for r in of],
        }
    )


def sequence(seed: int, questions: int = 12) -> tuple[Counter[str], bool]:
    """What happened to the questions of one sequence, and whether the answers tell of fewer than five patients."""
    g = np.random.default_rng(seed)
    counts = Counter[str]()
    ids = np.arange(80) + 1000 * seed
    answered = list[set[int]]()
    study = None
    folder = tempfile.mkdtemp()
    rules = Rules(id="id" if seed % 2 else "")
    for _ in range(questions):
        what = g.choice(["same", "sorted", "shuffled", "grown", "fewer", "restarted", "full disk"])
        if what == "grown":
            ids = np.append(ids, ids.max() + 1 + np.arange(g.integers(1, 9)))
        elif what == "fewer":
            ids = ids[g.integers(1, 9) :]
        rows = table(g, ids)
        rows = rows.sort_values("age") if what == "sorted" else rows.sample(frac=1, random_state=seed)
        if study is None or what not in ("same", "full disk"):
            study = Study({"Bern": rows}, rules=rules, registers=folder)
        age = g.integers(25, 90)
        where = g.choice([f"age < {age}", f"age >= {age}", "sex == 'M'", f"age < {age} and sex == 'F'", "age > 0"])
        mine = study.sites[0].frame
        flush = module.flush
        if what == "full disk":
            module.flush = _full
        try:
            cell = study.describe(["pay"], where=str(where), quantiles=()).cells["pay"][""]
            used = mine.query(str(where))["id"].tolist()
            counts["answered" if cell.n is not None else "withheld"] += 1
            answered += [{*map(int, used)}] if cell.n is not None else []
        except MedleyError:
            counts[f"refused ({what})"] += 1
        finally:
            module.flush = flush
    everybody = sorted(set().union(*answered)) if answered else []
    return counts, recoverable([np.array([i in s for i in everybody]) for s in answered], LEAST)


def _full(fd: int) -> None:
    raise OSError(28, "No space left on device")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=200)
    times = parser.parse_args().times
    sequences = [sequence(seed) for seed in range(times)]
    total = sum((counts for counts, _ in sequences), Counter[str]())
    line = {"sequences": times, "leaks": sum(leak for _, leak in sequences), **dict(sorted(total.items()))}
    print(line)
    Path(__file__).with_suffix(".json").write_text(json.dumps(line, indent=0) + "\n")
