"""A network whose clients share some parameters, and have others of their own.

`SharedNetwork` is the problem with x [d], the shared parameters. The joint problem has all parameters, [d + e], the
shared ones first. `PartObjective` is f_i as a function of one part, while the other stays fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...contract import Data, Need, OwnState, PartlyShared, Readout, Rows, Unsupported, Vec, Weights
from ...contract.problem import Batch, LocalLoss, Objective, State
from ...runtime.forwarded import forwarded
from .objective import NetworkObjective
from .problem import NetworkProblem

Whole = Float[Tensor, " whole"]
"""All parameters [d + e], or a direction among them."""


class OwnPart:
    """The personal parameters of the client at work, x [e], and the initial ones, from which all clients begin.

    The buffers of modules that have own parameters belong to it; they lie in the module.
    """

    def __init__(self, joint: NetworkProblem, d: int) -> None:
        self.x = self.first = joint.flat[d:].clone()
        joint.settle()
        self.settle = joint.settle
        places = {p.data_ptr() for p in joint.split(joint.flat)[joint.shared_count :]}
        moving = {id(b) for b in (*joint.floats, *joint.ints)}
        buffers = list[Tensor]()
        for m in joint.module.modules():
            if any(p.data_ptr() in places for p in m.parameters(recurse=False)):
                buffers += [b for b in m.buffers(recurse=False) if id(b) in moving]
        self.floats = [b for b in buffers if b.is_floating_point()]
        self.ints = [b for b in buffers if not b.is_floating_point()]
        self.first_buffers = self.buffers()

    def buffers(self) -> State:
        """Copies of the own buffers' values, floats and integers separately."""
        self.settle()
        empty = torch.zeros(0, device=self.x.device)
        floats = [b.detach().reshape(-1).to(self.x.dtype) for b in self.floats]
        ints = [b.detach().reshape(-1).to(torch.int64) for b in self.ints]
        return torch.cat([empty.to(self.x.dtype), *floats]), torch.cat([empty.long(), *ints])

    def set(self, x: Vec, buffers: State) -> None:
        """Set parameters and buffers."""
        self.settle()
        self.x = x
        for own_buffers, flat in ((self.floats, buffers[0]), (self.ints, buffers[1])):
            for b, v in zip(own_buffers, torch.split(flat, [b.numel() for b in own_buffers]), strict=True):
                b.copy_(v.view(b.shape))


