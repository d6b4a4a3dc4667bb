"""Secure aggregation: the server learns the sum of the clients' replies, and no reply by itself.

Side: `party` is the client's and `session` the server's; `ring`, `crypto`, `tables` and `settings` are read by both.
`connection` has both sides, for a simulation.
"""

from ..contract.public import public
from .settings import SecureSum

__all__ = ["SecureSum"]

public(__name__)
