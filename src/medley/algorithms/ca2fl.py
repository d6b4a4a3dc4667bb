"""CA2FL: FedBuff for clients whose data differ: the server keeps each client's last update to correct every buffer.

**Reference**: Wang, Cao, Wu, Chen & Chen, "Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration", ICLR 2024, Algorithm 2.

**Status**: published

**Needs**: nothing. The server keeps d floats for each client.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: the buffer is the round, so the paper's M is the run's ``ReplyPolicy(replies=M)``. Without a ReplyPolicy
the server waits for every reply; if everybody takes part, the method is then FedAvg, and a warning at the start of the
run says so. If clients differ in size, client i has the weight p_i in h instead of 1/n, and p̃_i among the M replies
instead of 1/M.

**Checked against**: two implementations by others. The authors published no code, and we did not have the listing. Both
have v, h and h_i as here, all 0 at the start. One of them averages BatchNorm layers without the cache.

**Missing replies**: late replies are used in the round in which they arrive. If a client's reply is lost, its last
update stays in h, the mean of all clients' last updates.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> devices = md.devices.Devices(speed=[1000.0] * 9 + [50.0])
>>> fed = md.Federation(toy.problem, clients=toy.clients, devices=devices, pace=md.scenarios.Pace(lr=0.05, batch=None))
>>> policy = md.ReplyPolicy(replies=5)
>>> cached, buffered = (
...     md.run(m, fed, 60, reply_policy=policy, init=toy.x_star, progress=False).x for m in (md.CA2FL(), md.FedBuff())
... )
>>> bool((cached - toy.x_star).norm() < (buffered - toy.x_star).norm() / 2)
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch

from ..contract import Algorithm, Client, Cohort, Model, Need, Step, Vec, on_client, positive


@dataclass
class Server:
    """The model; every client's last update h_i, which is 0 until its first reply; and h = Σ p_i h_i."""

    x: Vec
    h: Vec
    h_i: dict[int, Vec] = field(default_factory=dict)


@dataclass(frozen=True)
class CA2FL(Algorithm[Server]):
    """Cache-aided asynchronous averaging.

    Attributes:
        server_lr: the server's step size η; default 1, as in FedAvg. The paper tunes it.
    """

    server_lr: Annotated[float, positive] = 1.0

    needs = frozenset({Need.REPLIES})
    waits_as: ClassVar[str] = "FedAvg if everybody takes part"
    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀ and an empty cache."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + η v with v = h + Σ p̃_i (Δ_i − h_i) over the buffer; then h_i ← Δ_i, h ← Σ p_i h_i."""
        replies = clients.ask(self.train, Model(s.x), late="deliver")
        v = s.h
        h = s.h
        h_i = dict(s.h_i)
        total = 0
        for i, up in replies.each().items():
            change = up.delta - h_i[i] if i in h_i else up.delta
            v = v + clients.p[i] / replies.share * change
            h = h + clients.p[i] * change
            h_i[i] = up.delta
            total += clients.round - replies.asked[i]
        if replies.ids:
            s.x = s.x + self.server_lr * v
            s.h = h
            s.h_i = h_i
        clients.note(staleness=total / max(1, len(replies.ids)))

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Sum h = Σ p_i h_i anew, over the members."""
        del who
        s.h_i = {i: h for i, h in s.h_i.items() if i in clients.p}
        s.h = sum((clients.p[i] * h for i, h in s.h_i.items()), torch.zeros_like(s.x))

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x."""
        return Step(me.descend(request.x).step)
