"""The engine of a network with a training loop of its own: `Network(module, train=function)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..contract import Client, Descent, LocalUpdate, RecipeError, Unsupported, Vec
from ..contract.place import name_of
from ..contract.surroundings import refusal
from ..problems.network import NetworkProblem
from ..problems.network.objective import NetworkObjective
from ..problems.network.spec import Train, keeps_state
from ..rows.fields import Inputs, inputs_of
from ..rows.lazy import in_memory
from ..runtime import streams
from ..storage.base import shared_copy
from .minibatches import simulated_time
from .seq import one_by_one
from .torch_optimizer import can_be_saved, copied

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes in which a module of torch has its hooks."""


class LoopRows(torch.utils.data.Dataset[tuple[Inputs, Tensor]]):
    """A copy of the rows on which a training loop trains one client. As a torch data set, row j is (inputs, target).

    Attributes:
        X: the inputs [n, ...] as the network takes them: a tensor, or a dict or a tuple of tensors
        y: the targets [n, ...]
        weights: the weights of the rows' losses [n]; None for 1 each
        client: the client's number, from 0
        name: the client as messages name it
    """

    def __init__(self, me: Client[Any], of: NetworkObjective) -> None:
        self._me = me
        self._of = replace(of, X=in_memory(of.X).clone(), y=of.y.clone())  # a loop may write into them
        self.y = self._of.y
        self.weights = None if of.w is None else of.w.clone()
        self.client = me.id
        self.name = name_of(me.id)

    @property
    def X(self) -> Inputs:
        """The inputs of all rows, in memory."""
        return inputs_of(self._of.X)

    def __len__(self) -> int:
        """The number of rows."""
        return self._of.n

    def __getitem__(self, row: int) -> tuple[Inputs, Tensor]:
        """The inputs and the target of one row."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self.name} has {len(self)} rows; there is no row {row}")
        inputs: Inputs = tree_map(lambda t: t[0], inputs_of(self._of.X[[row]]))
        return inputs, self.y[row]

    def batches(self) -> Iterator[tuple[Inputs, Tensor]]:
        """The mini-batches of this round: as many, of the size and in the order in which Medley's own steps take them.

        They follow from the pace and the run's seed.
        """
        for rows in self._me.batches():
            yield (self.X, self.y) if rows is None else (inputs_of(self._of.X[rows]), self.y[rows])


@dataclass(frozen=True)
class OwnLoop:
    """Trains each client by ``train``, a function (module, rows, pace, seed) that trains the module in place.

    The function gets a copy of the module, with the server's parameters and buffers. Only parameters and buffers come
    back: the displacement of the parameters is the update. Steps, row gradients and simulated time count what the pace
    says, whatever the function does.
    """

    train: Train
    name: str = "own loop"

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """See `medley.contract.client.Client.descend`. Raises Unsupported for a step that is not plain descent."""
        if len(me.members) > 1:
            return one_by_one(self, me, x, how)
        objective = me.problem
        refuse_steps(how)
        if not isinstance(objective, NetworkObjective) or objective.also is not None:
            raise Unsupported(
                "Network(train=...): the method trains clients on other rows or parameters than their own, which a "
                "training loop does not know; leave train= out",
                method="train",
                need="loop",
            )
        problem = objective.problem
        assert isinstance(problem, NetworkProblem)
        problem.load(x)
        module = shared_copy(problem.module)
        module.train()
        rows = LoopRows(me, objective)
        frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        watched: list[tuple[str, Tensor, int]] = [(f"the frozen {name}", p, p._version) for name, p in frozen.items()]
        hooks = hooks_of(module)
        phase = f"{me.phase} own loop".lstrip()
        streams.name_globals(problem.device, me.seed, me.id, me.round, phase)
        seed = streams.key(me.seed, me.id, me.round, phase) % 2**31
        state = {k: copied(v) for k, v in (me.optimizer_state or {}).items()}
        more = {"state": state} if keeps_state(self.train) else {}
        try:
            returned = self.train(module, rows, me.pace, seed, **more)
            self._check_left(returned, problem.device)
        finally:
            torch.set_grad_enabled(True)
            torch.set_default_dtype(torch.float32)
        for what, t, version in watched:
            if t._version != version:
                raise self.error(f"changed {what} in place; other clients use the same numbers, so work on a copy")
        added = next((place for place, count in hooks_of(module).items() if count > hooks.get(place, 0)), None)
        if added is not None:
            raise self.error(f"left a hook on {added}; remove it before the function returns: handle.remove()")
        y = self._parameters(problem, module)
        self._take_buffers(problem, module)
        if more:
            me.optimizer_state = self._checked(state)
        passes, rest = divmod(me.steps, len(me.cuts))
        me.problem.work += sum(cut.stop - cut.start for cut in me.cuts * passes + me.cuts[:rest])
        return LocalUpdate(y - x, simulated_time(me.pace, me.steps, 0.0, how), me.steps, self.name)

    @property
    def called(self) -> str:
        """The function's name in messages."""
        return f"Network(train={getattr(self.train, '__name__', type(self.train).__name__)})"

    def error(self, text: str) -> RecipeError:
        """An error that names the function."""
        return RecipeError(f"{self.called}: the function {text}", "train")

    def _check_left(self, returned: object, device: str) -> None:
        """Raise RecipeError for a function that returns a module instead of training the given one, or that leaves
        torch in another mode.
        """
        if returned is not None:
            raise self.error(
                f"returned a {type(returned).__name__}; train the given module in place, and return nothing"
            )
        if not torch.is_grad_enabled():
            raise self.error("left gradients off; use torch.no_grad() as a context")
        if torch.get_default_dtype() != torch.float32:
            raise self.error(f"left torch's default dtype at {torch.get_default_dtype()}; set it back before the end")
        why = refusal(device)
        if why:
            raise self.error(f"left torch in a mode that other clients would meet: {why}")

    def _parameters(self, problem: NetworkProblem, module: nn.Module) -> Vec:
        """The trained parameters [d]. Raises RecipeError for one that is gone, or has another shape, dtype or place."""
        paths = {index: path for path, index in reversed(problem.places)}
        trained = {}
        for index, shape in enumerate(problem.shapes):
            trained[index] = self._same(
                paths[index], dict(module.named_parameters(remove_duplicate=False)), shape, problem.flat
            )
        return torch.cat([trained[index].detach().reshape(-1) for index in range(len(problem.shapes))])

    def _same(self, path: str, tensors_by_name: Mapping[str, Tensor], shape: torch.Size, like: Tensor) -> Tensor:
        """The tensor of this name. Raises RecipeError unless it has the shape, and dtype and device of ``like``."""
        t = tensors_by_name.get(path)
        if t is None:
            raise self.error(f"took {path} out of the module, or renamed it; its parameters must stay")
        for what, before, after in (
            ("the shape", list(shape), list(t.shape)),
            ("the dtype", like.dtype, t.dtype),
            ("the device", like.device, t.device),
        ):
            if before != after:
                raise self.error(f"changed {what} of {path} from {before} to {after}; restore it before the end")
        return t

    def _take_buffers(self, problem: NetworkProblem, module: nn.Module) -> None:
        """Copy the trained module's buffers into the problem's module, from where they travel."""
        trained = dict(module.named_buffers(remove_duplicate=False))
        for name, b in problem.module.named_buffers():
            t = self._same(name, trained, b.shape, b)
            if not torch.equal(b, t):  # a buffer that stands still keeps its version
                b.copy_(t.detach())

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state to keep, with its own memory. Raises RecipeError for values that a run folder cannot hold."""
        out = {}
        for name, value in state.items():
            if not isinstance(name, str) or not can_be_saved(value):
                raise self.error(
                    f"put {name!r}, a {type(value).__name__}, into its state; give names, and tensors or numbers"
                )
            out[name] = copied(value)
        return out


def refuse_steps(how: Descent) -> None:
    """Raise Unsupported for an update rule that changes gradients, which a training loop takes by itself."""
    mu = how.pull[0] if how.pull is not None else 0.0
    changes = {
        "scales gradients": isinstance(how.scale, Tensor) or how.scale != 1.0,
        "pulls clients towards a point": isinstance(mu, Tensor) or mu != 0.0,
        "shifts gradients": how.shift is not None,
        "trains on a loss of its own": how.loss is not None,
        "corrects gradients": how.correct is not None,
        "trains a part of the parameters": how.train != "both",
        "reads the first step": how.first,
    }
    for change, present in changes.items():
        if present:
            raise Unsupported(
                f"Network(train=...): the method {change}, and a training loop takes its own steps; use a method that "
                "reads only where clients end, such as FedAvg, or leave train= out",
                method="train",
                need="loop",
            )


def hooks_of(module: nn.Module) -> dict[str, int]:
    """The number of hooks of each part of the module, by its name."""
    return {
        name or "the module": sum(len(getattr(part, kind)) for kind in HOOKS) for name, part in module.named_modules()
    }
