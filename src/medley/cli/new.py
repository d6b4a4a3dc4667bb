"""The command that begins a project: new."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from .arguments import Debug
from .console import show

FILES = {
    "$name.py": "project.py.txt",
    "recipe.toml": "recipe.toml.txt",
    "test_$name.py": "test_project.py.txt",
    "README.md": "README.md.txt",
}
"""Names in the new folder, and the templates that they are made from."""

METHOD = {
    "$name.py": "method.py.txt",
    "recipe.toml": "method.toml.txt",
    "test_$name.py": "test_method.py.txt",
    "README.md": "method.md.txt",
}
"""The same for a new method."""

CLIENTS = 12
"""Hospitals of the invented data."""


def new(
    folder: Annotated[Path, typer.Argument(help="The project; a new or empty folder.", metavar="NAME")],
    method: Annotated[
        bool, typer.Option("--method", help="Write a method of your own instead of data and model.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Begin a project: a recipe, a data reader and a model of your own, a test and a README, which run at once."""
    from ..contract.errors import RecipeError

    name = folder.resolve().name
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name in ("medley", "torch", "test"):
        raise RecipeError(
            f"medley new {folder}: {name!r} becomes the name of a Python module: use lower-case letters, digits "
            "and _, begin with a letter, and take no name that another module has",
            "NAME",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"medley new {folder}: there is something already; give a new or empty folder", "NAME")
    templates = resources.files(__package__) / "project"
    kind = "".join(part.capitalize() for part in name.split("_"))
    words = {"name": name, "kind": kind, "clients": CLIENTS}
    contents = {
        Template(file).substitute(words): Template((templates / source).read_text("utf-8")).substitute(words)
        for file, source in (METHOD if method else FILES).items()
    }
    if not method:
        contents["data.csv"] = _patients()
    contents[".gitignore"] = "runs/\n*.html\n__pycache__/\n"
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in contents.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError:  # such as a full disk: do not leave half a project
        for file in contents:
            (folder / file).unlink(missing_ok=True)
        if is_new and folder.exists():
            folder.rmdir()
        raise
    for file in contents:
        show(str(folder / file))
    show(f"next: cd {folder}, then medley compare recipe.toml")


def _patients() -> str:
    """Invented patients as CSV: age, pressure, sugar and weight, whether they are ill, and their hospital.

    Hospitals have 20 to 200 patients, with different mean ages, and differ in the threshold of their diagnosis.
    """
    import numpy as np

    from ..runtime import streams

    rng = streams.rng(0, "new project")
    lines = ["age,pressure,sugar,weight,ill,hospital"]
    for k in range(CLIENTS):
        n = int(rng.integers(20, 201))
        age = rng.normal(rng.uniform(35, 70), 12, n).clip(18, 95)
        pressure = rng.normal(105 + 0.5 * age, 12)
        sugar = rng.normal(80 + 0.4 * age, 15)
        weight = rng.normal(75, 13, n)
        risk = 0.05 * (age - 55) + 0.04 * (pressure - 132) + 0.03 * (sugar - 102) + 0.0004 * (weight - 75) ** 2
        ill = np.where(risk + rng.normal(0, 0.7, n) > rng.normal(0, 0.5), "yes", "no")
        rows = zip(age.round(), pressure.round(), sugar.round(), weight.round(1), ill, strict=True)
        lines += [f"{a:.0f},{p:.0f},{s:.0f},{w:.1f},{y},h{k:02d}" for a, p, s, w, y in rows]
    return "\n".join(lines) + "\n"
