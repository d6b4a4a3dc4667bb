"""The papers' tables beside ours, from results/.

python papers/tables/page.py > papers/tables/results.md
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import fmean, stdev

from run import HERE, Line, file_of, merit, point, read, words
from scipy.stats import t

sys.path.append(str(Path(__file__).parents[1] / "league"))
from ranking import holm, paired

from experiments import BEYOND, EXPERIMENTS, LRS, SEEDS, Experiment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE, help="the folder of the runs")
    out = parser.parse_args().out
    sys.stdout.write("\n".join(page(out)) + "\n")


def page(out: Path) -> list[str]:
    """All experiments, those without runs by name."""
    lines = ["# The papers' tables, and ours", "", LEGEND, ""]
    missing = []
    for name, e in EXPERIMENTS.items():
        by_method = {m: read(file_of(out, name, m)) for m in e.methods}
        finals = {m: at_the_best(runs) for m, runs in by_method.items()}
        if not any(finals.values()):
            missing.append(name)
            continue
        lines += [f"## {name}", "", f"Here: {e.title}.", f"The paper: {e.paper}.", "", *table(e, by_method, finals), ""]
        lines += [
            summary(e, finals),
            "",
            f"{sum(x['cpu'] for runs in by_method.values() for x in runs) / 3600:.1f} CPU hours.",
            "",
        ]
    lines += runtime(out)
    return lines + ([f"Not run: {', '.join(missing)}."] if missing else [])


def at_the_best(runs: list[Line]) -> list[Line]:
    """The table's seeds at the point that tuning chose; seeds at a rate that a longer grid has beaten are left out."""
    tuning = [x for x in runs if x["kind"] == "tuning"]
    best = point(max(tuning, key=merit)) if tuning else None
    return [x for x in runs if x["kind"] == "final" and best in (None, point(x))]


LEGEND = (
    "After a tuned rate, *end* says that it is an end of the longest grid, so that a better one may lie beyond, and "
    "*alike* that the validation scores of all rates are within a point. ± is half of a 95 % t-interval of one paired "
    "difference. p is of a paired t-test over the seeds, or of Fisher's exact test where a run diverged, with Holm's "
    "correction over the rows of the table, as in the league."
)


def rate(runs: list[Line], chosen: Line) -> str:
    """The factor and the settings that tuning chose, and what its runs say of the factor."""
    scores = [merit(x) for x in runs if x["kind"] == "tuning" and "settings" not in x]
    marks = ["end"] if chosen["lr"] in (min(*LRS, *BEYOND), max(*LRS, *BEYOND)) else []
    marks += ["alike"] if len(scores) > 1 and max(scores) - min(scores) < 0.01 else []
    return ", ".join([words(chosen["lr"], chosen.get("settings", {})), *marks])


RUNTIME = {"FedECADO": 1.06, "FedNova": 1.0, "FedProx": 1.02, "FedExP": 1.04, "FedDecorr": 1.02, "FedRS": 1.0}
"""The paper's Table 6, of a server's step."""


def runtime(out: Path) -> list[str]:
    """FedECADO's Table 6, where `runtime.py` has been run."""
    path = out / "runtime.json"
    if not path.exists():
        return []
    figures = json.loads(path.read_text(encoding="utf-8"))
    rows = [f"| {m} | {RUNTIME.get(m, '–')} | {v:.2f} |" for m, v in figures["of FedProx"].items()]
    caption = f"CPU time of a round with its ten clients over FedProx's, least of {figures['repeats']} repeats in turn."
    return [
        "## fedecado-6",
        "",
        caption,
        "",
        "| method | paper, server's step | here, whole round |",
        "|---|---|---|",
        *rows,
        "",
    ]


