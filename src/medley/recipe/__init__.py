"""Recipes: a federation, methods and the options of a run, in TOML. Keys are the names of constructor arguments.

Side: both: a node's owner and the operator each have a copy, and the two are compared before a run. It reads TOML,
and imports the code that a recipe names.

The documentation's page on recipes lists every table and key; `medley new` writes a recipe to start from.
"""

from ..contract.public import public
from .build import transport, transport_kinds
from .recipe import Recipe, load, loads, tuned
from .schema import DISTRIBUTIONS, KINDS, PRESETS, RULES, arguments, constructors, methods, readers, sink_kinds

__all__ = [
    "DISTRIBUTIONS",
    "KINDS",
    "PRESETS",
    "RULES",
    "Recipe",
    "arguments",
    "constructors",
    "load",
    "loads",
    "methods",
    "readers",
    "sink_kinds",
    "transport",
    "transport_kinds",
    "tuned",
]

public(__name__)
