"""Local descent of many clients by one forward pass, mapped over the clients by `torch.vmap`, and one backward pass.

For any model that `torch.vmap` can map: normalisation of rows or groups, attention, embeddings, residual blocks, a
user's own loss. The parameters of k clients are X [k, d], and so are gradients, momenta and Adam's moments. Numbers
that differ between clients (lr, momentum, weight decay, clip) are columns [k, 1]. Many small operations become a few
larger ones, which pays off for small models, and on devices that need large operations.

Batches of unequal size are padded with rows of share 0 if a row's loss depends on that row alone. Otherwise (a user's
own loss, which sees only batches; batch statistics) clients whose batches have the same size are mapped together, and
nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..contract import Client, Data, Descent, Engine, LocalUpdate, Need, Num, Problem, Vec, types
from ..problems.linear import LinearProblem
from ..problems.network import NetworkProblem
from ..rows.fields import Fields
from ..runtime.operations import OperationMode
from .minibatches import ClientVecs, Group, Schedule, groups, minibatches, simulated_times, supports
from .seq import Seq

CPU_LIMIT = 1 << 28
"""Bytes that one forward pass may hold on the CPU."""


@dataclass(frozen=True)
class Terms:
    """One step of each client; the rule is the one in `Seq.descend`.

    Attributes:
        lr, decay, clip, momentum: columns [k, 1]; None for no clipping, or no momentum. decay includes the problem's
            ridge and is [k, d] if that is a vector; clip is ∞ for clients without one.
        scale: a number, or a column [k, 1].
        shift: a vector [d], or [k, d]; None for 0.
        pull: (mu, anchor), as in `Descent`; None for no pull.
    """

    lr: Tensor
    decay: Tensor
    clip: Tensor | None
    scale: Num
    shift: Vec | None
    momentum: Tensor | None
    pull: tuple[Num | Vec, Vec] | None

    def rows(self, some: slice | Tensor) -> Terms:
        """The terms of these clients."""
        part: Callable[[Any], Any] = lambda v: v[some] if isinstance(v, Tensor) and v.ndim == 2 else v
        return Terms(
            part(self.lr),
            part(self.decay),
            part(self.clip),
            part(self.scale),
            part(self.shift),
            part(self.momentum),
            None if self.pull is None else (part(self.pull[0]), part(self.pull[1])),
        )


@dataclass(frozen=True)
class Stacked:
    """The engine of one problem.

    Attributes:
        by_row: whether a row's loss depends on that row alone, so that batches can be padded.
        least: the fewest clients that it accepts; fewer go to ``few``.
        few: the engine for fewer clients; default `Seq`. It also gets a method's own loss or correction, sparse rows
            and weighted rows.
        bytes_held: bytes that one client's forward pass holds, by the shape of its batch; measured once per shape.
    """

    problem: NetworkProblem | LinearProblem
    by_row: bool
    least: int = 2
    few: Engine = field(default_factory=Seq)
    name: str = "stacked"
    bytes_held: dict[torch.Size, int] = field(default_factory=dict, repr=False, compare=False)

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """See `medley.contract.client.Client.descend`; momentum, clipping and Adam as in `Seq.descend`."""
        paces = [c.pace for c in me.members]
        k = len(me.members)
        if k < self.least or not supports(me, how):
            return (self.few if k < self.least else Seq()).descend(me, x, how)
        if isinstance(self.problem, NetworkProblem):
            self.problem.mode(True)
        schedules = [Schedule.of(c) for c in me.members]
        X = x.expand(k, -1).clone()
        column: Callable[[list[Any]], Tensor] = lambda values: types.column(values, x)
        ridge = self.problem.decay if isinstance(self.problem, LinearProblem) else 0.0
        clips = [torch.inf if p.clip is None else p.clip for p in paces]
        momentum = how.optimizer == "sgd" and any(p.momentum for p in paces)
        terms = Terms(
            lr=column([p.lr for p in paces]),
            decay=ridge + column([p.weight_decay for p in paces]),
            clip=column(clips) if any(p.clip is not None for p in paces) else None,
            scale=how.scale,
            shift=None if how.shift is None else how.shift[0] * how.shift[1],
            momentum=column([p.momentum for p in paces]) if momentum else None,
            pull=how.pull,
        )
        first = torch.zeros_like(X) if how.first else None
        for some in groups(schedules):
            group = [schedules[i] for i in some]
            adam = how.optimizer == "adam"
            if some == [*range(k)]:
                self.train(group, X, terms, adam, first)
                continue
            at = torch.tensor(some).to(X.device)
            part = X[at]
            begun = None if first is None else first[at]
            self.train(group, part, terms.rows(at), adam, begun)
            X[at] = part
            if first is not None and begun is not None:
                first[at] = begun
        T = simulated_times(schedules, how)
        steps = [s.steps for s in schedules]
        return LocalUpdate(X.sub_(x), column(T), column(steps), self.name, first)

    def train(self, group: Group, X: ClientVecs, all_terms: Terms, adam: bool, first: Tensor | None = None) -> None:
        """All steps of a group, in place on its parameters X [k, d].

        Args:
            group: the clients' schedules, most steps first.
            X: their parameters.
            first: receives the first steps [k, d]; default None.
        """
        objective: Any = group[0].me.problem
        if objective.problem is not self.problem:  # the problem of a task, which allows only some outputs
            replace(self, problem=objective.problem).train(group, X, all_terms, adam, first)
            return
        b1, b2 = Seq.betas
        buffers = [torch.zeros_like(X) for _ in range(2 if adam else all_terms.momentum is not None)]
        ridge = isinstance(self.problem, LinearProblem) and bool(self.problem.family.mu)
        decays = ridge or any(s.me.pace.weight_decay for s in group)
        terms = all_terms
        for t, (active, h, y, share, _) in enumerate(minibatches(group, X), 1):
            if active < len(terms.lr):
                terms = all_terms.rows(slice(active))
            at = X[:active]
            u = self.gradients(at, h, y, share)
            if decays:
                u.addcmul_(terms.decay.expand_as(at), at)
            if terms.clip is not None:
                u.mul_((terms.clip / u.norm(dim=1, keepdim=True)).clamp_(max=1))
            if isinstance(terms.scale, Tensor) or terms.scale != 1.0:
                u.mul_(terms.scale)
            if terms.shift is not None:
                u.add_(terms.shift)
            pulled = 0.0 if terms.pull is None else terms.pull[0] * (at - terms.pull[1])
            if adam:
                u += pulled
                m, v = (moments[:active] for moments in buffers)
                m.mul_(b1).add_(u, alpha=1 - b1)
                v.mul_(b2).addcmul_(u, u, value=1 - b2)
                scaled = (v / (1 - b2**t)).sqrt_().add_(Seq.eps)
                at.addcdiv_(m * (terms.lr / (1 - b1**t)), scaled, value=-1)
                continue
            if terms.momentum is not None:
                u = buffers[0][:active].mul_(terms.momentum).add_(u)
            u = u + pulled
            at.addcmul_(terms.lr.expand_as(at), u, value=-1)
            if first is not None and t == 1:
                torch.mul(u, -terms.lr, out=first[:active])

    def gradients(self, X: ClientVecs, h: Data, y: Data, share: Tensor | float) -> ClientVecs:
        """Every client's gradient on its batch [k, d], without weight decay.

        Args:
            h, y: inputs [k, b, ...] and labels [k, b, ...].
            share: each row's share in its batch's mean, as in `minibatches.Minibatch`.
        """
        if isinstance(share, float) or self.by_row:
            return self.mapped(X, h, y, share if isinstance(share, Tensor) else None)
        G = torch.empty_like(X)
        rows = (share > 0).sum(1)
        for b in sorted(set(rows.tolist())):
            some = (rows == b).nonzero()[:, 0]
            G[some] = self.mapped(X[some], h[some, :b], y[some, :b], None)
        return G

    def mapped(self, X: ClientVecs, h: Data, y: Data, share: Float[Tensor, "k b"] | None) -> ClientVecs:
        """Gradients [k, d], for as many clients at a time as fit in memory; ``share`` None stands for 1/b."""
        need = self.bytes_held.get(h.shape[1:])
        if need is None:
            one = X[:1].detach().requires_grad_()
            need = graph_bytes(self.losses(one, h[:1], y[:1], None if share is None else share[:1]).sum())
            self.bytes_held[h.shape[1:]] = need
        size = max(1, memory_limit(X.device) // need)
        parts: list[Tensor] = []
        for at in range(0, len(X), size):
            some = slice(at, at + size)
            leaf = X[some].detach().requires_grad_()
            total = self.losses(leaf, h[some], y[some], None if share is None else share[some]).sum()
            parts += torch.autograd.grad(total, leaf)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def losses(self, X: ClientVecs, h: Data, y: Data, share: Float[Tensor, "k b"] | None) -> Float[Tensor, " k"]:
        """Every client's loss on its batch, with its graph."""
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the only attention kernel with a vmap rule
            values: Tensor = vmap(self.loss, (0, 0, 0, None if share is None else 0))(X, h, y, share)
        return values

    def loss(self, x: Vec, h: Data, y: Data, share: Float[Tensor, " b"] | None) -> Float[Tensor, ""]:
        """One client's loss on its batch."""
        p = self.problem
        out = p.call(x, h) if isinstance(p, NetworkProblem) else p.outputs(x, h)
        rows = p.losses(out, y)
        if rows is None:
            assert isinstance(p, NetworkProblem)
            return p.mean_loss(out, y)
        return rows.mean() if share is None else (rows.reshape(len(share), -1).mean(1) * share).sum()


