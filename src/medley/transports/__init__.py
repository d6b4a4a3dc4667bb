"""Ways to reach clients: the same method, unchanged, on each."""

from .local import Local as Local
from .processes import Processes as Processes
