"""The wire between server and clients: exchanges, sums of replies, codecs, bytes, the ledger.

Side: both: whatever passes between server and client in a run has one of these forms. Rows have none.
"""

from . import codecs as codecs