class SharedNetwork(PartlyShared):
    """The problem contract on the shared parameters x [d]; the other parameters belong to the client at work.

    Args:
        joint: the problem of all parameters [d + e]. Its buffers become the shared ones.
    """

    inputs, losses, hits, buffers, load_buffers = forwarded(
        "joint", "inputs", "losses", "hits", "buffers", "load_buffers"
    )

    def __init__(self, joint: NetworkProblem) -> None:
        self.joint = joint
        self.d = sum(joint.sizes[: joint.shared_count])
        self.dtype = joint.dtype
        self.e = joint.d - self.d
        self.part = OwnPart(joint, self.d)
        ids = {id(b) for b in (*self.part.floats, *self.part.ints)}
        joint.floats = [b for b in joint.floats if id(b) not in ids]
        joint.ints = [b for b in joint.ints if id(b) not in ids]
        self.gives: frozenset[Need] = joint.gives - {Need.ADAPTERS, *([Need.FEATURES] if self._head() is None else [])}

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.joint, self.part.first, self.part.first_buffers)

    def _head(self) -> tuple[int, int | None] | None:
        """The places of the last linear layer in x; None unless the whole layer is shared."""
        at = self.joint.last()
        return at if at is not None and max(at[0], at[1] or 0) < self.d else None

    @property
    def readout(self) -> Readout | None:
        """Where x has the last linear layer; None unless it is trained and shared."""
        at = self._head()
        return None if at is None else Readout(*at)

    def full(self, x: Vec) -> Whole:
        """All parameters [d + e]: x and the personal ones."""
        return torch.cat([x, self.part.x])

    def own(self) -> dict[str, Tensor]:
        """Copies of the current personal parameters."""
        floats, ints = self.part.buffers()
        return {"x": self.part.x.clone(), "floats": floats, "ints": ints}

    def load_own(self, state: OwnState | None) -> None:
        """Set the personal parameters; None sets the initial ones."""
        if state is None:
            self.part.set(self.part.first, self.part.first_buffers)
        else:
            self.part.set(state["x"], (state["floats"], state["ints"]))

    def begin_at(self, full: Whole) -> Vec:
        """Take the initial personal parameters from ``full`` [d + e], with the current buffers; returns the shared part
        [d].
        """
        self.part.x = self.part.first = full[self.d :].clone()
        self.part.first_buffers = self.part.buffers()
        return full[: self.d].clone()

    def initial(self, generator: torch.Generator) -> Vec:
        """x₀ [d]; the initial personal parameters come from the same draw."""
        return self.begin_at(self.joint.initial(generator))

    def bind(self, X: Data, y: Data, w: Weights = None) -> PartObjective:
        """f_i on these rows as a function of x."""
        return PartObjective(self, self.joint.bind(X, y, w), self.full, slice(0, self.d))

    def outputs(self, x: Vec, X: Data) -> Tensor:
        """The network's outputs in evaluation mode."""
        return self.joint.outputs(self.full(x), X)

    def penalty(self, x: Vec) -> float:
        """0."""
        return 0.0

    def restricted(self, allowed: Bool[Tensor, "c c"] | None) -> SharedNetwork:
        """Like `restricted` of the joint problem; both problems have the same personal parameters."""
        out = SharedNetwork.__new__(SharedNetwork)
        vars(out).update(vars(self), joint=self.joint.restricted(allowed))
        return out


def _remade(joint: NetworkProblem, first: Vec, buffers: State) -> SharedNetwork:
    out = SharedNetwork(joint)
    out.part.x = out.part.first = first
    out.part.first_buffers = buffers
    return out