def table(e: Experiment, by_method: dict[str, list[Line]], finals: dict[str, list[Line]]) -> list[str]:
    """A row for every method, in per cent."""
    heads = ["method", "paper", "here", "lr ×", f"{e.ours} − it", "p (Holm)", "seeds", "CPU s a round"]
    if e.tasks:
        heads[1:3] = ["paper: Acc", "Fgt", "here: Acc", "Fgt"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    corrected = corrected_p(e, finals)
    for method, runs in finals.items():
        if not runs:
            continue
        paper = e.published.get(method, ())
        cells = [method]
        if e.tasks:
            cells += [f"{v:.1f}" for v in paper[:2]] or ["–", "–"]
            cells += [mean_and_deviation(runs, "score"), mean_and_deviation(runs, "fgt")]
        else:
            cells += [" ".join(f"{v:.1f}" if k == 0 else f"({v:.1f})" for k, v in enumerate(paper)) or "–"]
            cells += [mean_and_deviation(runs, "score")]
        good = [r for r in runs if r["status"] == "finished"]
        bad = "" if len(good) == len(runs) else f", {len(runs) - len(good)} diverged"
        rounds = sum(r["rounds"] for r in good) or 1
        cpu = sum(r["cpu"] for r in good) / rounds
        difference = "" if method == e.ours else against(finals[e.ours], runs)
        cells += [rate(by_method[method], runs[0]), difference, corrected.get(method, "")]
        cells += [f"{len(good)}{bad}", f"{cpu:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def corrected_p(e: Experiment, finals: dict[str, list[Line]]) -> dict[str, str]:
    """By method, Holm's p of ours against it; methods with less than two seeds in common with ours have none."""
    merits = {m: {r["seed"]: r["score"] if r["status"] == "finished" else -math.inf for r in finals[m]} for m in finals}
    ours = merits[e.ours]
    common = {m: [seed for seed in ours if seed in theirs] for m, theirs in merits.items() if m != e.ours}
    rivals = [m for m, seeds in common.items() if len(seeds) > 1]
    p = [paired([ours[s] for s in common[m]], [merits[m][s] for s in common[m]])[1] for m in rivals]
    return {m: f"{v:.3f}" for m, v in zip(rivals, holm(p), strict=True)}


def values(runs: list[Line], key: str = "score") -> dict[int, float]:
    """By seed, in per cent, of the runs that finished."""
    return {r["seed"]: 100 * r[key] for r in runs if r["status"] == "finished" and r[key] is not None}


def mean_and_deviation(runs: list[Line], key: str) -> str:
    """Mean (standard deviation)."""
    v = list(values(runs, key).values())
    return "–" if not v else f"{fmean(v):.1f}" + (f" ({stdev(v):.1f})" if len(v) > 1 else "")


def against(ours: list[Line], theirs: list[Line]) -> str:
    """The mean paired difference ± half of its 95 % t-interval."""
    a = values(ours)
    b = values(theirs)
    off = [a[s] - b[s] for s in SEEDS if s in a and s in b]
    if len(off) < 2:
        return "–"
    half = float(t.ppf(0.975, len(off) - 1)) * stdev(off) / math.sqrt(len(off))
    return f"{fmean(off):+.1f} ± {half:.1f}"


def summary(e: Experiment, finals: dict[str, list[Line]]) -> str:
    """The best rival of those whose seeds all finished, and the difference to it. Variants of ours are none."""
    means = {m: fmean(v.values()) for m, runs in finals.items() if len(v := values(runs)) == len(SEEDS)}
    rivals = {m: v for m, v in means.items() if type(e.methods[m]) is not type(e.methods[e.ours])}
    if e.ours not in means or not rivals:
        return "Not all of its runs are done."
    best = max(rivals, key=lambda m: rivals[m])
    left = [m for m, runs in finals.items() if len(runs) < len(SEEDS)]
    more = f" Not done yet: {', '.join(left)}." if left else ""
    return f"The best rival is {best}: {e.ours} − {best} = {against(finals[e.ours], finals[best])}.{more}"


if __name__ == "__main__":
    main()
