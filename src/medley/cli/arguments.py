"""Arguments and options that several commands share."""

from __future__ import annotations

import ast
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from ..runtime import plugins


def _debug(ctx: Any, value: bool) -> bool:  # a Context is not always a typer.Context
    ctx.meta["debug"] = bool(value) or ctx.meta.get("debug", False)
    return value


FORMS = "CFLAG.joint", "SHED.fast"
"""Methods that are made by a class method."""


def complete(incomplete: str) -> list[str]:
    """Lists of methods that begin with this text. The names are read from a file, because importing takes seconds."""
    before, comma, last = incomplete.rpartition(",")
    tree = ast.parse(Path(__file__).parents[1].joinpath("_public.py").read_text(encoding="utf-8"))
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("algorithms")]
    aliases = chain.from_iterable(n.names for n in imports)
    names = [*FORMS, *(a.name for a in aliases), *plugins.names("methods")]
    return sorted(before + comma + n for n in names if n.lower().startswith(last.lower()))


RecipeFile = Annotated[Path, typer.Argument(help="The recipe, a TOML file.", metavar="RECIPE.toml")]

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. --set pace.lr=0.05. May be repeated."),
]

Rounds = Annotated[int | None, typer.Option(min=0, help="The number of rounds, instead of run.rounds.")]

Seeds = Annotated[str | None, typer.Option(help="How many seeds (0, 1, ...), or a list such as 3,5,8.")]

Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        "--method",
        autocompletion=complete,
        metavar="NAMES",
        help="Methods, e.g. fedavg,fednorton: with the settings of the recipe, or else their defaults.",
    ),
]

Jobs = Annotated[int | None, typer.Option(min=1, help="How many runs at a time; by default one per core.")]

Base = Annotated[str | None, typer.Option(help="The method to compare the others with; by default the first.")]

Debug = Annotated[bool, typer.Option("--debug", callback=_debug, help="Show the traceback of an error.")]


def names_in(text: str | None) -> list[str] | None:
    """The names in ``--methods``; None if it was not given."""
    return None if text is None else [n for n in text.split(",") if n.strip()]


def seeds_in(text: str) -> int | list[int]:
    """The seeds in ``--seeds``: a number of them, or a list. Raises RecipeError for other text."""
    from ..contract.errors import RecipeError

    try:
        return [int(part) for part in text.split(",") if part.strip()] if "," in text else int(text)
    except ValueError:
        raise RecipeError(f"--seeds {text}: write a number, or numbers with commas between them", "seeds") from None
