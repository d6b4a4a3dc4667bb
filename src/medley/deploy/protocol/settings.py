"""Settings that both apps read in the same way: the recipe with the run config applied, the method, and the clients."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import recipe as recipes
from ...contract import Algorithm, RecipeError, Tuned
from ...contract.tuned import split
from ...privacy.private import private_part
from ...recipe import Recipe

if TYPE_CHECKING:
    from .flwr_api import Context

Method = Algorithm[Any, Any] | Tuned


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
