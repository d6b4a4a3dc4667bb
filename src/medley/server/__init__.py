"""The server's side of a run: the loop, its bookkeeping, the cohort.

Side: the server's. It sees requests, replies and figures, never rows.
"""
