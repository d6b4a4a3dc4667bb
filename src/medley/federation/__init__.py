"""A user's clients, their draw for one seed, their evaluation, and `run`.

Side: in a simulation both, because one process holds all clients' rows. In a deployment a node reads its own rows
with it, and the server, which has none, uses `run` and `scenario`.
"""

from ..contract.public import public

__all__: list[str] = []

public(__name__)
