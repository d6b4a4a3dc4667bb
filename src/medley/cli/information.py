"""The commands that do not train: report, list, cite."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import Base, Debug, complete_listed, complete_method
from .cards import STATUSES, bibtex, card, spelled, status
from .console import show, table

if TYPE_CHECKING:
    from ..storage.result import Result


def make_report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders. The report covers every run inside them.", metavar="RUNS...")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            "--save",
            metavar="PATH",
            help="page.html, table.tex, .md or .csv, curves.svg or .pdf, figures.json.",
        ),
    ] = Path("report.html"),
    base: Base = None,
    title: Annotated[str | None, typer.Option(help="The page's title; by default the methods and the data.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="What curves show; by default the figure that runs are compared by.")
    ] = None,
    over: Annotated[str, typer.Option(help="The x-axis of curves: round, bytes, seconds or epsilon.")] = "round",
    debug: Debug = False,
) -> None:
    """Make an HTML page from finished runs, or a table or figure for a paper. Also prints the runs' table."""
    from ..contract import RecipeError
    from ..experiments.board import Board, kind_of

    board = Board(_loaded(runs), base, command=shlex.join(["medley", *sys.argv[1:]]))
    if kind_of(output) == "folder":
        raise RecipeError(f"medley report -o {output}: give a file, page.html, table.tex or curves.svg", "output")
    board.save(output, title=title, metric=metric, over=over)
    show(board)
    show(f"saved in {output}")


def _loaded(folders: Iterable[Path]) -> list[Result]:
    """All runs below the folders. Raises RecipeError with both folders if two runs have the same method and seed."""
    from ..contract import RecipeError
    from ..experiments.board import Board

    runs: list[tuple[Path, Result]] = []
    for folder in folders:
        saved = [path.parent for path in sorted(folder.glob("**/result.json"))]
        runs += zip(saved, Board.load(folder).results, strict=True)
    results = [r for _, r in runs]
    places = dict[tuple[str, int], Path]()
    for place, r in runs:
        other = places.setdefault((r.method, r.seed), place)
        if other is not place:
            raise RecipeError(
                f"{other} and {place} both hold {r.method!r} with seed {r.seed}: report them separately, or give "
                "them different names in Python (Result.method)",
                "runs",
            )
    return results


