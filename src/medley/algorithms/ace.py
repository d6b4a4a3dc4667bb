"""ACE: for clients of unequal speed, the server steps along the mean of all clients' latest updates, however old.

**Reference**: Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak & Roy-Chowdhury, "Mitigating Participation
Imbalance Bias in Asynchronous Federated Learning", arXiv 2511.19066, 2025.

**Status**: published with corrections

**Needs**: nothing. The server keeps d floats for each client.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: a client sends the displacement of its local descent. With one local step that is −lr·∇f_i, as in the
paper; with more steps the server averages displacements. ``ReplyPolicy(replies=1)`` gives the paper's method. If
several replies end a round, all of them enter the mean, and the server then makes one step. Without a ReplyPolicy the
server waits for every reply; if everybody takes part, the method is then FedAvg, and a warning at the start of the run
says so. The paper begins with a gradient from every client. Here the mean is over the clients that have replied so far,
with weights p_i.

**Checked against**: the paper's introduction, and an implementation for Flower by others. In theirs the server steps
after every reply, a client makes one mini-batch step per reply, and neither delay nor size changes an update's weight.
We had neither the paper's listing nor anybody else's implementation of ACED.

**Missing replies**: late replies are used in the round in which they arrive. If a client's reply is lost, its last
update stays in the mean (under ACED, until it is too old).

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> devices = md.devices.Devices(speed=[1000.0] * 5 + [100.0] * 5)
>>> pace = md.scenarios.Pace(lr=0.02, batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, devices=devices, pace=pace)
>>> md.run(md.ACE(), fed, 1500, reply_policy=md.ReplyPolicy(replies=2), progress=False).summary["gap"] < 1e-12
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch

from ..contract import Algorithm, Client, Cohort, Model, Need, Step, Vec, at_least, on_client, positive


@dataclass
class Server:
    """The model, every client's latest update, and the round in which the server asked for it."""

    x: Vec
    latest: dict[int, Vec] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    u: Vec | None = None
    """Σ p_i u_i over ``latest``. ACE updates it with every reply; ACED does not use it."""


@dataclass(frozen=True)
class ACE(Algorithm[Server]):
    """All-client engagement.

    Attributes:
        server_lr: the server's step size; with 1, the default, a step is the clients' mean displacement. The paper's
            η is the product of this and the pace's lr. If fewer replies end a round, choose a smaller one.
    """

    server_lr: Annotated[float, positive] = 1.0

    needs = frozenset({Need.REPLIES})
    waits_as: ClassVar[str] = "FedAvg if everybody takes part"
    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀, and no update."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """u ← u + Σ p_i (u_i⁺ − u_i) over the replies, then x ← x + η u / Σ p_i over the clients that have replied."""
        u = torch.zeros_like(s.x) if s.u is None else s.u
        before = s.latest
        for i, new in self.receive(s, clients).items():
            u = u + clients.p[i] * (new - before[i] if i in before else new)
        s.u = u
        self.move(s, u, sum(clients.p[i] for i in s.latest))

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Sum u = Σ p_i u_i anew, over the members that have replied so far."""
        del who
        s.latest = {i: u for i, u in s.latest.items() if i in clients.p}
        s.asked = {i: t for i, t in s.asked.items() if i in clients.p}
        s.u = sum((clients.p[i] * u for i, u in s.latest.items()), torch.zeros_like(s.x))

    def receive(self, s: Server, clients: Cohort) -> dict[int, Vec]:
        """Ask all free clients; store the updates that arrive in this round as the latest, and return them."""
        replies = clients.ask(self.train, Model(s.x), late="deliver")
        new = {i: up.delta for i, up in replies.each().items()}
        request_rounds = {i: replies.asked[i] for i in new}
        s.latest = s.latest | new
        s.asked = s.asked | request_rounds
        clients.note(staleness=sum(clients.round - t for t in request_rounds.values()) / max(1, len(request_rounds)))
        return new

    def move(self, s: Server, u: Vec, share: float) -> None:
        """x ← x + η u / ``share``; no step if the share is 0."""
        s.x = s.x + self.server_lr / share * u if share > 0 else s.x

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x; its displacement is the update u_i."""
        return Step(me.descend(request.x).step)


@dataclass(frozen=True)
class ACED(ACE):
    """Delay-aware ACE: the mean leaves out updates that were asked for too many rounds ago.

    Attributes:
        server_lr: the server's step size, as in ACE.
        max_delay: τ_algo: the server uses an update for at most this many rounds after it asked for it; default 50,
            our choice. The right value depends on how many rounds replies take.
    """

    max_delay: Annotated[int, at_least(0)] = 50

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + η Σ p_i u_i / Σ p_i over A(t), the clients whose update is at most τ_algo rounds old."""
        self.receive(s, clients)
        active = [i for i in sorted(s.latest) if clients.round - s.asked[i] <= self.max_delay]
        u = torch.zeros_like(s.x)
        for i in active:
            u = u + clients.p[i] * s.latest[i]
        clients.note(active=float(len(active)))
        self.move(s, u, sum(clients.p[i] for i in active))
