"""`medley deploy init`: a recipe as a Flower app, and scripts that make keys, start a server and try it all."""

from __future__ import annotations

import stat
from importlib import resources
from pathlib import Path

from ..contract.errors import RecipeError
from ..recipe import Recipe, loads
from ..recipe.user_code import modules, names
from .agreement import own_version

RECIPE = """\
[problem]
kind = "Softmax"
mu = 0.001

[data]
name = "digits"
flatten = true

[partition]
kind = "Dirichlet"
clients = 3
alpha = 0.5

[pace]
batch = 32

[run]
rounds = 3
eval_every = 3

[[methods]]
kind = "FedNorton"
"""

UNEQUAL = {"lr": (0.5, 0.2, 0.1), "epochs": (1, 2, 3)}
"""Paces of the clients of `RECIPE`, again from the first after the last."""

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "medley-app"
version = "1.0.0"
description = "A Medley recipe as a Flower app"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.43", "medley-fl>={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "medley"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
clients = {clients}    # the run begins when so many are there
open = 0       # above 0: the run begins when so many are there; others join later, and each may leave
timeout = 600  # seconds until a client that has not answered counts as lost
set = ""       # settings as for medley run --set, e.g. "run.rounds=10 pace.batch=64"
save = ""      # a folder at the SuperLink for results and checkpoints; medley-runs/<run> by default
resume = ""    # such a folder, to go on from there
readmit = ""   # with resume: clients that lost their memory, "1,2"; they begin anew
"""

SERVER = '''\
"""The server's side of recipe.toml."""

from pathlib import Path

from medley.flower import server_app

app = server_app(Path(__file__).with_name("recipe.toml"))
'''

CLIENT = '''\
"""A client's side of recipe.toml, on its share of the recipe's data.

For data of your own write a function of Flower's context that returns a medley.datasets.Dataset, and give it as data=.
"""

from pathlib import Path

from medley.flower import client_app

app = client_app(Path(__file__).with_name("recipe.toml"))
'''

SCRIPTS = "keys.sh", "server.sh", "trial.sh", "nginx.conf", "server.service", "node/node.service", "node/Dockerfile"
"""Files beside the app, in the folder ``scripts`` of this package."""

OWN = "node/mydata.py"
"""An example of a client's own data."""


def init(folder: Path, recipe: Recipe | None = None, clients: int | None = None) -> list[Path]:
    """Write the app and the scripts into ``folder``. Returns the paths of the files.

    The recipe is checked first. ``clients`` is the number of nodes, by default its
    ``partition.clients``. Raises RecipeError where it can't be deployed, as with lists in [pace] of other lengths, or
    when the folder holds something already.
    """
    if recipe is None:
        r = loads(RECIPE)
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
    scripts, own = resources.files(__package__) / "scripts", names(r.tables)
    code = f" --allow-code {','.join(sorted(own))}" if own else ""
    files = {
        "app/pyproject.toml": PROJECT.format(clients=n, version=own_version()),
        "app/server_app.py": SERVER,
        "app/client_app.py": CLIENT,
        "app/recipe.toml": r.dumps(),
        "node/recipe.toml": r.dumps(),
        **{
            name: (scripts / name).read_text(encoding="utf-8").replace("@CLIENTS@", str(n)).replace("@CODE@", code)
            for name in SCRIPTS
        },
        OWN: (scripts / "node/mydata.txt").read_text(encoding="utf-8"),
    }
    for source in modules(r.tables, r.folder):
        files |= {f"{side}/{source.name}": source.read_text(encoding="utf-8") for side in ("app", "node")}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return [folder / name for name in files]
