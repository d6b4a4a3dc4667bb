"""`medley deploy init`: a recipe as a Flower app, and scripts that make keys, start a server and try it all."""

from __future__ import annotations

import stat
from functools import reduce
from importlib import resources
from pathlib import Path

from ..contract.errors import RecipeError
from ..recipe import Recipe, loads
from ..recipe.user_code import modules, names
from .agreement import own_version

UNEQUAL = {"lr": (0.5, 0.2, 0.1), "epochs": (1, 2, 3)}
"""Paces of the clients of ``scripts/recipe.txt``, again from the first after the last."""

SCRIPTS = "keys.sh", "server.sh", "trial.sh", "nginx.conf", "server.service", "node/node.service", "node/Dockerfile"
"""Files beside the app, in the folder ``scripts`` of this package."""

APP = {f"app/{name}": f"app/{Path(name).stem}.txt" for name in ("pyproject.toml", "server_app.py", "client_app.py")}
"""The app's files, and their texts in that folder."""

OWN = "node/mydata.py"
"""An example of a client's own data."""


def init(folder: Path, recipe: Recipe | None = None, clients: int | None = None) -> list[Path]:
    """Write the app and the scripts into ``folder``. Returns the paths of the files.

    The recipe is checked first. ``clients`` is the number of nodes, by default its ``partition.clients``. Raises
    RecipeError where it can't be deployed, as with lists in [pace] of other lengths, or the folder holds something.
    """
    scripts = resources.files(__package__) / "scripts"
    if recipe is None:
        r = loads((scripts / "recipe.txt").read_text(encoding="utf-8"))
        paces = {k: [v[i % len(v)] for i in range(clients or 3)] for k, v in UNEQUAL.items()}
        r = r.with_settings([f"pace.{k}={v}" for k, v in paces.items()])
    else:
        r = recipe
    if clients is not None and "partition" in r.tables:
        r = r.with_settings([f"partition.clients={clients}"])
    r.methods()
    n = r.tables.get("partition", {}).get("clients") if clients is None else clients
    if not isinstance(n, int) or n < 1:
        raise RecipeError(
            f"{r.source}: how many nodes there will be, --clients says, or partition.clients; it is {n!r}", "clients"
        )
    r.check_clients(n)
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError(f"{folder} is not empty; choose another folder")
    own = names(r.tables)
    code = f" --allow-code {','.join(sorted(own))}" if own else ""
    words = {"@CLIENTS@": str(n), "@CODE@": code, "@VERSION@": own_version()}

    def text(name: str) -> str:
        return reduce(lambda t, word: t.replace(*word), words.items(), (scripts / name).read_text(encoding="utf-8"))

    files = {name: text(source) for name, source in APP.items()}
    files |= {f"{side}/recipe.toml": r.dumps() for side in ("app", "node")}
    files |= {name: text(name) for name in SCRIPTS} | {OWN: text("node/mydata.txt")}
    for source in modules(r.tables, r.folder):
        files |= {f"{side}/{source.name}": source.read_text(encoding="utf-8") for side in ("app", "node")}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return [folder / name for name in files]
