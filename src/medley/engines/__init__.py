"""Engines behind `Client.descend`.

Side: the client's. An engine sees rows through the objective, changes no memory, and sends nothing.

`choose` picks one of `NAMES` for a problem and a device; `stack_size` says how many clients it serves in one call.
"""

from ..contract.public import public
from .choose import NAMES, choose, stack_size

__all__ = ["NAMES", "choose", "stack_size"]

public(__name__)
