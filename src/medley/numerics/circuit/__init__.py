"""The circuit of ECADO and FedECADO on the server: a node, and a branch to every client.

- `step`: FedECADO's backward-Euler steps through a round's window, and their step control.
- `steady`: ECADO's steady state.
"""
