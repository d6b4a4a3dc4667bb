r"""FedExLoRA: LoRA adapters, averaged exactly: what averaging the factors misses is added to the layers' own weights.

The mean of the products B_i A_i is not the product of the means. One round:

$$
\begin{aligned}
\bar A &= \textstyle\sum_i \tilde p_i A_i, \quad \bar B = \sum_i \tilde p_i B_i
  && \text{the adapters that clients begin the next round with} \\
\Delta W_{res} &= \textstyle\sum_i \tilde p_i B_i A_i - \bar B \bar A
  && \text{the residual} \\
W_0 &\leftarrow W_0 + s \, \Delta W_{res}
  && \text{the layer's own weights, at the server and at each client; } s \text{ is LoRA's scaling}
\end{aligned}
$$

so that $W_0 + s \bar B \bar A$ after the round is the mean of the clients' $W_0 + s B_i A_i$.

**Reference**: Singhal, Ponkshe & Vepakomma, "FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
Large Language Models", ACL 2025; arXiv:2410.09432.

**Status**: published

**Needs**: a network with LoRA adapters whose layers' own weights are trainable parameters, of that layer alone, and
replies one by one.

**One round sends** (floats per client; a: all that is trained, adapters and the rest; q: the residual's factors; l: the
layers with an adapter):

- train (first time): d down, a + l + 56l bytes up
- train (later): a + q down, a + l + 56l bytes up; q = (k − 1) r (m + n) a layer of m times n weights
- train (if the factors since its last visit are larger than the weights): d down, a + l + 56l bytes up

The residual of k clients has rank (k − 1) r. With every round that a client misses, its next download grows by this
rank, up to the size of the weights, mn. After that the server sends the weights whole.

**Departures**: clients have weights p̃_i; the paper's are 1/k. The residual is sent as Σ p̃_i (B_i − B̄)(A_i − A_1),
with one term fewer than there are clients, because the first is 0; the paper sends factors of rank k r. Clients do not
train W₀: it gets no gradient, no weight decay and no optimizer step. All other trainable parameters are averaged as in
FedAvg. ``ranks`` is not in the paper: a client of rank ρ trains the first ρ of the r directions and sends these only.
The other directions stay at B̄ and Ā, so none is cut off and the sum of products stays exact. FLoRA's sum is exact
because it stacks the adapters (Wang et al. 2024, arXiv:2409.05976).

**Checked against**: the authors' code. We had only the paper's abstract, so its equations have no numbers here. Their
aggregation for GLUE adds the transpose of the residual. That is right for GPT-2, whose layers store transposed weights,
but not for RoBERTa's linear layers; it raises no error there because these are square. Here each layer says whether its
weights are transposed.

**Missing replies**: the means and the residual are over the clients that replied.

**Example**

>>> import torch
>>> import medley as md
>>> from medley.testing.toys import Adapted
>>> network = torch.nn.Sequential(Adapted(64, 32, 4), torch.nn.ReLU(), Adapted(32, 10, 4))
>>> data, pace = md.datasets.digits(), md.scenarios.Pace(lr=0.02, epochs=3, optimizer="adam")
>>> fed = md.Federation(md.problems.Network(network), data=data, partition=md.partitions.IID(5), pace=pace)
>>> md.run(md.FedExLoRA(), fed, rounds=5, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from ..contract import Algorithm, Client, Cohort, Message, Need, Recall, Vec, WireError, at_least, on_client
from ..contract.adapters import Adapter
from ..contract.errors import MemoryLost
from ..contract.place import name_of


class Update(Message):
    """Down: x [d]; or its trained part [a] and, by layer, factors of the weights' changes since the last visit."""

    x: Vec | None = None
    trained: Float[Tensor, " a"] | None = None
    left: Float[Tensor, "m k"] | None = None
    right: Float[Tensor, "k n"] | None = None


class Trained(Message):
    """Up: the displacement of the parameters that the client trained [b]; of each layer, `Adapter`'s integers and s."""

    exact: ClassVar[frozenset[str]] = frozenset({"scale"})
    delta: Float[Tensor, " b"]
    layers: Int[Tensor, "l 7"]
    scale: Float[Tensor, " l"]


