"""A comparison as one self-contained HTML page, readable without network and without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contract.errors import RecipeError
from ..storage import atomic
from ..storage.result import Result
from .document import page as made_of
from .document import text
from .figures import Markup
from .sections.compared import compared
from .sections.compared import title as heading_of
from .sections.comparison import Comparison
from .sections.costs import cost
from .sections.curves import AXES, curves, pictured
from .sections.holdings import Described, holdings
from .sections.notes import made_by, notes
from .sections.outcome import lede
from .sections.outcome import results as outcome
from .sections.personal import personal
from .sections.runs import runs
from .sections.runs import settings as all_settings
from .sections.sites import sites
from .sections.spread import spread
from .sections.tasks import tasks
from .targets import Goal
from .units import Real


def page(
    results: Sequence[Result],
    *,
    title: str | None = None,
    command: str | None = None,
    partition: Described | None = None,
    settings: Mapping[str, Any] | None = None,
    base: str | None = None,
    target: Mapping[str, Real] | Goal | None = None,
    extra: Iterable[tuple[str, str]] = (),
) -> str:
    """The page's HTML. All text in it is escaped.

    Args:
        results: Runs, at most one per method and seed.
        title: The page's title. Default the methods and the data.
        command: The command that made the runs; default none.
        partition: The rows of each client, as `Partition.describe` returns them; default none.
        settings: Settings that all runs share, as nested mappings, in addition to recorded ones; default none.
        base: The method from which differences are taken; default the first.
        target: Values by metric, e.g. {"accuracy": 0.9}, or a `Goal`; methods are compared by the costs of reaching it.
            Default: the runs' own target. Without any target, a section shows the costs of reaching the final mean of
            ``base``.
        extra: Further sections, heading and body. A body made by this package's figures is inserted unchanged, any
            other is a paragraph of text.

    Raises RecipeError if there is no method ``base``, or two runs have the same method and seed.
    """
    c = Comparison.of(list(results), base, Goal.of(results, target))
    sections: list[tuple[str, Sequence[Markup]]] = [
        ("Results", outcome(c)),
        ("Learning curves", curves(c)),
        ("Spread", spread(c)),
        ("Each client", [*sites(c), *personal(c)]),
        ("Tasks", tasks(c)),
        ("Who holds what", holdings(partition)),
        ("Cost", cost(c)),
        ("Every run", runs(c)),
        ("Settings", all_settings(c, settings)),
        *((heading, [body if isinstance(body, Markup) else text(body)]) for heading, body in extra),
        ("How to read this", notes(c)),
        ("Made with", made_by(command, c)),
    ]
    return made_of(
        heading_of(c) if title is None else title, [*compared(c), *lede(c)], sections, tuple(c.slots.values())
    )


def curve(
    results: Sequence[Result], metric: str | None = None, over: str = "round", base: str | None = None
) -> dict[str, Any]:
    """The curves of one figure of the page, as arguments of `medley.report.figures.lines`.

    Args:
        metric: A column of the history; default the figure by which runs are compared.
        over: "round" (default), "bytes", "seconds" or "epsilon".

    Raises RecipeError for a column without a curve.
    """
    c = Comparison.of(list(results), base)
    axes = {axis[0]: axis for axis in (*AXES, ("epsilon", "ε", "number"))}
    if over not in axes:
        raise RecipeError.unknown(over, axes, "a figure over rounds, bytes or time")
    metric = metric or c.metric
    picture = pictured(c, metric, *axes[over])
    if not any(len(s.x) for s in picture["series"]):
        metrics = set[str]()
        for r in c.results:
            metrics.update(*r.history)
        if metric in metrics:
            raise RecipeError(f"a figure over {over}: the runs have no {over}; use over='round' or 'bytes'", "over")
        raise RecipeError.unknown(metric, metrics - {"round", "task"}, f"a figure over {over}: the history")
    return picture


def save(path: str | Path, results: Sequence[Result], **kwargs: Any) -> Path:
    """Write `page` to a file, whole or not at all, and return its path; its folder is created.

    Raises RecipeError, as `page` does, and MedleyError if the file cannot be written.
    """
    path = Path(path)
    text = page(results, **kwargs)
    atomic.make_folder(path.parent)
    atomic.write(path, text)
    return path
