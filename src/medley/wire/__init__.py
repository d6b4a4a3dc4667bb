"""The wire between server and clients: exchanges, sums of replies, codecs, bytes, the ledger."""

from . import codecs as codecs
