"""A run on disk: checkpoints, run folders, results, and memories too large for RAM.

Side: the server's: model, history and ledger of a run; in a simulation the clients' memories too, never their rows. A
node uses only `atomic`.
"""
