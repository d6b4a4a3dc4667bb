"""Two methods side by side: the ratio of their errors on each federation of a group, and its geometric mean.

    python papers/league/ratios.py development networks
    python papers/league/ratios.py clock --method "FedNorton async" --base "FedNorton before async"

The error is 1 − accuracy, the test loss, or on the clock the seconds to the target; means of five seeds. A method with
a seed that diverged or did not arrive has no ratio; how many did is said. p is of the difference over seeds, with
Holm's correction over the group. Rows are read from `results/`, and from its folders `fedecado`, `before-fednorton`,
`eight`, `rivals` and `grid`; "SCAFFOLD grid" is SCAFFOLD tuned on the full grid.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from statistics import fmean, median

import ranking
from federations import FEDERATIONS, Entry
from page import merit
from results import HERE, Line, file_of, read

FOLDERS = (HERE, *(HERE / name for name in ("fedecado", "before-fednorton", "eight", "rivals")))


def finals(federation: str, label: str) -> list[Line]:
    """The final runs of a method on a federation, by seed; none where there is no file."""
    folders: tuple[Path, ...] = FOLDERS
    if label.endswith(" grid"):
        folders, label = (HERE / "grid",), label.removesuffix(" grid")
    lines = [line for folder in folders for line in read(file_of(folder, federation, label))]
    return sorted((line for line in lines if line["kind"] == "final"), key=lambda line: line["seed"])


def error(entry: Entry, lines: list[Line]) -> tuple[float, int]:
    """The mean error over seeds, and how many seeds arrived; nan if one did not, or there are none."""
    outcomes = ("finished",) if entry.target is None else ("target",)
    scores = [line["score"] for line in lines if line["status"] in outcomes and line["score"] is not None]
    if not lines or len(scores) < len(lines):
        return math.nan, len(scores)
    mean = fmean(scores)
    return (1 - mean if entry.target is None and entry.metric == "accuracy" else mean), len(scores)


def table(group: str, method: str, base: str) -> str:
    """The ratios of a group as Markdown, and their means."""
    names = [name for name, entry in FEDERATIONS.items() if entry.group == group]
    runs = {name: {label: finals(name, label) for label in (base, method)} for name in names}
    runs = {name: pair for name, pair in runs.items() if all(pair.values())}
    merits = {
        name: {m: [merit(name, line) for line in lines] for m, lines in pair.items()} for name, pair in runs.items()
    }
    duels = ranking.duels(merits, method, dict.fromkeys(runs, base))
    rows = [f"| {group} | {base} | {method} | ratio | p |", "|---|---|---|---|---|"]
    ratios = []
    for duel in duels:
        name = duel.federation
        (a, seeds), (b, others) = (error(FEDERATIONS[name], runs[name][label]) for label in (base, method))
        shown = [f"{v:.4f}" if math.isfinite(v) else f"{n} seeds" for v, n in ((a, seeds), (b, others))]
        ratio = f"{b / a:.3f}" if math.isfinite(b / a) else ""
        rows.append(f"| {name} | {' | '.join(shown)} | {ratio} | {duel.p:.2f} |")
        ratios += [b / a] if math.isfinite(b / a) else []
    if ratios:
        mean = math.exp(fmean(map(math.log, ratios)))
        wins, ties, losses = (sum(d.outcome == outcome for d in duels) for outcome in ("win", "tie", "loss"))
        ahead = sum(d.difference > 0 for d in duels)
        rows.append(
            f"\nGeometric mean {mean:.4f}, median {median(ratios):.3f}, of {len(ratios)} federations. {method} is "
            f"ahead by the mean on {ahead} of {len(duels)}; beyond chance: {wins} wins, {ties} ties, {losses} losses.\n"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", choices=sorted({e.group for e in FEDERATIONS.values()}))
    parser.add_argument("--method", default="FedNorton")
    parser.add_argument("--base", default="FedNorton before")
    args = parser.parse_args()
    for group in args.groups:
        print(table(group, args.method, args.base))


if __name__ == "__main__":
    main()
