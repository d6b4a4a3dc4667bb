"""The league's page, from the files of finished runs.

    python papers/league/page.py test
    python papers/league/page.py development --federations digits-softmax-dirichlet,synthetic-softmax
    python papers/league/page.py clock --method "FedNorton async" --out runs/clock.html

It writes an HTML page, and the same figures as Markdown beside it. Methods that lack a federation are named, and left
out of ranks.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import ranking
from entrants import ENTRANTS, LRS
from federations import FEDERATIONS
from results import HERE, Line, all_lines

from medley.report.figures.svg import figure, rule, text
from medley.storage.atomic import replacing

GOOD = ("finished", "target")
SEEDS = 5


@dataclass(frozen=True)
class Group:
    """The finished runs of a group: final merits by federation, method and seed, and the tuning runs' merits.

    Attributes:
        finals: merits of test rows [federation][method][seed]
        lines: all lines [federation][method]
        methods: the methods with five seeds on every federation, in the order of their mean rank
        missing: federations that a method lacks, by method
        table: ranks [federations, methods]
    """

    finals: dict[str, dict[str, list[float]]]
    lines: dict[str, dict[str, list[Line]]]
    methods: list[str]
    missing: dict[str, list[str]]
    table: np.ndarray


def merit(name: str, line: Line) -> float:
    """The merit of a run: accuracy, −loss, or −seconds to the target; −inf where it diverged or never arrived."""
    entry = FEDERATIONS[name]
    if line["status"] not in (("target",) if entry.target is not None else GOOD) or line.get("score") is None:
        return -math.inf
    return line["score"] if entry.metric == "accuracy" and entry.target is None else -line["score"]


def gathered(folder: Path, group: str, only: Sequence[str] = (), also: Sequence[Path] = ()) -> Group:
    """The runs of a group, or of its federations in ``only``. Federations on which no method is done are left out.

    Methods of the folders ``also`` join those of ``folder``.
    """
    lines = {name: runs for name, runs in all_lines(folder, group).items() if not only or name in only}
    for further in also:
        for name, runs in all_lines(further, group).items():
            if name in lines:
                lines[name] = lines[name] | runs
    finals: dict[str, dict[str, list[float]]] = {}
    for name, by_method in lines.items():
        done = {m: [x for x in runs if x["kind"] == "final"] for m, runs in by_method.items()}
        complete = {m: sorted(runs, key=lambda x: x["seed"]) for m, runs in done.items() if len(runs) == SEEDS}
        if complete:
            finals[name] = {m: [merit(name, x) for x in runs] for m, runs in complete.items()}
    everyone = sorted({m for by_method in finals.values() for m in by_method})
    missing = {m: [f for f in finals if m not in finals[f]] for m in everyone}
    present = [m for m in everyone if not missing[m]]
    table = ranking.ranks(finals, present) if present else np.zeros((0, 0))
    order = np.argsort(table.mean(0), kind="stable") if present else []
    return Group(finals, lines, [present[k] for k in order], missing, table[:, order] if present else table)


def rivals(group: Group, method: str) -> dict[str, str]:
    """The rival of each federation: the other league method with the best tuning run, judged on validation rows.

    Candidates of the same class, known by their labels, are no rivals of each other.
    """
    out = {}
    for name in group.finals:
        best = {
            m: max(merit(name, x) for x in group.lines[name][m] if x["kind"] == "tuning")
            for m in group.methods
            if not m.startswith("FedNorton") and m != method
        }
        if best:
            out[name] = max(best, key=lambda m: best[m])
    return out


def breadths(group: Group) -> dict[str, float]:
    """The mean lr breadth of each method over federations, at its knob's start; see `ranking.breadth`.

    The margin is 0.01 of accuracy, or 5 % of the range from the loss at x₀ to the best one; on a clock a quarter of the
    least time.
    """
    shares: dict[str, list[float]] = {m: [] for m in group.methods}
    for name in group.finals:
        entry = FEDERATIONS[name]
        grid = {}
        start = 0.0
        for m in group.methods:
            runs = group.lines[name][m]
            tuning = [x for x in runs if x["kind"] == "tuning"]
            knob = ENTRANTS[m].start if m in ENTRANTS else tuning[0]["point"][1]
            grid[m] = [merit(name, x) for x in tuning if x["point"][0] in LRS and x["point"][1] == knob]
            start = max([start, *(x["start"] for x in tuning if x.get("start") is not None)])
        best = max(v for merits in grid.values() for v in merits)
        if entry.target is not None:
            margin = -0.25 * best
        else:
            margin = 0.01 if entry.metric == "accuracy" else 0.05 * (start + best)
        for m, share in ranking.breadth(grid, margin).items():
            shares[m].append(share)
    return {m: fmean(v) if v else math.nan for m, v in shares.items()}


def diagram(mean_ranks: Mapping[str, float], difference: float) -> str:
    """The critical-difference diagram (Demšar, 2006): mean ranks, and bars over methods that are not told apart."""
    names = sorted(mean_ranks, key=lambda m: mean_ranks[m])
    k = len(names)
    values = [mean_ranks[m] for m in names]
    bars = ranking.cliques(values, difference)
    left = 190.0
    right = 690.0
    top = 46 + 7 * len(bars)
    x = lambda r: left + (r - 1) * (right - left) / max(1, k - 1)
    body = [rule(left, 28, right, 28, 0.8)]
    for r in range(1, k + 1):
        body += [rule(x(r), 24, x(r), 28, 0.8), text(x(r), 20, f"{r}", "middle", 10)]
    for row, (i, j) in enumerate(bars):
        y = 36 + 7 * row
        body.append(
            f'<path d="M{x(values[i]) - 3:.1f},{y}H{x(values[j]) + 3:.1f}" stroke="currentColor" stroke-width="3"/>'
        )
    half = (k + 1) // 2
    for at, name in enumerate(names):
        first = at < half
        y = top + 15 * (at if first else k - 1 - at) + 10
        end = left - 10 if first else right + 10
        body += [rule(x(values[at]), 28, x(values[at]), y, 0.5), rule(x(values[at]), y, end, y, 0.5)]
        body.append(
            text(end + (-4 if first else 4), y + 4, f"{name} {values[at]:.2f}", "end" if first else "start", 11, True)
        )
    wide = x(1 + min(difference, k - 1))
    body += [rule(left, 6, wide, 6, 0.8), text(wide + 4, 10, f"critical difference {difference:.2f}", "start", 10)]
    return figure(880, top + 15 * half + 20, "Critical-difference diagram", "Mean ranks of the methods.", "".join(body))


def cell(name: str, runs: Sequence[Line]) -> str:
    """A method's five seeds on a federation: mean ± standard deviation, or the number that diverged."""
    merits = [merit(name, x) for x in runs]
    fine = [abs(m) for m in merits if math.isfinite(m)]
    lost = len(merits) - len(fine)
    word = "late" if FEDERATIONS[name].target is not None else "diverged"
    text = f"{fmean(fine):.4g} ± {stdev(fine):.2g}" if len(fine) > 1 else "".join(f"{m:.4g}" for m in fine)
    return f"{text} ({lost} {word})".strip() if lost else text


