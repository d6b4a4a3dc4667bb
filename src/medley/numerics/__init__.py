"""Mathematics that knows nothing of clients.

Side: both. Numbers in, numbers out: no messages, no files.
"""
