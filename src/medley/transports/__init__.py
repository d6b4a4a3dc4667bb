"""Ways to reach clients; a method runs unchanged on each of them.

Side: the server's, which starts the workers, on this machine or on a Ray cluster. Requests and folds pass through
here.
"""

from ..contract.public import public
from .auto import Auto
from .inprocess import InProcess
from .lossy import Lossy
from .processes import Processes
from .ray import Ray

__all__ = ["Auto", "InProcess", "Lossy", "Processes", "Ray"]

public(__name__)
