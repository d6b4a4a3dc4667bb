"""Ways to reach clients: the same method, unchanged, on each."""

from .auto import Auto as Auto
from .local import Local as Local
from .lossy import Lossy as Lossy
from .processes import Processes as Processes
from .ray import Ray as Ray