@dataclass
class Server:
    """The model x, with the layers' weights; the layers; and by number, factors of the weights' latest changes."""

    x: Vec
    layers: Tensor | None = None
    moves: int = 0
    have: dict[int, int] = field(default_factory=dict)
    """By client, how many of the ``moves`` its weights include."""
    left: dict[int, Tensor] = field(default_factory=dict)
    right: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class Memory:
    """x [d] as the client last got it; None before its first round."""

    x: Vec | None = None


@dataclass(frozen=True)
class FedExLoRA(Algorithm[Server, Memory]):
    """Exact sums of LoRA adapters.

    Attributes:
        ranks: the rank that each client trains, at most the model's r. Client i takes the entry at i modulo the number
            of entries. Default None: all clients train r
    """

    ranks: Sequence[Annotated[int, at_least(1)]] | None = None

    needs = frozenset({Need.ADAPTERS, Need.REPLIES})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """Ā and B̄ from the clients' displacements, then W₀ ← W₀ + s(Σ p̃_i B_i A_i − B̄ Ā)."""
        up = clients.ask(self.train, Recall(), {i: self.update(s, i) for i in clients.ids}).each()
        if not up:
            return
        i, first = next(iter(up.items()))
        layers = first.layers if s.layers is None else s.layers
        if not torch.equal(first.layers, layers) or not disjoint(layers, len(s.x)):
            raise misfit(i, s.x)
        for i, reply in up.items():
            if not torch.equal(reply.layers, first.layers) or not torch.equal(reply.scale, first.scale):
                other = name_of(next(iter(up)))
                raise WireError(f"{name_of(i)} has other adapters than {other}: give all the same model")
        s.layers = first.layers
        s.have = s.have | dict.fromkeys(up, s.moves)
        total = sum(clients.p[i] for i in up)
        free = trained(s.layers, s.x)
        share = [clients.p[i] / total for i in up]
        deltas = []
        for i, reply in up.items():
            of_client = trained(s.layers, s.x, self.rank(i))[free]
            if len(reply.delta) != int(of_client.sum()):
                raise misfit(i, s.x)
            deltas.append(reply.delta.new_zeros(len(of_client)).masked_scatter(of_client, reply.delta))
        mean = torch.stack([w * delta for w, delta in zip(share, deltas, strict=True)]).sum(0)
        s.x = s.x.masked_scatter(free, s.x[free] + mean)
        if len(up) > 1:
            left, right = factors(s.layers, first.scale, free, deltas=deltas, share=share, mean=mean)
            s.x = moved(s.x, s.layers, left, right)
            s.left = {**s.left, s.moves: left}
            s.right = {**s.right, s.moves: right}
            s.moves += 1
            self.forget(s, len(s.x) - len(mean))

    def rank(self, i: int) -> int | None:
        """The rank that client i trains; None for r."""
        return self.ranks[i % len(self.ranks)] if self.ranks else None

    def update(self, s: Server, i: int) -> Update:
        """The message that gives client i x: factors of the changes that it missed, if the server keeps them, or x."""
        since = range(s.have.get(i, -1), s.moves)
        if i not in s.have or s.layers is None or any(t not in s.left for t in since):
            return Update(s.x)
        values = s.x[trained(s.layers, s.x)]
        if not since:
            return Update(None, values)
        return Update(None, values, torch.cat([s.left[t] for t in since], 1), torch.cat([s.right[t] for t in since]))

    def forget(self, s: Server, weights: int) -> None:
        """Drop the oldest factors, so that those kept are together smaller than the weights."""
        size = 0
        recent = []
        for t in sorted(s.left, reverse=True):
            size += s.left[t].numel() + s.right[t].numel()
            if size < weights:
                recent.append(t)
        s.left = {t: s.left[t] for t in recent}
        s.right = {t: s.right[t] for t in recent}

    @on_client
    def train(self, me: Client[Memory], ask: Recall, request: Update) -> Trained:
        """Local descent of the adapters and all other trainable parameters; the weights W₀ stay fixed."""
        of: Any = me.problem
        adapters: tuple[Adapter, ...] = of.adapters
        layers = torch.tensor([layer[:7] for layer in adapters])
        x = request.x
        if x is None:
            x = me.memory.x
            if x is None or not fits(layers, x, request):
                raise MemoryLost(f"{name_of(me.id)}: the server's update does not fit its model", me.id)
            assert request.trained is not None
            x = x.masked_scatter(trained(layers, x), request.trained)
            if request.left is not None and request.right is not None:
                x = moved(x, layers, request.left, request.right)
        me.memory.x = x
        free = trained(layers, x, self.rank(me.id))
        step = replace(me.at(), problem=of.among(x, free)).descend(x[free]).step
        return Trained(step, layers, x.new_tensor([layer.scale for layer in adapters]))

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Send x to clients that lost their memory."""
        s.have = {i: t for i, t in s.have.items() if i not in who}


def parts(layers: Int[Tensor, "l 7"]) -> list[Adapter]:
    """The layers, without their scales."""
    return [Adapter._make((*layer, 1.0)) for layer in layers.tolist()]


def trained(layers: Int[Tensor, "l 7"], x: Vec, rank: int | None = None) -> Bool[Tensor, " d"]:
    """The coordinates that clients train: all except the layers' weights and adapters' directions beyond ``rank``."""
    out = torch.ones_like(x, dtype=torch.bool)
    for A, B, W, m, r, n, *_ in parts(layers):
        out[W : W + m * n] = False
        out[A : A + r * n].view(r, n)[rank or r :] = False
        out[B : B + m * r].view(m, r)[:, rank or r :] = False
    return out


def fits(layers: Int[Tensor, "l 7"], x: Vec, update: Update) -> bool:
    """Whether an update has as many numbers and factors as these layers need."""
    if update.trained is None or len(update.trained) != int(trained(layers, x).sum()):
        return False
    sides = [(n, m) if across else (m, n) for _, _, _, m, _, n, across, _ in parts(layers)]
    rows, columns = (sum(side) for side in zip(*sides, strict=True))
    if update.left is None or update.right is None:
        return update.left is update.right
    return (len(update.left), update.right.shape[1]) == (rows, columns)


def misfit(i: int, x: Vec) -> WireError:
    """The error to raise if client i's reply belongs to another model than x."""
    return WireError(f"{name_of(i)}'s adapters do not fit a model of {len(x)} numbers: give all the same model")


