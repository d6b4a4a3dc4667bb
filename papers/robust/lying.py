"""Accuracy and attack success over the share of clients that lie: figures, tables and a page of many federations.

    python papers/robust/lying.py RUNS... -o page.html

makes the page of finished runs under several attacks or shares of attackers, and prints its tables. RUNS are folders;
every run below them is taken.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t

import medley as md
from medley.report import document
from medley.report.figures import DARK, LIGHT, Line, Markup, lines
from medley.report.numbers import final, usable
from medley.report.units import DASH, percent, plural
from medley.storage.atomic import replacing
from medley.storage.result import Result

BREAKS = 0.1
"""The loss of accuracy, against the first method without attackers, at which a method counts as broken."""

SUCCEEDS = 0.5
"""The success of a backdoor at which a method counts as broken."""

MANY = 20
"""From so many seeds on a mean has its 95 % confidence interval beside it."""

NOBODY = "none"
"""The attack of points without attackers."""


class Point(NamedTuple):
    """One run.

    Attributes:
        method: its method or fold
        attack: the kind of the attack; "none" for a run without attackers, which belongs to every attack
        share: the share of clients that lie
        seed: its seed
        accuracy: the share of test rows that its model labels rightly
        success: the backdoor's success; None where it was not measured
    """

    method: str
    attack: str
    share: float
    seed: int
    accuracy: float
    success: float | None = None


def points(results: Iterable[Result]) -> list[Point]:
    """A point of each run; one that did not end well has the figures of its last row."""
    out = []
    for r in results:
        kind = re.search(r"kind='([^']*)'", str(r.settings.get("attack", "")))
        share = float(r.settings.get("attackers", r.settings.get("liars", 0.0)))
        success = _last(r, "attack_success") if "attack_success" in r.history[-1] else None
        out.append(Point(r.method, kind[1] if kind and share else NOBODY, share, r.seed, _last(r, "accuracy"), success))
    return out


def _last(r: Result, name: str) -> float:
    return float(r.summary.get(f"tail_{name}", final(r, name)) if usable(r) else r.history[-1].get(name, math.nan))


def attacks(of: Iterable[Point]) -> list[str]:
    """Kinds of attacks, in order of first appearance."""
    return [k for k in dict.fromkeys(p.attack for p in of) if k != NOBODY]


def methods(of: Iterable[Point]) -> list[str]:
    """Methods, in order of first appearance."""
    return list(dict.fromkeys(p.method for p in of))


def shares(of: Iterable[Point]) -> list[float]:
    """Shares of attackers, ascending."""
    return sorted({p.share for p in of})


def values(of: Sequence[Point], method: str, attack: str, share: float, what: str = "accuracy") -> list[float]:
    """The figures of one method under one attack, seed by seed; those without attackers belong to every attack."""
    kind = NOBODY if share == 0 else attack
    numbers = [getattr(p, what) for p in of if (p.method, p.attack, p.share) == (method, kind, share)]
    return [float(v) for v in numbers if v is not None and math.isfinite(v)]


def _measured(of: Sequence[Point], attack: str) -> bool:
    return any(p.success is not None for p in of if p.attack == attack)


def _bound(of: Sequence[Point], method: str, attack: str, share: float) -> float:
    """The accuracy below which a method breaks: the first method's without attackers on these seeds, less `BREAKS`."""
    kind = NOBODY if share == 0 else attack
    first = methods(of)[0]
    seeds = {p.seed for p in of if (p.method, p.attack, p.share) == (method, kind, share)}
    same = [p for p in of if p.method != first or p.seed in seeds]
    without = values(same, first, NOBODY, 0.0) or values(of, first, NOBODY, 0.0)
    return float(np.mean(without)) - BREAKS if without else -math.inf


def seeds_broken(of: Sequence[Point], method: str, attack: str, share: float) -> tuple[int, int]:
    """Of one method under one attack, the seeds that break by themselves, and all seeds."""
    kind = NOBODY if share == 0 else attack
    cell = [p for p in of if (p.method, p.attack, p.share) == (method, kind, share)]
    bound = _bound(of, method, attack, share)
    return sum(p.accuracy < bound or (share > 0 and (p.success or 0) > SUCCEEDS) for p in cell), len(cell)


