"""A user's clients, their draw for one seed, their evaluation, and `run`.

Side: in a simulation both, because one process holds all clients' rows. In a deployment a node reads its own rows
with it, and the server, which has none, uses `run`, `figures` and `scenario`.
"""