def list_all(
    what: Annotated[
        str | None,
        typer.Argument(
            help="methods, problems, models, datasets, partitions, participations, streams, memories, codecs, metrics, "
            "sinks, attacks, "
            "rules, distributions, devices or analyses, by default all; or a name, for its settings, e.g. fedprox.",
            metavar="[WHAT]",
            autocompletion=complete_listed,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """List methods, problems, models and scenarios, each with one sentence, or the settings of one of them."""
    from ..contract import RecipeError
    from ..datasets import files
    from ..runtime.field_words import meant

    kinds = listed()
    if what is not None and what not in kinds:
        by_name: dict[str, tuple[str, Any]] = {}
        for entries in kinds.values():
            by_name |= {n.lower(): (n, entry) for n, entry in entries.items()}
        if what.lower() not in by_name:
            near = meant(what, [*kinds, *(n for n, _ in by_name.values())], in_recipe=True)
            raise RecipeError(f"medley list has no {what!r}.{near} medley list prints all names.", what)
        return _show_entry(*by_name[what.lower()])
    for kind, entries in kinds.items():
        if what in (None, kind):
            more = _MORE.get(kind, {})
            rows = []
            for name, entry in entries.items():
                cells = [describe(name, entry) for describe in more.values()]
                rows.append((name, _sentence(entry, name), *cells))
            show(table((kind, "", *more), rows))
            if kind == "datasets":
                show(f"Files are expected below {' or '.join(map(str, files.places()))}; folder= names another place.")


def listed() -> dict[str, Mapping[str, Any]]:
    """Everything that a recipe can name, by kind and name. What is written as one of these kinds is in the list."""
    from .. import models, recipe
    from ..metrics import METRICS
    from ..recipe.schema import ANALYSES

    return {
        "methods": recipe.constructors(),
        "problems": recipe.KINDS["problem"],
        "models": {n: getattr(models, n) for n in models.__all__},
        "datasets": recipe.readers(),
        "partitions": recipe.KINDS["partition"],
        "participations": recipe.KINDS["participation"],
        "streams": recipe.KINDS["stream"],
        "memories": recipe.KINDS["replay"],
        "codecs": recipe.KINDS["codec"],
        "metrics": METRICS,
        "sinks": recipe.sink_kinds(),
        "attacks": _attacks(),
        "rules": recipe.RULES,
        "distributions": recipe.DISTRIBUTIONS,
        "devices": recipe.PRESETS,
        "analyses": ANALYSES,
    }


def _attacks() -> dict[str, str]:
    """What each kind of attack does, from the meaning of the setting."""
    from ..contract.settings import describe
    from ..scenarios import Attack

    (kind,) = (s.doc for s in describe(Attack) if s.name == "kind")
    return dict(re.findall(r'"([^"]+)": (.+?)(?= "[^"]+": |$)', kind))


def _show_entry(name: str, entry: Any) -> None:
    """Print a thing's first sentence, and its settings with their values, defaults and meanings."""
    from rich.text import Text

    from .. import recipe
    from ..scenarios import Attack

    show(Text(f"{name}: {_sentence(entry, name)}"))
    state = status(entry)
    if state:
        show(Text(f"{name} is {state}: {STATUSES[state]}."))
    rows = [
        (a.name, a.values, a.default, a.text) for a in recipe.arguments(Attack if isinstance(entry, str) else entry)
    ]
    show(table(("setting", "value", "default", ""), rows) if rows else "It has no settings.")


def _reads(make: Any) -> str:
    """How a method's server reads the replies; sums work under secure sums. Settings are the method's defaults."""
    from ..contract import Need, RecipeError

    try:
        method = make()
        needs = method.requires()
    except RecipeError:  # a setting without a default
        method = make
        needs = make.needs
    if Need.REPLIES not in needs:
        return "sums"
    return f"replies; sums as {method.sums_as}" if method.sums_as else "replies"


def _expected(name: str) -> str:
    """The first file that a reader expects; empty if the reader has none."""
    from ..datasets import files

    return files.EXPECTED.get(name, "")


def _is_present(name: str) -> str:
    """Whether the data set's file is present, yes or no; empty for data sets without a file."""
    from ..datasets import files

    return ("yes" if files.is_present(name) else "no") if name in files.EXPECTED else ""


_MORE: dict[str, dict[str, Callable[[str, Any], str]]] = {
    "datasets": {"expected at": lambda name, _: _expected(name), "here": lambda name, _: _is_present(name)},
    "methods": {"status": lambda _, make: status(make), "the server reads": lambda _, make: _reads(make)},
}
"""Further columns of a list, by kind."""


def cite(
    methods: Annotated[
        list[str],
        typer.Argument(help="Names of methods, e.g. shed.", metavar="METHOD...", autocompletion=complete_method),
    ],
    debug: Debug = False,
) -> None:
    """Print the papers of methods, as in their cards and as BibTeX, and whether a method is as published."""
    from rich.text import Text

    from .. import recipe
    from ..contract import RecipeError

    kinds = recipe.constructors()
    by_name = {spelled(name): name for name in kinds}
    for method in methods:
        name = by_name.get(spelled(method))
        if name is None:
            raise RecipeError.unknown(method, kinds, "medley cite: this version", in_recipe=True)
        reference = card(kinds[name], "Reference") or card(kinds[name.partition(".")[0]], "Reference")
        if not reference:
            raise RecipeError(f"medley cite {method}: the card of {name} names no paper")
        show(Text(f"{name}: {reference}"))
        for form in (name, *(n for n in kinds if n.startswith(f"{name}."))):
            state = status(kinds[form])
            show(Text(f"{form} is {state}: {STATUSES[state]}."))
        entry = bibtex(reference)
        if entry:
            show(Text(f"\n{entry}\n"))


def _sentence(entry: object, name: str) -> str:
    """The first sentence of a docstring, or of a text, without the name before it."""
    if isinstance(entry, str):
        return entry
    first = (inspect.getdoc(entry) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")
    return re.sub(rf"^{re.escape(name)}: ", "", first)
