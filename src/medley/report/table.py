"""Tables of final figures, one row per method: for the terminal, in Markdown, and as plain dicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import scipy

from ..contract.text import markdown as escaped
from ..contract.text import tex
from ..storage.directions import higher_is_better
from ..storage.html import table as html_table
from ..storage.result import Result
from .conditions import differing
from .numbers import (
    COSTS,
    MethodSummary,
    Stat,
    aggregate,
    base_of,
    by_method,
    directions,
    final,
    is_share,
    last_clients,
    paired,
    primary,
    reached_by_most,
    usable,
)
from .targets import COLUMNS, Goal
from .text import beyond, difference, impossible, unsure, worths
from .units import column, number, percent

NAMES = {
    "accuracy": "accuracy",
    "acc": "accuracy, all tasks",
    "learn": "accuracy when learnt",
    "fgt": "forgetting",
    "personal_accuracy": "accuracy of clients' models",
    "personal_accuracy_worst": "worst tenth of clients' models",
    "personal_test_loss": "test loss of clients' models",
    "personal_loss": "loss of clients' models",
    "client_accuracy_mean": "mean over clients",
    "client_accuracy_worst": "worst tenth of clients",
    "client_accuracy_spread": "spread over clients",
    "client_accuracy_mean_estimate": "mean over clients, estimate",
    "client_accuracy_worst_estimate": "worst tenth of clients, estimate",
    "client_test_loss_mean": "test loss, mean over clients",
    "client_test_loss_worst": "test loss, worst tenth of clients",
    "client_test_loss_spread": "test loss, spread over clients",
    "attack_success": "attack success",
    "gap": "gap f − f*",
    "loss": "loss",
    "test_loss": "test loss",
    "epsilon": "ε",
    "rounds_to_target": "rounds to target",
    "exchanges_to_target": "exchanges to target",
    "bytes_to_target": "bytes to target",
    "seconds_to_target": "virtual time to target",
}
"""Names of metrics in tables and figures."""

FAIRNESS = (
    "client_accuracy_worst",
    "client_accuracy_spread",
    "client_accuracy_worst_estimate",
    "client_test_loss_worst",
)
"""Figures over clients that have a column in a table."""


def one_is_a_tenth(result: Result) -> bool:
    """Whether a tenth of a run's clients is a single one, see `medley.federation.fairness`."""
    measured = sum("accuracy" in row or "test_loss" in row for row in last_clients(result))
    count = measured or result.settings.get("clients", 0)
    return isinstance(count, int) and 0 < count < 15


def streamed(results: Sequence[Result]) -> bool:
    """Whether the runs are of a stream of tasks; a row then holds figures of the task at its time."""
    return any("task" in r.history[-1] for r in results if r.history)


def estimated(results: Sequence[Result]) -> bool:
    """Whether some runs estimate their training loss from some rows, by ``run(eval_rows=...)``."""
    return any("loss_error" in r.history[-1] for r in results if r.history)


def named(metric: str, results: Sequence[Result], which: str = "last") -> str:
    """A metric's name in tables and figures. In a stream, ``which`` task is added, except for figures of all tasks."""
    name = NAMES.get(metric, metric)
    if results and all(r.settings.get("evaluate_on") == "validation" for r in results):
        name = name.replace("test loss", "validation loss")
    if "worst tenth" in name and results and all(map(one_is_a_tenth, results)):
        name = name.replace("worst tenth of clients' models", "worst client's model")
        name = name.replace("worst tenth of clients", "worst client")
    if metric == "loss" and estimated(results):
        name = "loss, estimate"
    is_plain = metric in ("acc", "learn", "fgt") or metric in COLUMNS
    return name if is_plain or not streamed(results) else f"{name}, {which} task"


def _spent(results: Sequence[Result]) -> str:
    """A sentence on the δ and the unit of each private method's ε; empty if none is private."""
    notes: dict[str, list[str]] = {}
    for r in results:
        if "method.private.delta" in r.settings:
            s = r.settings
            what = f"at δ = {float(s['method.private.delta']):g}, per {s['method.private.unit']}"
            notes.setdefault(what, []).append(r.method)
    one = len(notes) == 1
    each = [what if one else f"{what} ({', '.join(dict.fromkeys(names))})" for what, names in notes.items()]
    return f"ε is {'; '.join(each)}." if each else ""


