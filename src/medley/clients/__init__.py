"""The clients' side of a run: the host that runs client methods, stacks of clients, their memories.

Side: the client's: this process or a worker in a simulation, the node in a deployment. Code here sees rows and
memories; what leaves it are folds of replies.
"""
