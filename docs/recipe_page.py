"""The reference of recipes: every table, its keys, their types, defaults and meanings, from the classes that take them.

    python docs/recipe_page.py build/docs/reference/recipes.md

`make docs` calls it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from medley import Federation, compare, privacy, tune
from medley.recipe import schema
from medley.server.options import RunOptions

CHOICES = {
    "problem": "The loss, and for `Network` the model; further keys are the family's or the model's.",
    "partition": "How the rows of the data set come to clients.",
    "participation": "Who takes part in a round. A number above all tables, `participation = 0.1`, is a `Fraction`.",
    "stream": "Tasks, one after the other.",
    "replay": "The rows that clients keep of past tasks.",
    "codec": "The encoding of messages.",
    "sink": "A tracker that files the figures of each round, and the recipe's settings; each is an extra.",
}
"""Tables with a key `kind`."""

PLAIN = {
    "pace": "The clients' local training in a round.",
    "devices": "Speeds and links; `preset` is one of factory, hospitals and phones.",
    "membership": "Clients that join or leave, and their rounds.",
    "attack": "Some clients lie.",
    "federation": "The rest of a federation.",
    "run": "Counts and options of the run.",
    "reply_policy": "The replies that an exchange waits for.",
    "secure": "The server learns sums of replies only.",
    "clients": "On machines of other people: the most that they may report of their data.",
    "rules": "What may leave a site of a study; each site has its own.",
    "faults": "Messages that are lost, late or broken, for tests.",
    "tune": "What `medley tune` tries.",
}
"""Tables that are the arguments of one function or class."""

SOME: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "federation": (Federation, ("weights", "classes", "f_star")),
    "run": (RunOptions, ("rounds", "seed", *schema.RUN)),
    "tune": (tune, ("grid", "rounds", "seeds", "metric", "on")),
}
"""Of these, the tables that have some of the arguments only."""

HIDDEN = {"self", "inner", "module", "method", "fed", "folder"}
"""Arguments that no file gives."""


def main(file: Path) -> None:
    """Write the page."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page, as Markdown."""
    out = [
        "# Recipes, table by table",
        "A recipe is a TOML file. `medley new` writes one; `medley run`, `compare` and `tune` take it. A key is the "
        "name of an argument. Where a value is a table with a `kind`, the kind is a class or function named here, or "
        'one of your own, `"module:name"`. `--set table.key=value` changes a value for one run.',
        "## [data]",
        "`name` is a reader, and further keys are its arguments. " + said(schema.STEPS),
        "`split` draws a test set for a reader that gives none, as `csv` does: `split = 0.2` is a fifth of the rows, a "
        "whole number so many of them, and a table has the arguments of `Dataset.split`, "
        '`split = { test = 0.2, by = "hospital", seed = 1 }`. Without test rows a run has no accuracy, and its loss is '
        "that of the training rows. `train` and `test` are numbers of rows to keep, `validation` is the share of the "
        "training rows by which `medley tune` chooses.",
        "`path` and `folder`, here and in `[partition]`, are looked for beside the recipe, then in the working folder.",
        *(part(name, f) for name, f in schema.readers().items()),
    ]
    for name, text in CHOICES.items():
        out += [f"## [{name}]", text, *(part(n, f) for n, f in schema.KINDS[name].items())]
        if name == "problem":
            out += ["### Models of `Network`", "`model` is one of these; shapes and classes come from the data."]
            out += [part(n, f) for n, f in schema.model_functions().items() if callable(f)]
    for name, text in PLAIN.items():
        f, only = SOME[name] if name in SOME else (schema.CALLS[name], ())
        seeds = "\n" + rows(compare, ("seeds",)).splitlines()[-1] if name == "run" else ""
        out += [f"## [{name}]", text, rows(f, only) + seeds]
    out += [
        "## [[methods]]",
        "`kind` is a [method](../methods/index.md), `lr` multiplies the clients' lr, further keys are the method's "
        "settings. Two keys wrap it: `private` takes the arguments of `Private`, `rule` a kind.",
        part("private", privacy.Private),
        *(part(n, f) for n, f in schema.RULES.items()),
        "## [[study]]",
        "The analyses of [a study](../study.md), in order; `kind` is one of these. `complete`, in the first of them, "
        "names columns without which a row is left out of all.",
        *(part(n, f) for n, f in schema.ANALYSES.items()),
        "## Laws",
        'In the place of a number in `[pace]` and `[devices]`: `lr = { kind = "Uniform", low = 0.01, high = 0.1 }`.',
        *(part(n, f) for n, f in schema.DISTRIBUTIONS.items()),
    ]
    return "\n\n".join(x for x in out if x) + "\n"


def said(steps: Mapping[str, Any]) -> str:
    """The keys of [data] that come after reading."""
    words = ", ".join(f"`{k}` ({schema.in_toml(t)})" for k, t in steps.items())
    return f"These keys change the set once it is read, in this order: {words}."


def part(name: str, f: Callable[..., Any]) -> str:
    """One kind: its first sentence, and its keys."""
    first = (inspect.getdoc(f) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
    return f"**`{name}`** {first}" + (f"\n\n{table}" if (table := rows(f)) else "")


def rows(f: Callable[..., Any], only: tuple[str, ...] = ()) -> str:
    """The table of the arguments of ``f``, or of some."""
    lines = [
        f"| `{a.name}` | {cell(a.values)} | {cell(f'`{a.default}`' if a.default not in ('', 'needed') else a.default)} "
        f"| {cell(a.text)} |"
        for a in schema.arguments(f)
        if a.name not in HIDDEN and not a.name.startswith("_") and (not only or a.name in only)
    ]
    return "| key | value | default | |\n|---|---|---|---|\n" + "\n".join(lines) if lines else ""


def cell(text: str) -> str:
    """A text that does not end a table's cell."""
    return text.replace("|", "\\|").replace("``", "`")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
