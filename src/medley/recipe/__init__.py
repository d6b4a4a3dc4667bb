"""Recipes: a federation, methods and the options of a run, in TOML. Keys are the names of constructor arguments.

Side: both: a node's owner and the operator each have a copy, and the two are compared before a run. It reads TOML,
and imports the code that a recipe names.

The documentation's page on recipes lists every table and key; `medley new` writes a recipe to start from.
"""

from .build import transport as transport
from .build import transport_kinds as transport_kinds
from .recipe import Recipe as Recipe
from .recipe import load as load
from .recipe import loads as loads
from .recipe import tuned as tuned
from .schema import KINDS as KINDS
from .schema import LAWS as LAWS
from .schema import PRESETS as PRESETS
from .schema import RULES as RULES
from .schema import arguments as arguments
from .schema import constructors as constructors
from .schema import methods as methods
from .schema import readers as readers
from .schema import sink_kinds as sink_kinds