def disjoint(layers: Int[Tensor, "l 7"], d: int) -> bool:
    """Whether all layers lie within x [d], and no layer's weights overlap with anything else."""
    taken = torch.zeros(d, dtype=torch.bool)
    factored = list[tuple[int, int]]()
    for A, B, W, m, r, n, across, _ in parts(layers):
        spans = (W, W + m * n), (A, A + r * n), (B, B + m * r)
        if min(A, B, W) < 0 or min(m, r, n) < 1 or across not in (0, 1) or max(end for _, end in spans) > d:
            return False
        if taken[W : W + m * n].any():
            return False
        taken[W : W + m * n] = True
        factored += spans[1:]
    return len(layers) > 0 and not any(taken[start:end].any() for start, end in factored)


def factors(
    layers: Tensor, scale: Tensor, free: Tensor, deltas: Sequence[Vec], share: Sequence[float], mean: Vec
) -> tuple[Float[Tensor, "m k"], Float[Tensor, "k n"]]:
    """s Σ_i p̃_i (B_i − B̄)(A_i − A_1) of each layer, as factors; a smaller rank is filled up with zeros."""
    place = free.cumsum(0) - 1
    most = int(layers[:, 4].max())
    left = []
    right = []
    for (A, B, _, m, r, n, across, _), c in zip(parts(layers), scale.tolist(), strict=True):
        a = int(place[A])
        b = int(place[B])
        dA = [delta[a:][: r * n].view(r, n) for delta in deltas]
        dB = [(d - mean)[b:][: m * r].view(m, r) for d in deltas]
        U = torch.cat([c * w * pad(v, (0, most - r)) for w, v in zip(share, dB, strict=True)][1:], 1)
        V = torch.cat([pad(v - dA[0], (0, 0, 0, most - r)) for v in dA[1:]])
        left.append(V.T if across else U)
        right.append(U.T if across else V)
    return torch.cat(left), torch.cat(right, 1)


def moved(x: Vec, layers: Tensor, left: Float[Tensor, "m k"], right: Float[Tensor, "k n"]) -> Vec:
    """x with W + UV for each layer's weights W: U is the layer's rows of ``left``, V its columns of ``right``."""
    x = x.clone()
    row = 0
    column = 0
    for _, _, W, m, _, n, across, _ in parts(layers):
        m, n = (n, m) if across else (m, n)
        x[W : W + m * n].view(m, n).addmm_(left[row : row + m], right[:, column : column + n])
        row = row + m
        column = column + n
    return x
