"""What both sides of a run agree on: the recipe with the run's settings, the terms, and the node owner's consent."""

from __future__ import annotations

import fnmatch
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ... import recipe as recipes
from ...contract import Algorithm, Tuned
from ...contract.errors import RecipeError
from ...contract.place import name_of
from ...contract.tuned import split
from ...privacy.private import private_part
from ...recipe import Recipe
from ...recipe.user_code import is_own
from ...runtime.versions import is_installed, version
from ...storage.as_json import plain
from ...storage.identity import identity
from .checked_json import Line, declared

if TYPE_CHECKING:
    from .flwr_api import Context

Method = Algorithm[Any, Any] | Tuned

SERVER_ONLY = ("name", "data", "partition", "clients", "tune", "reply_policy", "rules")
"""Tables of a recipe that only one side uses; they may differ between the sides."""


def settled(recipe: str | Path | Recipe, config: Mapping[str, Any]) -> Recipe:
    """The recipe with the settings under ``set`` in Flower's run config."""
    r = recipe if isinstance(recipe, Recipe) else recipes.load(recipe)
    return r.with_settings(shlex.split(str(config.get("set", ""))))


def is_row_private(method: Method) -> bool:
    """Whether clients add noise to their steps. Then they send no exact figure of their training rows."""
    part = private_part(split(method)[0])
    return part is not None and part.unit != "client"


def clients_of(r: Recipe, context: Context) -> int:
    """The number of clients, from the run config or the recipe's partition. Raises RecipeError if neither has it."""
    n = context.run_config.get("clients") or r.tables.get("partition", {}).get("clients")
    if not isinstance(n, int):
        raise RecipeError(f"{r.source}: set the number of clients, clients = 3, in the app's run config", "clients")
    return n


@dataclass(frozen=True)
class Terms:
    """The terms of a run, as each side has them.

    Attributes:
        settings: digest of the method's settings and code
        recipe: digest of the recipe's tables that clients act on, with the run's settings applied
    """

    medley: Line
    method: Line
    settings: Line
    recipe: Line

    @classmethod
    def of(cls, r: Recipe, method: Method) -> Terms:
        """The terms of this side."""
        algorithm, lr = split(method)
        tables = {k: v for k, v in r.only().tables.items() if k not in (*SERVER_ONLY, "methods")}
        settings = {**identity({"method": algorithm}), "name": algorithm.name, "lr": lr, **algorithm.settings()}
        return cls(own_version(), algorithm.name, _digest(settings), _digest(tables))

    @classmethod
    def read(cls, who: str, values: Any) -> Terms:
        """The terms that the other side states. Raises WireError, which begins with ``who``, for other values."""
        return declared(cls, who, values)

    def plain(self) -> dict[str, str]:
        """Plain values, for `read`."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """Short text that differs if the terms do."""
        return _digest(self.plain())

    def compare(self, theirs: Terms, who: str) -> None:
        """Raise RecipeError, which no restart mends, with the first difference and the remedy, if the terms differ."""
        remedies = {"medley": "install the same version on both sides"}
        same = {"method": "method", "settings": "settings, and the same code, of the method", "recipe": "recipe.toml"}
        for key, mine in self.plain().items():
            other = getattr(theirs, key)
            if other != mine:
                has = {"medley": "runs Medley", "method": "has the method"}.get(key, f"has the {key} of digest")
                remedy = remedies.get(key) or f"give both sides the same {same[key]}"
                raise RecipeError(f"{who} {has} {other}, and the server {mine}: {remedy}", key)


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, default=plain)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def refuse_unserved(node: Mapping[str, Any], method: Method, client: int) -> None:
    """Raise RecipeError for a method that the node's owner does not serve. Serving CFLAG includes CFLAG.joint.

    Args:
        node: the node's config; ``serve`` lists methods, for example "FedNorton,SCAFFOLD". Without it the node serves
            all methods
    """
    name = split(method)[0].name
    serves = _listed(node, "serve")
    if serves and not {name.lower(), name.lower().partition(".")[0]} & {n.lower() for n in serves}:
        _unserved(client, name, serves)


def refuse_kind(node: Mapping[str, Any], r: Recipe, client: int) -> None:
    """`refuse_unserved` by the kind in the recipe's first method table, before the method is made.

    If ``serve`` has an entry such as "DP-FedAvg", this check accepts the kind FedAvg.
    """
    tables: list[dict[str, Any]] = r.tables.get("methods", [])[:1]
    kind = "".join(str(table.get("kind", "")) for table in tables)
    serves = _listed(node, "serve")
    name = (kind.rpartition(":")[2].rpartition(".")[2] if is_own(kind) else kind.partition(".")[0]).lower()
    either = (name, kind.lower())
    if serves and not any(n.lower() == k or n.lower().endswith(f"-{k}") for n in serves for k in either):
        _unserved(client, kind, serves)


def _unserved(client: int, what: str, serves: list[str]) -> NoReturn:
    raise RecipeError(f"{name_of(client)} does not serve {what}: its owner serves {', '.join(serves)}", "serve")


def _listed(node: Mapping[str, Any], key: str) -> list[str]:
    return str(node.get(key, "")).replace(",", " ").split()


def refuse_settings(node: Mapping[str, Any], config: Mapping[str, Any], client: object) -> None:
    """Raise RecipeError for a setting that the server may not change.

    Args:
        node: the node's config; ``allow`` lists the recipe's keys that the server may set, as patterns, for example
            "run.rounds pace.*". Without it the server may set any key
    """
    patterns = _listed(node, "allow") if "allow" in node else ["*"]
    for setting in shlex.split(str(config.get("set", ""))):
        key = setting.partition("=")[0]
        if not any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns):
            reason = f"its owner lets the server set {', '.join(patterns) or 'nothing'}"
            raise RecipeError(f"{name_of(client)} does not let the server set {key}: {reason}", "allow")


def refuse_weaker(node: Mapping[str, Any], mine: Recipe, requested: Recipe, client: int) -> None:
    """Raise RecipeError if the server changes a setting that protects the owner's rows, unless ``allow`` names it.

    Args:
        node: the node's config; patterns of ``allow`` that begin with "methods" or "*" do not cover privacy settings
        mine: the owner's recipe
        requested: the same recipe with the server's settings
    """
    either = mine, requested
    protections: dict[str, list[Any]] = {
        "secure": [r.tables.get("secure") for r in either],
        "private": [[m.get("private") for m in r.tables.get("methods", ())] for r in either],
    }
    for name, (ours, theirs) in protections.items():
        if "allow" in node and ours != theirs and not any(name in pattern for pattern in _listed(node, "allow")):
            raise RecipeError(
                f"{name_of(client)} does not let the server change {name}: its recipe has {ours}, and the server asks "
                f"for {theirs}; its owner can allow this with --allow '{name}'",
                "allow",
            )


def own_version() -> str:
    """Medley's version, which must be the same on all sides. Raises RecipeError for a copy without a version."""
    if not is_installed():
        raise RecipeError(
            "Medley is not installed here, only on PYTHONPATH, so it has no version to compare with the other "
            "side's: install it with pip"
        )
    return version()