def broken_at(of: Sequence[Point], method: str, attack: str) -> float | None:
    """The least share of attackers at which a method breaks: by `BREAKS`, or a backdoor's `SUCCEEDS`; None for none."""
    for share in shares(of):
        accuracies = values(of, method, attack, share)
        success = values(of, method, attack, share, "success")
        lost = bool(accuracies) and float(np.mean(accuracies)) < _bound(of, method, attack, share)
        if lost or (_measured(of, attack) and share > 0 and success and float(np.mean(success)) > SUCCEEDS):
            return share
    return None


def is_open(of: Sequence[Point], method: str, attack: str) -> bool:
    """Whether a mean's interval includes its bound, at the share at which the method breaks or at a smaller one."""
    last = broken_at(of, method, attack)
    for share in shares(of):
        pairs = [(values(of, method, attack, share), _bound(of, method, attack, share))]
        pairs += [(values(of, method, attack, share, "success"), SUCCEEDS)] if share > 0 else []
        if any(
            len(accuracies) >= MANY and abs(float(np.mean(accuracies)) - at) < interval(accuracies)
            for accuracies, at in pairs
        ):
            return True
        if share == last:
            break
    return False


def figure(of: Sequence[Point], attack: str, what: str = "accuracy", legend: bool = True) -> Markup:
    """A curve of each method over the share of attackers: means over seeds, bands from the least to the most.

    Args:
        of: the runs
        attack: the kind of the attack
        what: "accuracy" or "success"
        legend: whether a legend stands below; default True
    """
    series = []
    for slot, method in enumerate(methods(of)):
        at = [s for s in shares(of) if values(of, method, attack, s, what)]
        rows = [np.array(values(of, method, attack, s, what)) for s in at]
        if rows:
            mean, low, high = (np.array([f(r) for r in rows]) for f in (np.mean, np.min, np.max))
            edges = (low, high) if len(methods(of)) < 4 else (None, None)
            # The file's legend has markers only, and the ninth method has the first one's.
            name = f"{method}, dashed" if legend and slot >= len(LIGHT) else method
            series.append(Line(name, slot, np.array(at), mean, *edges))
    label = "test accuracy" if what == "accuracy" else "attack success"
    title = f"{label} under {attack}"
    return lines(
        series,
        title=title,
        xlabel=f"{attack}: share of attackers",
        ylabel=label,
        x="percent",
        y="percent",
        legend=legend,
    )


