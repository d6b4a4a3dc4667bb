"""The wire between server and clients: exchanges, sums of replies, the protocol of codecs, bytes, the ledger.

Side: both: whatever passes between server and client in a run has one of these forms. Rows have none.
"""

from ..contract.public import public

__all__: list[str] = []

public(__name__)
