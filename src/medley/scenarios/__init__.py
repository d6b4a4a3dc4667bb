"""The clients' training budgets, attacks, members who join and leave, and ready-made machines.

Side: the server's, which draws each client's pace, its attackers and its members.

The other parts of a scenario have modules of their own: `medley.partitions` deals rows to clients,
`medley.participation` draws each round's cohort, `medley.devices` has the clients' machines, `medley.tasks` streams of
tasks, and `medley.distributions` what clients draw their values from.
"""

from ..contract.public import public
from ..devices import factory, hospitals, phones
from .attack import Attack
from .description import Description, describe
from .membership import Members, Membership
from .pace import Pace, cosine, step_decay

__all__ = [
    "Attack", "Description", "Members", "Membership", "Pace", "cosine", "describe", "factory", "hospitals", "phones",
    "step_decay",
]  # fmt: skip

public(__name__)
