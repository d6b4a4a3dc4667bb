"""Rules that deal training rows to clients, and partitions in files.

Side: the server's, in simulations only: a partition sees labels and keys of rows.
"""

from ..contract.public import public
from .rules import IID, ByKey, Dirichlet, Labels, Partition, Quantity, Shards
from .saved import Saved, load, save

__all__ = [
    "IID", "ByKey", "Dirichlet", "Labels", "Partition", "Quantity", "Saved", "Shards", "load", "save",
]  # fmt: skip

public(__name__)
