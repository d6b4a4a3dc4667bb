"""A deployment: one process on a server, one on each client's machine, and Flower's messages between them.

`node` runs where the rows are, `server` on the operator's machine, and `protocol` on both; `node` and `server` do not
import each other. `commands` is `medley deploy`. Only `protocol.flwr_api`, `node.fleet` and `server.gate` use Flower.
"""
