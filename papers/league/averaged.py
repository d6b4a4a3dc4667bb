"""Controls: rivals judged, as FedNorton is, by a moving average of the server's model with weight √f.

f is the share of the clients that take part in a round. Where all do, such a control is its method to the bit.
`SteppedSCAFFOLD` is the shortest law of that kind: SCAFFOLD with a server's step, a server's momentum and the average,
all three tuned.

    python papers/league/run.py development --methods "FedAvg averaged,SCAFFOLD averaged,FedDyn averaged"
    python papers/league/run.py development --methods "SCAFFOLD with step and momentum,FedADMM share,FedDyn from .01"
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
from medley.contract.messages import ModelAndVariate
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


@dataclass
class SteppedServer(scaffold.Server):
    """SCAFFOLD's state, the last move of the server, and the model that is evaluated."""

    v: Vec
    read: Vec


@dataclass(frozen=True)
class SteppedSCAFFOLD(md.SCAFFOLD):
    """SCAFFOLD whose server moves by v ← beta·v + server_lr·(mean displacement), with an average.

    Attributes:
        parts: server_lr, beta, and whether an average with weight √(f(1 − beta)) is evaluated; they replace SCAFFOLD's
            own ``server_lr``
    """

    parts: tuple[float, float, bool] = (2.0, 0.3, True)

    def start(self, x: Vec) -> SteppedServer:
        return SteppedServer(x, torch.zeros_like(x), torch.zeros_like(x), x)

    def round(self, s: scaffold.Server, clients: Cohort) -> None:
        assert isinstance(s, SteppedServer)
        server_lr, beta, average = self.parts
        replies = clients.ask(self.train, ModelAndVariate(s.x, s.c))
        up = replies.sum()
        s.v = beta * s.v + server_lr / replies.share * up.delta
        s.x = s.x + s.v
        s.c = s.c + up.dc
        weight = math.sqrt(replies.count / clients.population * (1 - beta)) if average else 1.0
        s.read = torch.lerp(s.read, s.x, weight)

    def model(self, s: scaffold.Server) -> Vec:
        assert isinstance(s, SteppedServer)
        return s.read


CONTROLS = {
    "FedAvg": averaged(md.FedAvg, fedavg.Server),
    "SCAFFOLD": averaged(md.SCAFFOLD, scaffold.Server),
    "FedDyn": averaged(md.FedDyn, feddyn.Server),
}
