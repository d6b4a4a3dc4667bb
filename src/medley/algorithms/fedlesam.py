"""FedLESAM: sharpness-aware FedAvg: gradients at points perturbed against the last movement of the server's model.

**Reference**: Fan, Hu, Yao, Niu, Zhang, Sugiyama & Wang, "Locally Estimated Global Perturbations are Better than Local
Perturbations for Federated Sharpness-aware Minimization", ICML 2024, Algorithm 1.

**Status**: published

**Needs**: nothing. Clients keep d floats between rounds.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: means are weighted by p̃_i; the paper gives all clients the same weight. The perturbation δ is the
paper's: it starts from the model that the client received when it last took part. It is constant during a round, so a
descent on f_i(y + δ) from x is a descent on f_i from x + δ, and costs one gradient a step on every engine. Weight decay
acts at y + δ.

**Checked against**: the authors' code. It sends the server's last movement to all clients, instead of the model that
each client last received, and decays weights at y. As it stands it does not perturb along that movement. For the k-th
tensor of the network it takes the k-th entry of the flat vector, multiplies it by −ρ over the sum of the absolute
values of those entries, and adds that one number to every entry of the tensor. Its ρ is 0.1 by default, and 0.5 in the
command in its README; the default here is smaller. It clips gradients at norm 10, which is a setting of the pace here.

**Missing replies**: a lost reply is left out of the mean, and the client's last model stays as it was.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedLESAM(), fed, rounds=5, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Model, Step, Vec, at_least, on_client, positive
from ..numerics.sharpness import stretched


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The server's model when the client last took part [d]; 0 while ``met`` is False."""

    x: Vec
    met: bool = False


@dataclass(frozen=True)
class FedLESAM(Algorithm[Server, Memory]):
    """Locally estimated global perturbations. With ``rho=0`` it is FedAvg.

    Attributes:
        rho: ρ, the length of the perturbation; default 0.05, 0.1 in the authors' code
        server_lr: η_g, a factor of the mean displacement; 1 in the authors' code
    """

    rho: Annotated[float, at_least(0)] = 0.05
    server_lr: Annotated[float, positive] = 1.0

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        """No model yet."""
        return Memory(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: a client without an earlier model descends without a perturbation once."""

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + η_g Σ p̃_i (y_i − x): the server adds the mean displacement, times its step size."""
        s.x = s.x + self.server_lr * clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: Model) -> Step:
        """y ← y − lr·∇f_i(y + δ), δ = ρ (x_old − x)/‖x_old − x‖, x_old the model it received before."""
        start = request.x
        if me.memory.met and self.rho:
            start = request.x + stretched(me.memory.x - request.x, self.rho)
        me.memory.x = request.x
        me.memory.met = True
        return Step(me.descend(start).step)