class Optional(OperationMode):  # type: ignore[no-untyped-call]
    """Notes in a pass whether an embedding has options that make its gradient depend on the ids: vmap lacks them.

    It sees the operations, so it works the same for torch's layers, for functions, and for a user's own modules.
    """

    used = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = func._schema.name, args[2:]  # of aten::embedding: padding_idx, scale_grad_by_freq, sparse
        self.used |= name == "aten::embedding" and any(v is True or (v is not False and v != -1) for v in options)
        self.used |= name in ("aten::embedding_renorm_", "aten::_embedding_bag")
        return func(*args, **(kwargs or {}))


def graph_bytes(loss: Tensor) -> int:
    """Bytes that the loss's graph keeps for the backward pass, each tensor counted once; at least 1."""
    sizes = {0: 1}
    nodes = [loss.grad_fn]
    visited = set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        for v in saved:
            sizes |= {t.data_ptr(): t.nbytes for t in (v if isinstance(v, tuple) else (v,)) if isinstance(t, Tensor)}
        nodes += [n for n, _ in node.next_functions]
    return sum(sizes.values())


def memory_limit(device: torch.device) -> int:
    """Bytes that a forward pass may hold. On CUDA a third of the free memory: the backward pass needs as much again."""
    if device.type != "cuda":
        return CPU_LIMIT
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + unused) // 3


