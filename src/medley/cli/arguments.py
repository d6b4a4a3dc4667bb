"""Arguments and options that several commands share."""

from __future__ import annotations

import ast
from collections.abc import Iterable
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


KINDS = {
    "problems": "problems", "models": "models", "datasets": "datasets", "partitions": "partitions",
    "participations": "participation", "streams": "tasks", "memories": "replay", "codecs": "codecs",
    "metrics": "metrics", "rules": "robust", "distributions": "distributions",
}  # fmt: skip
"""What `medley list` lists, and the module or package whose ``__all__`` has the names."""

OTHERS = (
    "methods", "auroc", "dice", "hausdorff", "sinks", "MLflow", "TensorBoard", "WandB", "attacks", "alie",
    "backdoor", "gaussian", "interval", "ipm", "label flip", "sign flip", "cosine", "step_decay", "devices", "factory",
    "hospitals", "phones", "analyses", "glm", "describe", "cox", "kaplan_meier", "meta", "prepare", "pca", "margins",
    "correlation", "balance", "ordinal", "mixed",
)  # fmt: skip
"""The other kinds, and names that are in no module's ``__all__``."""


def method_names() -> list[str]:
    """The names of methods. They are read from a file, because importing takes seconds."""
    tree = ast.parse(Path(__file__).parents[1].joinpath("_public.py").read_text(encoding="utf-8"))
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("algorithms")]
    return [*FORMS, *(a.name for a in chain.from_iterable(n.names for n in imports)), *plugins.names("methods")]


def public_names(module: str) -> list[str]:
    """The names in a module's ``__all__``, read from its file; none if it cannot be read."""
    path = Path(__file__).parents[1] / module
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        names = [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []
        if "__all__" in names and isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            return [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return []


def beginning(names: Iterable[str], incomplete: str, before: str = "") -> list[str]:
    """The names that begin with this text, in any case. Each begins as it is typed, for shells leave out the others."""
    lower = incomplete.islower()
    ends = {n: n[len(incomplete) :] for n in names if n.lower().startswith(incomplete.lower())}
    typed = {n if n.startswith(incomplete) else incomplete + (e.lower() if lower else e) for n, e in ends.items()}
    return sorted(before + name for name in typed)


def complete(incomplete: str) -> list[str]:
    """Lists of methods that begin with this text."""
    before, comma, last = incomplete.rpartition(",")
    return beginning(method_names(), last, before + comma)


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin with this text."""
    return beginning(method_names(), incomplete)


def complete_listed(incomplete: str) -> list[str]:
    """Kinds and names of `medley list` that begin with this text."""
    names = chain.from_iterable(map(public_names, KINDS.values()))
    return beginning([*KINDS, *OTHERS, *method_names(), *names], incomplete)


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

AsJson = Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")]

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
