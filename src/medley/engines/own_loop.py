"""The engine of a network with a training loop of its own: `Network(module, train=function)`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..contract import Client, Descent, Diverged, LocalUpdate, Pace, RecipeError, Unsupported, Vec
from ..contract.place import name_of
from ..problems.network import NetworkProblem
from ..problems.network.objective import NetworkObjective
from ..problems.network.spec import Train, keeps_state
from ..rows.fields import Inputs, inputs_of
from ..rows.lazy import in_memory
from ..runtime import streams
from ..storage.base import shared_copy
from .minibatches import simulated_time
from .seq import one_by_one
from .set_back import ALL_HOOKS, left_open, set_back
from .torch_optimizer import can_be_saved, copied

log = logging.getLogger("medley")

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
    client: str = ""
    """The client in messages."""
    still: list[str] = field(default_factory=list, compare=False)
    """The first client that the function left as it was, which the log names once."""

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
        phase = f"{me.phase} own loop".lstrip()
        streams.name_globals(problem.device, me.seed, me.id, me.round, phase)
        seed = streams.key(me.seed, me.id, me.round, phase) % 2**31
        state = {k: copied(v) for k, v in (me.optimizer_state or {}).items()}
        more = {"state": state} if keeps_state(self.train) else {}
        mine = replace(self, client=name_of(me.id))
        rows = LoopRows(me, objective)
        mine._call(problem=problem, module=module, rows=rows, pace=me.pace, seed=seed, more=more)
        y = mine._parameters(problem, module)
        mine._take_buffers(problem, module)
        if more:
            me.optimizer_state = mine._checked(state)
        if torch.equal(x, y) and me.steps and me.pace.lr and not self.still:
            self.still.append(mine.client)
            log.warning(
                "%s: %s trained nothing: all parameters are as they were. It must train the module that it gets, not "
                "a copy",
                mine.client,
                self.called,
            )
        passes, rest = divmod(me.steps, len(me.cuts))
        me.problem.work += sum(cut.stop - cut.start for cut in me.cuts * passes + me.cuts[:rest])
        return LocalUpdate(y - x, simulated_time(me.pace, me.steps, 0.0, how), me.steps, self.name)

    @property
    def called(self) -> str:
        """The function's name in messages."""
        return f"Network(train={getattr(self.train, '__name__', type(self.train).__name__)})"

    def error(self, text: str) -> RecipeError:
        """An error that names the client and the function."""
        return RecipeError(f"{self.client}: {self.called}: the function {text}", "train")

    def _call(
        self,
        problem: NetworkProblem,
        module: nn.Module,
        rows: LoopRows,
        pace: Pace,
        seed: int,
        more: Mapping[str, Any],
    ) -> None:
        """Call the function. Raises RecipeError for what it leaves behind; `set_back` then undoes it."""
        frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        numbers = {name: content(p) for name, p in frozen.items()}
        names = set(module.state_dict())
        hooks = hooks_of(module)
        everywhere = sum(map(len, ALL_HOOKS))
        process = os.getpid()
        with set_back():
            try:
                returned = self.train(module, rows, pace, seed, **more)
            except SystemExit as e:
                if isinstance(e.__context__, KeyboardInterrupt):  # so Lightning ends after Ctrl-C
                    raise KeyboardInterrupt from None
                raise RuntimeError(f"{self.called} called sys.exit({e.code!r})") from e
            finally:
                if os.getpid() != process:  # a fork that comes back would run everything a second time
                    os._exit(1)
                thawed = [name for name, p in frozen.items() if p.requires_grad]
                for p in frozen.values():  # clients share them
                    p.requires_grad_(False)
            if returned is not None:
                raise self.error(
                    f"returned a {type(returned).__name__}; train the given module in place, and return nothing"
                )
            why = left_open(problem.device)
            if not why and sum(map(len, ALL_HOOKS)) > everywhere:
                why = "a hook on every optimizer; remove it before the function returns: handle.remove()"
            if why:
                raise self.error(f"left {why}")
        for name, p in frozen.items():
            if content(p) != numbers[name]:
                raise self.error(
                    f"changed the frozen {name} in place; other clients use the same numbers, so work on a copy"
                )
        if thawed:
            raise self.error(
                f"thawed {thawed[0]}, and frozen parameters do not travel; thaw it before you give Network the module"
            )
        place = next((place for place, count in hooks_of(module).items() if count > hooks.get(place, 0)), None)
        if place is not None:
            raise self.error(f"left a hook on {place}; remove it before the function returns: handle.remove()")
        added = [name for name in module.state_dict() if name not in names]
        if added and names <= set(module.state_dict()):
            raise self.error(
                f"added {added[0]} to the module, which would not travel; add it before you give Network the module"
            )

    def _parameters(self, problem: NetworkProblem, module: nn.Module) -> Vec:
        """The trained parameters [d]. Raises RecipeError for one that is gone, or has another shape, dtype or place."""
        by_name = dict(module.named_parameters(remove_duplicate=False))
        trained: dict[int, Tensor] = {}
        for path, index in problem.places:
            t = self._same(path, by_name, problem.shapes[index], problem.flat)
            first = trained.setdefault(index, t)
            if first is not t and not torch.equal(first, t):
                raise self.error(f"trained {path} apart from the part of the module that shares it; keep them tied")
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
                if b.isfinite().all() and not t.isfinite().all():
                    raise Diverged(
                        f"{self.client}: {self.called} left {name} not finite: the run diverges; try a smaller lr"
                    )
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


def content(p: Tensor) -> str:
    """A digest that changes if a parameter does. Its version would not: code may write through ``p.data``."""
    return repr(float(p.detach().sum(dtype=torch.float64)))


def hooks_of(module: nn.Module) -> dict[str, int]:
    """The number of hooks of each part of the module, by its name."""
    return {
        name or "the module": sum(len(getattr(part, kind)) for kind in HOOKS) for name, part in module.named_modules()
    }