def stacked(problem: Problem, least: int = 2) -> Stacked | str:
    """The engine for this problem, or a sentence that says why it has none.

    It tries a network on two rows of its data, at two points: the mapped gradients must equal each client's own, and no
    operation may have an option that vmap ignores, whether these rows show it or not. The problem and the random
    streams stay unchanged.
    """
    if isinstance(problem, LinearProblem):
        return Stacked(problem, True, least)
    if not isinstance(problem, NetworkProblem) or problem.sample is None:
        return "it takes linear models, and networks that know their data"
    if problem.buffers() is not None:
        return "the network has buffers (BatchNorm's statistics), and every client changes its own"
    if Need.NOISE in problem.gives:
        return "the network draws random numbers (dropout), every client its own"
    if problem.counting:
        return "the network changes numbers that are no buffers from pass to pass"
    (X, y), point = problem.sample, problem.flat.clone()
    if isinstance(X, Fields):
        return "rows have several inputs"
    torch._C._functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
    problem.mode(True)
    try:
        g = torch.Generator().manual_seed(0)
        some: Callable[..., Tensor] = lambda *shape: torch.randn(*shape, generator=g).to(point)
        # Not the point itself, where gates may be closed and outputs 0.
        at = point + some(2, problem.d) / 10
        h = torch.stack([X, X.flip(0)])
        labels = torch.stack([y, y.flip(0)])
        engine = Stacked(problem, not callable(problem.family.loss) and _by_row(problem, at[0], X, some), least)
        slopes = engine.gradients(at, h, labels, 1 / len(X))
        optional = Optional()  # type: ignore[no-untyped-call]
        with optional:
            expected = torch.stack([problem.bind(*rows).grad(x) for x, *rows in zip(at, h, labels, strict=True)])
    except Exception as e:
        first_line = next(iter(str(e).strip().splitlines()), "")
        return f"vmap cannot map the network or its loss ({type(e).__name__}: {first_line})"
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)  # type: ignore[attr-defined]
        problem.load(point)
    if optional.used:
        return "the gradient of an embedding depends on its ids (padding_idx, scale_grad_by_freq, max_norm, sparse)"
    if not _close(slopes, expected):
        return "mapped by vmap, the network's gradients differ from its own"
    return engine


def _by_row(problem: NetworkProblem, x: Vec, X: Data, some: Callable[..., Tensor]) -> bool:
    """Whether the network's outputs for a row are the same in any batch: tested with other rows, and alone."""
    others = X.flip(0).flip(-1)
    if X.is_floating_point():
        others = others + some(*X.shape)
    elif X.numel():  # other ids, if the rows are alike
        others = (others + some(*X.shape).mul(100).long().abs()) % (int(X.max()) + 1)
    with torch.no_grad():
        both = problem.call(x, torch.cat([X, others]))[: len(X)]
        try:
            return _close(both, torch.cat([problem.call(x, row) for row in torch.split(X, 1)]))
        except ValueError:  # from BatchNorm, for one row
            return False


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether a equals b up to rounding: ‖a − b‖ ≤ 10⁴ eps (1 + ‖b‖)."""
    return float((a - b).norm()) <= 1e4 * torch.finfo(a.dtype).eps * (1 + float(b.norm()))
