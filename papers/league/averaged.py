"""Controls: rivals judged, as FedNorton is, by a moving average of the server's model with weight √f.

f is the share of the clients that take part in a round. Where all do, such a control is its method to the bit.

    python papers/league/run.py development --methods "FedAvg averaged,SCAFFOLD averaged,FedDyn averaged"
    python papers/league/page.py development --also papers/league/results/averaged --out league.html
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

import medley as md
from medley.algorithms import fedavg, feddyn, scaffold
from medley.contract.algorithm import Algorithm
from medley.contract.cohort import Cohort
from medley.contract.types import Vec


def averaged(method: type[Algorithm[Any, Any]], state: type) -> Algorithm[Any, Any]:
    """The method with its default settings, and with the average as the model that is evaluated."""

    @dataclass
    class Server(state):  # type: ignore[valid-type,misc]
        """The method's state, and the average."""

        read: Vec

    @dataclass(frozen=True)
    class Averaged(method):  # type: ignore[valid-type,misc]
        def start(self, x: Vec) -> Server:
            return Server(**vars(super().start(x)), read=x)

        def round(self, s: Server, clients: Cohort) -> None:
            super().round(s, clients)
            s.read = torch.lerp(s.read, s.x, math.sqrt(len(clients) / clients.population))

        def model(self, s: Server) -> Vec:
            return s.read

    Averaged.__name__ = Averaged.__qualname__ = f"Averaged{method.__name__}"
    return Averaged()


CONTROLS = {
    "FedAvg": averaged(md.FedAvg, fedavg.Server),
    "SCAFFOLD": averaged(md.SCAFFOLD, scaffold.Server),
    "FedDyn": averaged(md.FedDyn, feddyn.Server),
}
