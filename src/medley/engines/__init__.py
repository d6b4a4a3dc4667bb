"""Engines behind `Client.descend`.

Side: the client's. An engine sees rows through the objective, changes no memory, and sends nothing.

`choose` picks one of `NAMES` for a problem and a device; `stack_size` says how many clients it serves in one call.
"""

from .choose import NAMES as NAMES
from .choose import choose as choose
from .choose import stack_size as stack_size
