"""The ways in which clients differ: data, pace, participation, devices, channel, and tasks that arrive over time.

Side: the server's, which draws who takes part and at which pace. Partitions and streams exist in simulations only,
and see labels and keys.
"""

from .attack import Attack
from .channel import Bandwidth, Rayleigh
from .description import Description, describe
from .devices import Devices, factory, hospitals, phones
from .laws import Choice, Constant, Integers, Law, LogUniform, Normal, Uniform
from .membership import Members, Membership
from .pace import Pace, cosine, step_decay
from .participation import Availability, Bernoulli, Cyclic, Everyone, Fixed, Fraction, Participation, participation
from .partition import IID, ByKey, Dirichlet, Labels, Partition, Quantity, Shards
from .saved import Saved, load, save
from .tasks import Permuted, Rotated, Split, Stream, Tasks, TimeOrder

__all__ = [
    "IID", "Attack", "Availability", "Bandwidth", "Bernoulli", "ByKey", "Choice", "Constant", "Cyclic",
    "Description", "Devices", "Dirichlet", "Everyone", "Fixed", "Fraction", "Integers", "Labels", "Law",
    "LogUniform", "Members", "Membership", "Normal", "Pace", "Participation", "Partition", "Permuted", "Quantity",
    "Rayleigh", "Rotated", "Saved", "Shards", "Split", "Stream", "Tasks", "TimeOrder", "Uniform", "cosine",
    "describe", "factory", "hospitals", "load", "participation", "phones", "save", "step_decay",
]  # fmt: skip
