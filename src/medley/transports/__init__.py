"""Ways to reach clients; a method runs unchanged on each of them."""

from .auto import Auto as Auto
from .local import Local as Local
from .lossy import Lossy as Lossy
from .processes import Processes as Processes
from .ray import Ray as Ray