def headline(results: Sequence[Result]) -> list[str]:
    """The metrics of a table; runs are compared by the first.

    For runs that stop at a target these are the costs of reaching it: their other final figures describe where they
    stopped, not the method.
    """
    measured = {m for s in aggregate(results) for m, stat in s.metrics.items() if stat.n}
    first = primary(results)
    if first in COLUMNS:
        moves = {m for m in COLUMNS if any(final(r, m) > 0 for r in results)}
        # If every round is one exchange, one column shows both.
        runs = [r for r in results if math.isfinite(final(r, first))]
        if all(final(r, "exchanges_to_target") == final(r, "rounds_to_target") for r in runs):
            moves -= {"exchanges_to_target"}
        return [first, *(m for m in COLUMNS if m in moves and m != first)]
    custom = list(directions(results))
    columns = (
        ["acc", "learn", "fgt", *custom]
        if first == "acc"
        else ["accuracy", "attack_success", *custom, *FAIRNESS, "gap"]
    )
    # Nobody uses the server's model if clients have their own.
    personal = first.startswith("personal_")
    columns = ["personal_accuracy_worst", *custom, "personal_loss"] if personal else columns
    columns = ["epsilon", *columns]
    columns += ["loss"] if "gap" not in measured and first != "acc" and not personal else []
    columns += ["test_loss"] if first == "test_loss" else []
    return [first, *(m for m in dict.fromkeys(columns) if m in measured and m != first)]


def goal_text(goal: Goal) -> str:
    """A target in words: "accuracy of at least 90.0 %"."""
    mean = "" if goal.over == 1 else f", over the mean of {goal.over} evaluations"
    return " or ".join(
        f"{NAMES.get(m, m)} of at {'least' if higher_is_better(m, goal.metrics) else 'most'} "
        f"{percent(v) if is_share(m) else number(v)}{mean}"
        for m, v in goal.values.items()
    )


def told_apart(results: Sequence[Result], metric: str) -> set[str]:
    """The method with the best mean, and those whose paired interval does not exclude zero; none with a single seed."""
    sums = {s.method: s for s in aggregate(results) if s[metric].n > 1}
    if not sums:
        return set()
    sign = 1.0 if higher_is_better(metric, directions(results)) else -1.0
    best = max(sums.values(), key=lambda s: (reached_by_most(s, metric), sign * s[metric].mean))
    alike = {m for m, s in sums.items() if reached_by_most(s, metric) == reached_by_most(best, metric)}
    pairs = paired(results, best.method, metric)
    return {best.method} | {p.method for p in pairs if p.method in alike and p.n > 1 and not p.clear}


def rows(results: Sequence[Result], base: str | None = None) -> list[dict[str, Any]]:
    """A dict per method: every metric's mean, its ``_sd``, ``_half`` and ``_n``, the difference, the status.

    Differences are from ``base``, by default the first method. Missing figures are nan. Raises RecipeError if there is
    no method ``base``, or two runs have the same method and seed.
    """
    first = primary(results)
    base = base_of(by_method(results), base)
    pairs = {p.method: p for p in paired(results, base, first)}
    out = []
    for s in aggregate(results):
        row: dict[str, Any] = {"method": s.method, "seeds": s.n, "used": len(s.used), "status": s.status}
        if first in COLUMNS:
            row["reached"] = s[first].n
        for metric, stat in s.metrics.items():
            half = math.nan if stat.equal and metric not in COSTS else stat.half
            row |= {metric: stat.mean, f"{metric}_sd": stat.sd, f"{metric}_half": half, f"{metric}_n": stat.n}
        p = pairs.get(s.method)
        d = p.diff if p else Stat.of(())
        row |= {
            "base": base,
            "compared_by": first,
            "difference": d.mean,
            "difference_half": math.nan if p is None else p.half,
            "difference_n": d.n,
        }
        out.append(row | {"wins": p.wins if p else 0})
    return out


