"""The price of secure sums: one round of FedAvg with and without, 100 clients, d = 235,146.

python benchmarks/secure.py [--clients 100] [--rounds 2] [--rows 600]
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import medley as md

D = 235_146


def network() -> nn.Module:
    """A perceptron of d = 235,146 parameters for MNIST's shape."""
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    assert sum(p.numel() for p in net.parameters()) == D
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=600, help="rows of a client, MNIST's by default")
    a = parser.parse_args()
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    n = a.clients * a.rows
    data = md.datasets.Dataset(torch.randn(n, 784, generator=rng), torch.randint(10, (n,), generator=rng), classes=10)
    pace = md.scenarios.Pace(lr=0.05, epochs=1, batch=32)
    fed = md.Federation(md.problems.Network(network()), data=data, partition=md.partitions.IID(a.clients), pace=pace)
    cost = {}
    for name, secure in (("plain", None), ("secure", md.SecureSum())):
        began = time.process_time()
        run = md.run(md.FedAvg(), fed, a.rounds, secure=secure, eval_every=a.rounds, progress=False)
        keys = sum(e.up for e in run.ledger if e.method in ("secure keys", "secure shares"))
        cost[name] = (time.process_time() - began) / a.rounds, (run.ledger.up - keys) / a.rounds, keys / a.rounds
        print(f"{name}: {cost[name][0]:.2f} s CPU a round, {cost[name][1]:,.0f} bytes up, keys {cost[name][2]:,.0f}")
    print(f"CPU {cost['secure'][0] / cost['plain'][0]:.2f} x, bytes up {cost['secure'][1] / cost['plain'][1]:.4f} x")


if __name__ == "__main__":
    main()