Rows = list[list[str]]


def sections(group: Group, method: str) -> list[tuple[str, str, Rows]]:
    """The tables of the page: heading, note, and rows with the head first."""
    mean = dict(zip(group.methods, group.table.mean(0), strict=True))
    spread = dict(zip(group.methods, ranking.intervals(group.table), strict=True))
    wide = breadths(group)
    chi = ranking.friedman(group.table)
    finals = {
        f: {m: [x for x in group.lines[f][m] if x["kind"] == "final"] for m in group.methods} for f in group.finals
    }
    rows: Rows = [
        ["method", "mean rank", "95 % interval", "firsts", "diverged runs", "lr breadth", "CPU s a run", "MB a run"]
    ]
    for k, m in enumerate(group.methods):
        runs = [x for f in finals for x in finals[f][m]]
        lost = sum(not math.isfinite(v) for f in group.finals for v in group.finals[f][m])
        bytes_ = [x["bytes_up"] + x["bytes_down"] for x in runs if "bytes_up" in x]
        low, high = spread[m]
        rows.append([
            m, f"{mean[m]:.2f}", f"{low:.2f} to {high:.2f}", f"{int((group.table[:, k] == 1).sum())}", f"{lost}",
            f"{wide[m]:.2f}", f"{fmean(x['cpu'] for x in runs):.2f}", f"{fmean(bytes_) / 1e6:.3g}" if bytes_ else "",
        ])  # fmt: skip
    note = f"Friedman's χ² = {chi[0]:.1f}, p = {chi[1]:.2g}. Ranks by the mean over five fresh seeds."
    out = [("Ranks", note, rows)]
    if method in group.methods and (against := rivals(group, method)):
        duels = ranking.duels(group.finals, method, against)
        count = {word: sum(d.outcome == word for d in duels) for word in ("win", "tie", "loss")}
        rows = [["federation", "rival", "difference", "p (Holm)", "outcome"]]
        rows += [[d.federation, d.rival, f"{d.difference:+.4g}", f"{d.p:.3f}", d.outcome] for d in duels]
        note = (
            f"{method}: {count['win']} wins, {count['tie']} ties, {count['loss']} losses against the rival of each "
            "federation with the best validation run; paired t over the seeds, Holm over federations. "
        )
        if "FedAvg" in group.methods and method != "FedAvg":
            base = ranking.duels(group.finals, method, dict.fromkeys(group.finals, "FedAvg"))
            note += f"Below FedAvg on {sum(d.outcome == 'loss' for d in base)} of {len(base)} federations."
        out.append((f"{method} against the best rival", note, rows))
    rows = [["method", *group.finals]]
    rows += [[m, *(cell(f, finals[f][m]) for f in group.finals)] for m in group.methods]
    unit = "Accuracy, or test loss where the federation's figure is the loss; seconds to the target on a clock."
    out.append(("Every federation", unit, rows))
    rows = [["federation", "clients, model, pace", "rounds", "figure"]]
    for f in group.finals:
        e = FEDERATIONS[f]
        rows.append([f, e.text, str(e.rounds), f"seconds to {e.target:g}" if e.target is not None else e.metric])
    out.append(("Federations", "", rows))
    rows = [["federation", "method", "settings", "seeds"]]
    for f, by_method in finals.items():
        for m, runs in by_method.items():
            chosen = ", ".join(
                f"{k} {v if isinstance(v, list | str) else format(v, '.3g')}" for k, v in runs[0]["settings"].items()
            )
            rows.append([f, m, chosen, "; ".join(described(f, x) for x in sorted(runs, key=lambda x: x["seed"]))])
    out.append(("Every seed", "Settings as tuned; lr is a factor on the federation's own.", rows))
    return out