def table(results: Sequence[Result], base: str | None = None) -> Any:
    """A `rich.table.Table` for the terminal. Bold: the best mean, and means that seeds do not distinguish from it.

    It takes the same arguments, and raises the same errors, as `rows`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    out = Table(box=SIMPLE_HEAD, caption=caption(results), caption_justify="left", pad_edge=False)
    head, lines = _cells(results, base)
    for k, name in enumerate(head):
        last = k == len(head) - 1
        out.add_column(Text(name), justify="left" if k == 0 or last else "right", no_wrap=not last, overflow="ellipsis")
    bold = told_apart(results, primary(results))
    most = 3 if primary(results) in COLUMNS else 2
    for line in lines:
        out.add_row(*(Text(cell, style="bold" if k < most and line[0] in bold else "") for k, cell in enumerate(line)))
    return out


def markdown(results: Sequence[Result], base: str | None = None) -> str:
    """The table of `table` in Markdown. It takes the same arguments, and raises the same errors, as `rows`."""
    head, lines = _cells(results, base)
    rule = ["---", *["---:"] * (len(head) - 2), "---"]
    first, *rest = ([*map(escaped, line)] for line in (head, *lines))
    text = "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *rest))
    return f"{text}\n\n{caption(results)}\n"


def latex(results: Sequence[Result], base: str | None = None) -> str:
    """The table of `table` for LaTeX with booktabs, without wall time, and without the status if all runs ended well.

    It takes the same arguments, and raises the same errors, as `rows`.
    """
    head, lines = _cells(results, base)
    left_out = {"wall"} | ({"status"} if all(r.status.ok for r in results) else set())
    keep = [k for k, name in enumerate(head) if name not in left_out]
    bold = told_apart(results, primary(results))
    most = 3 if primary(results) in COLUMNS else 2
    form: Callable[[str, bool], str] = lambda cell, strong: rf"\textbf{{{tex(cell)}}}" if strong else tex(cell)
    body = [[form(line[k], k < most and line[0] in bold) for k in keep] for line in lines]
    rows = [[tex(head[k]) for k in keep], *body]
    first, *others = (rf"    {' & '.join(row)} \\" for row in rows)
    columns = "l" + "r" * (len(keep) - 1)
    return "\n".join(
        [
            r"\begin{table}",
            rf"  \caption{{{tex(caption(results))}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            first,
            r"    \midrule",
            *others,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def html(results: Sequence[Result], base: str | None = None) -> str:
    """The table of `table` in HTML, for notebooks. Same arguments and errors as `rows`."""
    return html_table(*_cells(results, base), caption(results))


def caption(results: Sequence[Result], heads: Sequence[str] | None = None) -> str:
    """The caption of a table: a target that no run reached, the meaning of ± and of brackets, the numbers of seeds and
    test rows, how precisely these determine an accuracy, and conditions that differ between the runs. ``heads`` are the
    columns shown, default all."""
    parts = (
        _unreached(results),
        _spread(results),
        _brackets(results, heads),
        _spent(results),
        rounded(results),
        known_to(results),
    )
    return " ".join(filter(None, (*parts, differing(results))))


def _unreached(results: Sequence[Result]) -> str:
    """A sentence on the runs' target if none reached it; empty if some did, and without a target."""
    goal = Goal.of(results)
    if goal is None or any(map(goal.reached, results)):
        return ""
    return f"No run reached {goal_text(goal)}, so final figures are compared."


def _brackets(results: Sequence[Result], heads: Sequence[str] | None) -> str:
    """The meaning of figures in brackets; empty if the columns ``heads`` have none."""
    sums = aggregate(results)
    columns = [(m, [s[m] for s in sums]) for m in headline(results) if heads is None or named(m, results) in heads]
    is_shown = any(beyond(stats, m) and any(s.half > 0 for s in stats) for m, stats in columns)
    if not is_shown and not any(impossible(p) for p in paired(results, metric=primary(results))):
        return ""
    return "In brackets: each seed's figure, if the interval of so few would leave the possible range."


def _spread(results: Sequence[Result]) -> str:
    """What the figures measure, the meaning of ± and the number of seeds."""
    chosen = {str(r.settings["best"]) for r in results if "best" in r.settings}
    of = (
        f"the round with the best {' or '.join(sorted(chosen))} on validation rows" if chosen else "the last evaluation"
    )
    n = {len(s.used) for s in aggregate(results) if s.used}
    most = max(n, default=0)
    if most == 0:
        return "No run finished."
    if most == 1:
        return f"Figures of {of}. One seed: no intervals, so nobody can tell how much is luck."
    few = f"{min(n)} to {most}" if len(n) > 1 else str(most)
    pairs = paired(results)
    same = (
        " ± ?: all seeds have the same difference, so no interval can be estimated." if any(map(unsure, pairs)) else ""
    )
    if any(p.half > p.diff.half for p in pairs):
        same += " The ± of a difference is at least what so few test rows leave open."
    if primary(results) in COLUMNS:
        return (
            "Figures are means over the seeds that reached the target; ± is the half-width of a 95 % t-interval. "
            f"Differences are taken seed by seed, over those where both methods reached it.{same}"
        )
    return (
        f"Figures are means over {few} finished seeds at {of}; ± is the half-width of a 95 % t-interval. "
        f"Differences are taken seed by seed.{same}"
    )