def interval(sample: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean, by Student's t."""
    return float(t.ppf(0.975, len(sample) - 1)) * float(np.std(sample, ddof=1)) / math.sqrt(len(sample))


def _rows(of: Sequence[Point], attack: str, what: str) -> list[list[str]]:
    out = []
    for method in methods(of):
        row = [method]
        for share in shares(of):
            accuracies = values(of, method, attack, share, what)
            half = 100 * interval(accuracies) if len(accuracies) >= MANY else 0.0
            row.append(f"{100 * np.mean(accuracies):.1f}" + (f" ± {half:.1f}" if half else "") if accuracies else DASH)
        out.append(row)
    return out


def _summary(of: Sequence[Point]) -> list[list[str]]:
    """A row of each method: its accuracy without attackers, and the share at which each attack breaks it."""
    out = []
    for method in methods(of):
        plain = values(of, method, NOBODY, 0.0)
        at = [_share(broken_at(of, method, k)) + (" ?" if is_open(of, method, k) else "") for k in attacks(of)]
        out.append([method, percent(float(np.mean(plain))) if plain else DASH, *at])
    return out


def _seeds(of: Sequence[Point]) -> list[list[str]]:
    """A row of each method: the seeds that break by themselves at each share, under no attack and under each."""
    out = []
    for method in methods(of):
        broken, every = seeds_broken(of, method, NOBODY, 0.0)
        row = [method, f"{broken} of {every}" if every else DASH]
        for kind in attacks(of):
            counts = [seeds_broken(of, method, kind, s) for s in shares(of) if s > 0]
            every = {n for _, n in counts if n}
            tail = f" of {max(every)}" if len(every) == 1 else ""
            each = [(str(k) if tail else f"{k} of {n}") if n else DASH for k, n in counts]
            row.append(f"{', '.join(each)}{tail}" if every else DASH)
        out.append(row)
    return out


def _share(share: float | None) -> str:
    return "holds" if share is None else f"{100 * share:.0f} %"


def explained(of: Sequence[Point]) -> str:
    """The rule by which a method counts as broken, in one sentence, with the number of seeds."""
    counts = sorted(set(Counter((p.method, p.attack, p.share) for p in of).values()))
    seeds = plural(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    return (
        f"A method breaks at the least share of attackers at which its mean accuracy over {seeds} is more than "
        f"{100 * BREAKS:.0f} points below {methods(of)[0]}'s without attackers on the same seeds, or a backdoor's mean "
        f"success is above {100 * SUCCEEDS:.0f} %."
    )


def table(of: Sequence[Point]) -> str:
    """All of it as tables in Markdown: the shares at which methods break, then the figures of each attack."""
    at = [f"{100 * s:.0f} %" for s in shares(of)]
    head = ["", "no attackers", *attacks(of)]
    attackers = ", ".join(f"{100 * s:.0f}" for s in shares(of) if s > 0)
    many = f"Means over {MANY} seeds and more have their 95 % confidence interval beside them (Student's t). "
    many += "? marks what is open: at the share, or at a smaller one, that interval includes the bound."
    parts = [explained(of), many, _markdown(head, _summary(of))]
    parts += [f"Seeds that break by themselves without attackers, and at {attackers} %:", _markdown(head, _seeds(of))]
    for kind in attacks(of):
        parts += [f"## {kind}: accuracy, %", _markdown(["", *at], _rows(of, kind, "accuracy"))]
        if _measured(of, kind):
            parts += [f"## {kind}: attack success, %", _markdown(["", *at], _rows(of, kind, "success"))]
    return "\n\n".join(parts) + "\n"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    line: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"
    return "\n".join([line(head), f"|{'---|' * len(head)}", *map(line, rows)])


def page(of: Sequence[Point], *, title: str = "Clients that lie", command: str | None = None) -> str:
    """The page's HTML: where methods break, then figures and a table of each attack.

    Args:
        of: the runs, of any number of federations
        title: its title
        command: the command that made the runs; default none
    """
    slots = {m: k for k, m in enumerate(methods(of))}
    at = [f"{100 * s:.0f} %" for s in shares(of)]
    sections: list[tuple[str, Sequence[Markup]]] = [
        (
            "Where each breaks",
            [document.legend(slots), document.table(["", "no attackers", *attacks(of)], _summary(of), explained(of))],
        )
    ]
    for kind in attacks(of):
        both = ("accuracy", "success") if _measured(of, kind) else ("accuracy",)
        figures = [document.figure(figure(of, kind, what, legend=False)) for what in both]
        blocks = [document.figures(figures, "two")]
        for what in both:
            label = "accuracy" if what == "accuracy" else "attack success"
            note = f"Mean {label} over seeds, in per cent."
            blocks += [
                document.heading(label.capitalize()),
                document.table(["attackers", *at], _rows(of, kind, what), note),
            ]
        sections.append((kind.capitalize() if kind not in ("alie", "ipm") else kind.upper(), blocks))
    sections.append(("Made with", [document.code(command)] if command else []))
    lede = document.text(
        f"{len(of)} runs: {len(slots)} methods, {len(attacks(of))} attacks, shares of attackers {', '.join(at)}."
    )
    return document.page(title, [lede], sections, tuple(slots.values()))


def picture(of: Sequence[Point]) -> str:
    """All figures in one SVG file, two in a row, which follows the reader's choice of light or dark."""
    pairs = [(kind, "accuracy") for kind in attacks(of)]
    pairs += [(kind, "success") for kind in attacks(of) if _measured(of, kind)]
    panels = [figure(of, kind, what, legend=k == len(pairs) - 1) for k, (kind, what) in enumerate(pairs)]
    body = "".join(
        panel.replace("<svg ", f'<svg x="{390 * (k % 2)}" y="{260 * (k // 2)}" ', 1) for k, panel in enumerate(panels)
    )
    tall = 260 * ((len(panels) + 1) // 2) + 18 * (1 + len(methods(of)) // 3)
    light, dark = (";".join(f"--c{k}:{c}" for k, c in enumerate(p)) for p in (LIGHT, DARK))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 780 {tall}" width="780" height="{tall}"><style>'
        f":root{{color:#1b1d21;--bg:#fcfcfa;{light}}}"
        f"@media(prefers-color-scheme:dark){{:root{{color:#e7e8ea;--bg:#15171b;{dark}}}}}</style>"
        f'<rect width="780" height="{tall}" style="fill:var(--bg)"/>{body}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("lying.html"))
    args = parser.parse_args()
    measured = points(r for folder in args.runs for r in md.Board.load(folder).results)
    print(table(measured))
    with replacing(args.out) as tmp:
        tmp.write_text(page(measured, command=shlex.join(["python", *sys.argv])), encoding="utf-8")


if __name__ == "__main__":
    main()