def described(name: str, line: Line) -> str:
    """A run's figure, or its end."""
    value = merit(name, line)
    return f"{abs(value):.4g}" if math.isfinite(value) else line["status"]


def markdown(title: str, parts: Sequence[tuple[str, str, Rows]]) -> str:
    """The page's tables as Markdown."""
    out = [f"# {title}", ""]
    for heading, note, rows in parts:
        out += [f"## {heading}", "", *([note, ""] if note else [])]
        out += [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0])]
        out += [f"| {' | '.join(row)} |" for row in rows[1:]] + [""]
    return "\n".join(out)


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;
color:#222;background:#fff}
table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}td,th{padding:.2rem .6rem;text-align:left;
border-bottom:1px solid #ddd;white-space:nowrap}svg{max-width:100%;height:auto}"""


def html(title: str, picture: str, parts: Sequence[tuple[str, str, Rows]]) -> str:
    """The page."""
    body = [f"<h1>{escape(title)}</h1>", f"<p>{picture}</p>"]
    for heading, note, rows in parts:
        head, *rest = [[escape(c) for c in row] for row in rows]
        body.append(f"<h2>{escape(heading)}</h2><p>{escape(note)}</p><table><tr>")
        body.append("".join(f"<th>{c}</th>" for c in head) + "</tr>")
        body += ["<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rest]
        body.append("</table>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        + "".join(body)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=sorted({e.group for e in FEDERATIONS.values()}))
    parser.add_argument("--method", default="FedNorton", help="the method of the duels; default FedNorton")
    parser.add_argument("--results", type=Path, default=HERE, help=f"default {HERE}")
    parser.add_argument(
        "--also", type=Path, nargs="*", default=(), help="further folders of results, of candidates or controls"
    )
    parser.add_argument("--out", type=Path, help="an .html file; default: GROUP.html in the folder of results")
    parser.add_argument("--federations", default="", help="default: all of the group")
    args = parser.parse_args()
    only = args.federations.split(",") if args.federations else []
    for name in only:
        if name not in FEDERATIONS or FEDERATIONS[name].group != args.group:
            print(f"Error: --federations: there is no {name} in the group {args.group}", file=sys.stderr)
            return 2
    group = gathered(args.results, args.group, only, args.also)
    if not group.methods:
        print(f"Error: no method is done on every federation of {args.results / args.group}", file=sys.stderr)
        return 2
    out = args.out or args.results / f"{args.group}.html"
    title = f"The league: {args.group}, {len(group.finals)} federations, {len(group.methods)} methods"
    parts = sections(group, args.method)
    lacking = {m: v for m, v in group.missing.items() if v}
    if lacking:
        note = "; ".join(f"{m} lacks {', '.join(v)}" for m, v in lacking.items())
        parts.append(
            (
                "Not ranked",
                note,
                [["method", "done"], *([m, str(len(group.finals) - len(v))] for m, v in lacking.items())],
            )
        )
    difference = ranking.nemenyi(len(group.methods), len(group.finals)) if len(group.methods) > 1 else 0.0
    picture = diagram(dict(zip(group.methods, map(float, group.table.mean(0)), strict=True)), difference)
    for path, content in ((out, html(title, picture, parts)), (out.with_suffix(".md"), markdown(title, parts))):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as tmp:
            tmp.write_text(content, encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