@dataclass
class PartObjective:
    """f_i as a function of one part of the parameters.

    Attributes:
        joint: f_i of all parameters
        full: completes this part to all parameters [d + e]
        part: the place of this part among them

    ``n``, ``d`` and ``y`` are its rows, the length of the part, and its labels.
    """

    problem: SharedNetwork
    joint: NetworkObjective
    full: Callable[[Vec], Whole]
    part: slice
    n: int = field(init=False)
    d: int = field(init=False)
    y: Data = field(init=False)
    transform, counts, convexity, smoothness, factor, rng, work, partial = forwarded(
        "joint", "transform", "counts", "convexity", "smoothness", "factor", "rng", "work", "partial"
    )

    def __post_init__(self) -> None:
        self.n = self.joint.n
        self.d = int(self.part.stop - self.part.start)
        self.y = self.joint.y

    def others(self, x: Vec) -> PartObjective:
        """f_i as a function of the personal parameters, with the shared ones fixed at x [d]."""
        return PartObjective(
            self.problem, self.joint, lambda v: torch.cat([x, v]), slice(self.problem.d, self.problem.joint.d)
        )

    @property
    def shapes(self) -> list[torch.Size]:
        """The shapes of the parameters of this part."""
        count = self.problem.joint.shared_count
        shapes = self.problem.joint.shapes
        return shapes[:count] if self.part.start == 0 else shapes[count:]

    @property
    def idle(self) -> Bool[Tensor, " d"] | None:
        """Coordinates of this part that the last gradient did not reach; None if it is not known."""
        idle = self.joint.idle
        return None if idle is None else idle[self.part]

    def padded(self, v: Vec) -> Whole:
        """A direction of this part [d] as a direction of all parameters, 0 elsewhere."""
        out = v.new_zeros(self.problem.joint.d)
        out[self.part] = v
        return out

    def last(self) -> tuple[int, int | None]:
        """Places in x of the last linear layer. Raises Unsupported if it is not shared or not trained."""
        at = self.problem._head()
        if at is None:
            raise Unsupported("the network's last linear layer is not shared", method="last", need="features")
        return at

    def loss(self, x: Vec, rows: Rows = None) -> float:
        """f_i(x) on these rows."""
        return self.joint.loss(self.full(x), rows)

    def losses_along(self, x: Vec, p: Vec, etas: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        """f_i(x − ηp) for every η."""
        return self.joint.losses_along(self.full(x), self.padded(p), etas)

    def grad(self, x: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """∇f_i(x) [d] on these rows, in training mode."""
        return self.joint.grad(self.full(x), rows, of_part(loss, self.part), copy=copy)[self.part]

    def hvp(self, x: Vec, v: Vec, rows: Rows = None) -> Vec:
        """∇²f_i(x) v [d] on these rows."""
        return self.joint.hvp(self.full(x), self.padded(v), rows)[self.part]

    def hessian(self, x: Vec, rows: Rows = None) -> Float[Tensor, "d d"]:
        """∇²f_i(x) on these rows, by d products."""
        eye = torch.eye(self.d, dtype=x.dtype, device=x.device)
        return torch.stack([self.hvp(x, e, rows) for e in eye], 1)

    def outputs(self, x: Vec, rows: Rows = None) -> Tensor:
        """The outputs on these rows, in evaluation mode."""
        return self.joint.outputs(self.full(x), rows)

    def features(self, x: Vec, rows: Rows = None) -> Tensor:
        """The inputs of the last linear layer [n, f], in evaluation mode."""
        return self.joint.features(self.full(x), rows)

    def squares(self, x: Vec, rows: Rows = None) -> Vec:
        """The mean over these rows of (∂l_j/∂x)² [d]."""
        return self.joint.squares(self.full(x), rows)[self.part]

    def clipped(self, x: Vec, rows: Rows, bound: float) -> tuple[Vec, Vec | float]:
        """This part of the sum of row gradients; each gradient is clipped by its norm over all parameters."""
        return self.joint.clipped(self.full(x), rows, bound)[0][self.part].clone(), 0.0

    def workspace(self, x: Vec) -> Vec:
        """A copy of x that a descent may overwrite."""
        return x.clone()

    def like(self, X: Data, y: Data) -> PartObjective:
        """The same objective on other rows."""
        return PartObjective(self.problem, self.joint.like(X, y), self.full, self.part)

    def beside(self, other: Objective, draws: Iterator[Rows], share: float | None = None) -> PartObjective:
        """The same objective with rows of ``other`` in each gradient."""
        assert isinstance(other, PartObjective)
        return PartObjective(self.problem, self.joint.beside(other.joint, draws, share), self.full, self.part)

    def slopes(self, x: Vec) -> tuple[Float[Tensor, "n o"], Float[Tensor, "n f"]]:
        """∂l_j/∂z_j [n, o] and the last layer's inputs [n, f]; that layer is shared."""
        self.last()
        return self.joint.slopes(self.full(x))

    def take(self, order: Tensor) -> PartObjective:
        """The same objective with its rows in this order."""
        return PartObjective(self.problem, self.joint.take(order), self.full, self.part)


class PartBatch:
    """A forward pass whose x is one part of the parameters; see `medley.contract.problem.Batch`."""

    def __init__(self, batch: Batch, part: slice) -> None:
        self._batch = batch
        self._part = part

    @property
    def x(self) -> Vec:
        """The parameters of the part [d]."""
        return self._batch.x[self._part]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


def of_part(loss: LocalLoss | None, part: slice) -> LocalLoss | None:
    """A local loss of x [d] as a loss of all parameters; None for None."""
    if loss is None:
        return None
    return lambda batch: loss(cast(Batch, PartBatch(batch, part)))
