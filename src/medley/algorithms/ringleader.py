r"""Ringleader: for clients of unequal speed and data: every step uses updates of all clients, none of them old or lost.

$$
\begin{aligned}
\bar g &= \textstyle\sum_i p_i \, G_i / b_i
  && G_i \text{ is the sum of the } b_i \text{ updates of client } i \text{ in the table} \\
x &\leftarrow x + \eta \, \bar g
  && \text{one step}
\end{aligned}
$$

Phase 1 collects updates until every client is in the table; the last one triggers the first step. In phase 2 each other
client triggers one step with its next update. Further updates of clients that have had their step go to the next
round's table.

**Reference**: Maranjyan & Richtárik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under
Data Heterogeneity", ICLR 2026; arXiv:2509.22860.

**Status**: published

**Needs**: replies one by one. The server keeps up to 2d floats for each client.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: a client sends the displacement of its local descent. With one local step that is −lr·∇f_i, as in the
paper, whose γ is lr·``server_lr``; its theory wants γ ≤ 1/(8nL). ``ReplyPolicy(replies=1)`` gives the paper's order of
arrival; if several replies end a round, they make one step together. If clients differ in size, their weights are p_i
instead of 1/n. Without a ReplyPolicy the server waits for every reply; if all clients take part, the method is then
FedAvg, and a warning at the start of the run says so.

**Checked against**: a summary of the paper with its algorithm, and a public simulator of it and its rivals, which may
not be the authors'. We could read only the paper's introduction, so the equations have no numbers here. Summary and
simulator agree with the text above. In the simulator, as here, a client that has had its step continues from the newest
x.

**Missing replies**: late replies are used in the round in which they arrive. If a client's reply is lost, the server
asks that client again, and phase 1 waits for it.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> devices = md.devices.Devices(speed=[1000.0] * 5 + [100.0] * 5)
>>> pace = md.scenarios.Pace(lr=0.05, batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, devices=devices, pace=pace)
>>> policy = md.ReplyPolicy(replies=1)
>>> md.run(md.Ringleader(), fed, 600, reply_policy=policy, eval_every=600, progress=False).summary["gap"] < 1e-6
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from ..contract import Algorithm, Client, Cohort, Model, Need, Step, Vec, on_client, positive


@dataclass
class Server:
    """The model; G_i and b_i in this round's table and in the next one's; and clients whose step in phase 2 is due."""

    x: Vec
    G: dict[int, Vec] = field(default_factory=dict)
    b: dict[int, int] = field(default_factory=dict)
    next_G: dict[int, Vec] = field(default_factory=dict)
    next_b: dict[int, int] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    """Empty in phase 1."""


@dataclass(frozen=True)
class Ringleader(Algorithm[Server]):
    """Ringleader ASGD.

    Attributes:
        server_lr: the server's step size η; with the default, 1, a step is the clients' mean displacement. The more
            clients there are, the smaller η must be.
    """

    server_lr: Annotated[float, positive] = 1.0

    needs = frozenset({Need.REPLIES})
    waits_as: ClassVar[str] = "FedAvg if everybody takes part"
    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀, and empty tables."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """Put the replies into the tables. Make a step if they end phase 1 or, in phase 2, if their step is due."""
        replies = clients.ask(self.train, Model(s.x), late="deliver")
        up = replies.each()
        second = bool(s.left)
        current = {i: reply.delta for i, reply in up.items() if not second or i in s.left}
        s.next_G, s.next_b = added(s.next_G, s.next_b, {i: up[i].delta for i in up if i not in current})
        s.G, s.b = added(s.G, s.b, current)
        steps = bool(current) and (second or clients.p.keys() <= s.b.keys())
        if steps:
            s.left = [i for i in s.left or sorted(clients.p) if i not in current]
            share = sum(clients.p[i] for i in s.b)
            for i, G in s.G.items():
                s.x = s.x + self.server_lr * clients.p[i] / share / s.b[i] * G
            if not s.left:
                s.G = s.next_G
                s.b = s.next_b
                s.next_G = {}
                s.next_b = {}
        old = sum(clients.round - replies.asked[i] for i in up)
        clients.note(stepped=float(steps), staleness=old / max(1, len(up)))

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Clients that left are dropped from both tables; a client that joins in phase 2 enters the next round's."""
        del who
        s.G = {i: G for i, G in s.G.items() if i in clients.p}
        s.b = {i: b for i, b in s.b.items() if i in clients.p}
        s.next_G = {i: G for i, G in s.next_G.items() if i in clients.p}
        s.next_b = {i: b for i, b in s.next_b.items() if i in clients.p}
        s.left = [i for i in s.left if i in clients.p]

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x; its displacement is the update."""
        return Step(me.descend(request.x).step)


def added(G: dict[int, Vec], b: dict[int, int], new: dict[int, Vec]) -> tuple[dict[int, Vec], dict[int, int]]:
    """The table's sums and counts with these updates added."""
    return G | {i: G[i] + u if i in G else u for i, u in new.items()}, b | {i: b.get(i, 0) + 1 for i in new}