def rounded(results: Sequence[Result]) -> str:
    """A sentence on figures that nodes rounded before they sent them; empty if none did."""
    rows = [r.history[-1] for r in results if r.history]
    most = {k: max(row.get(f"{k}_within", 0.0) for row in rows) for k in ("accuracy", "test_loss") if rows}
    parts = [f"an accuracy may be off by {100 * most['accuracy']:.2g} pp"] if most.get("accuracy") else []
    parts += [f"a test loss by {most['test_loss']:.2g}"] if most.get("test_loss") else []
    why = "Nodes rounded their figures, because their owners' rules are not exact"
    return f"{why}: {', '.join(parts)}; other figures are rounded as well." if parts else ""


def known_to(results: Sequence[Result]) -> str:
    """A sentence on the test rows, and on the precision of an accuracy over them; empty if their number is unknown."""
    runs = [r for r in results if usable(r)]
    rows = {r.settings.get("test_rows", 0) for r in runs if r.settings.get("evaluate_on", "test") == "test"}
    metric = next((m for m in headline(results) if m in ("accuracy", "personal_accuracy")), None)
    n = next(iter(rows), 0)
    if not runs or metric is None or len(rows) != 1 or not n:
        return ""
    seeds = {r.seed for r in runs}
    if len({r.settings.get("data") for r in runs}) == len(seeds) > 1:
        return f"Every seed has {n:,} test rows of its own, so ± includes the luck of their draw."
    # The share nearest to one half is known least precisely.
    share = min((s[metric].mean for s in aggregate(results) if s[metric].n), key=lambda p: abs(p - 0.5))
    z = scipy.stats.norm.ppf(0.975)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))  # Wilson's interval
    pp = f"{100 * half:.1f}" if half >= 0.01 else f"{100 * half:.1g}"
    sentence = f"{n:,} test rows, which alone leave an accuracy of {100 * share:.1f} % uncertain by ± {pp} pp (95 %)"
    return (
        f"There are {sentence}."
        if len(seeds) == 1
        else f"All seeds share {sentence}. The ± over seeds does not include this."
    )


def _cells(results: Sequence[Result], base: str | None) -> tuple[list[str], list[list[str]]]:
    names = headline(results)
    base = base_of(by_method(results), base)
    pairs = {p.method: p for p in paired(results, base, names[0])}
    compared = len(by_method(results)) > 1
    target = names[0] in COLUMNS
    head = ["method", *(named(m, results) for m in names)]
    head += ["wall", "status"] if target else ["up", "down", "virtual time", "wall", "status"]
    if compared:
        head.insert(2, f"against {base}")
    if target:
        head.insert(1, "reached")
    lines = []
    sums = aggregate(results)
    columns = [worths([s[m] for s in sums], m) for m in names]
    for s, figures, spent in zip(sums, zip(*columns, strict=True), costs(sums), strict=True):
        line = [s.method, *figures, *(spent[-1:] if target else spent), s.status]
        if compared:
            line.insert(2, "(base)" if s.method == base else difference(pairs.get(s.method)))
        if target:
            line.insert(1, f"{s[names[0]].n} of {s.n}")
        lines.append(line)
    return head, lines


def costs(sums: Sequence[MethodSummary]) -> list[list[str]]:
    """Bytes up and down, virtual and wall time of each method, as text."""
    kinds = {"bytes_up": "bytes", "bytes_down": "bytes", "seconds": "seconds", "wall": "seconds"}
    means = {m: [s[m].mean for s in sums] for m in kinds}
    means["seconds"] = [v or math.nan for v in means["seconds"]]
    return [*map(list, zip(*(column(kinds[m], values) for m, values in means.items()), strict=True))]
