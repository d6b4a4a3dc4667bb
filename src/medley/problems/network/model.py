"""A module whose parameters are one flat vector: loading, forward passes, losses, buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast
from weakref import WeakSet

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from ...contract import Data, Decision, Readout, RecipeError, State, Vec, Weights
from ...rows.fields import Inputs, applied, arguments, inputs_of, outputs_of
from ...runtime import tricks
from ...storage.base import BASE, STILL, is_low, placed
from ..cross_entropy import cross_entropies, padded_cross_entropies
from .adapters import adapters
from .names import trainable
from .own_loss import evaluated
from .spec import NetworkSpec

COMPARED = 1 << 16
"""Still buffers with at most this many numbers are compared by value, larger ones by torch's count of changes."""

EVALUATION = 0
"""The seed of random draws in evaluation mode."""

FRESH = WeakSet[nn.Module]()
"""Modules that Medley's own functions have made for one problem, which trains them and not a copy, and draws them anew
in place. A user's function may return one that it keeps."""


class NetworkModel:
    """A copy of the module in the run's dtype and on its device, or the module. All clients share it, one at a time.

    Args:
        family: the module as the user gave it, its loss and start.
        shared_count: the number of parameter tensors that clients share; they come first in ``flat``.
        in_order: whether ``flat`` has the parameters in the order of the module.
        flat: the parameters [d], of which the module's are views.
        gradient: the gradient [d] of the last backward pass, of which the parameters' ``.grad`` are views.
        places: (path, index) for every place in the module that holds a parameter: its name, and its index in
            ``shapes``. A parameter that several modules share has several places; a module with several names has one.
        adapters: its low-rank adapters, see `medley.problems.network.adapters`.
        head_at: the path of the nn.Linear that runs last, see `medley.problems.network.layers.Layers`; None if there is
            none, and until `Network.ready` has seen a forward pass.
        floats, ints: the module's buffers by dtype, without the ones that stand still.
        numbers: how many numbers a row's outputs have; 1 before data is known.
        maps: False once vmap has failed on the module; row gradients are then computed one by one.
        low: whether frozen parameters of 16 bits keep their dtype; outputs are then converted to the run's dtype.
        mixes_rows: whether a row's outputs depend on its batch in training: under BatchNorm. Medley assumes that your
            own layers do not mix rows.
        by_rows: whether the loss of each row is known. It is not if the user's own loss returns only a mean, or couples
            rows.
        decision: how outputs give a class: "argmax", except for a user's own loss; None for "mse".
        factors: the factor of the loss for each class [c]; None for 1 each.
        changes_inputs: whether the module changes its inputs in place, and so gets copies. True until
            `NetworkProblem.works_in_place` has seen that it does not.
        counting: whether a pass changes numbers of the module that are not buffers.
        reached: indices of the parameters that backward passes reached since it was emptied, if ``partial``.
        noisy: whether outputs in evaluation mode depend on random draws, as a VAE's may.
        allowed: row y marks the classes with which a row of label y is compared; None for all.
    """

    def __init__(self, family: NetworkSpec, classes: int | None, dtype: torch.dtype, device: str) -> None:
        self.family = family
        self.classes = classes
        self.dtype = dtype
        self.device = device
        _refuse_complex(family.module)
        self.low = is_low(family.module, dtype)
        self.module, flat = _copied(family, dtype, device)
        vars(self.module)[BASE] = family.base
        params, self.shared_count = trainable(self.module, family.shared)
        index = {p: i for i, p in enumerate(params)}
        self.places: list[tuple[str, int]] = []
        for path, m in self.module.named_modules():
            trained = {name: p for name, p in m._parameters.items() if p is not None and p.requires_grad}
            self.places += [(f"{path}.{name}".lstrip("."), index[p]) for name, p in trained.items()]
        self.in_order = all(p is q for p, q in zip(params, trainable(self.module, None)[0], strict=True))
        self.shapes = [p.shape for p in params]
        self.sizes = [p.numel() for p in params]
        self.d = sum(self.sizes)
        at = 0
        for p in params:  # whether the copy has them where they belong, as it has of torch's own classes
            fits = flat.numel() >= at + p.numel() and p.data_ptr() == flat[at:].data_ptr() and p.is_contiguous()
            at = at + p.numel() if fits else flat.numel() + 1
        if at != flat.numel():
            flat = torch.cat([p.detach().reshape(-1) for p in params])
        self._in_place_of(params, flat)
        self.adapters = adapters(self.module)
        self.head_at: str | None = None
        self.still = frozenset()
        self.changes_inputs = True
        self.allowed: Bool[Tensor, "c c"] | None = None
        self.noisy = False
        self.counting = False
        self.numbers = 1
        self.maps = True
        self.reached = set[int]()
        self.partial = False
        self.mixes_rows = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules())
        self.by_rows = not callable(family.loss)
        self.decision: Decision = None if family.loss == "mse" else "argmax"
        weights = family.class_weights
        self.factors = None if weights is None else torch.tensor(weights, dtype=dtype, device=device)
        self.module.train()

    def _in_place_of(self, params: Sequence[nn.Parameter], flat: Tensor) -> None:
        """Make the module's parameters views of ``flat`` [d], and their gradients views of zeros."""
        self.flat = flat
        self.gradient = tricks.untouched_zeros(flat)
        for p, w, g in zip(params, self.split(self.flat), self.split(self.gradient), strict=True):
            p.data = w
            p.grad = g

    def vacate(self) -> None:
        """Give the memory of a large model's parameters and gradient back: both are zeros until they are written."""
        if tricks.ON and self.flat.nbytes >= tricks.LARGE and self.flat.is_cpu:
            self._in_place_of(trainable(self.module, self.family.shared)[0], tricks.untouched_zeros(self.flat))

    @property
    def still(self) -> frozenset[str]:
        """Names of the buffers that training does not change, such as position ids: they do not travel."""
        return self._still

    @still.setter
    def still(self, names: Collection[str]) -> None:
        self._still = vars(self.module)[STILL] = frozenset(names)
        named = [*self.module.named_buffers()]
        self._stood = {n: (b, b._version, b.clone() if b.numel() <= COMPARED else None) for n, b in named if n in names}
        moving = [b for name, b in named if name not in self._still]
        owners = ((self.module.get_submodule(n.rpartition(".")[0]), n, b) for n, b in named if n not in names)
        self._moving = [(m._buffers, n, b) for m, n, b in owners]
        self.floats = [b for b in moving if b.is_floating_point()]
        self.ints = [b for b in moving if not b.is_floating_point()]

    @property
    def partial(self) -> bool:
        """Whether a backward pass may leave some parameters without a gradient, as heads of other tasks."""
        return self._partial

    @partial.setter
    def partial(self, value: bool) -> None:
        self._partial = value
        for i, p in enumerate(trainable(self.module, self.family.shared)[0] if value else []):
            p.register_post_accumulate_grad_hook(lambda _, i=i: self.reached.add(i))  # type: ignore[no-untyped-call]

    @property
    def idle(self) -> Bool[Tensor, " d"] | None:
        """Coordinates that the last gradient did not reach, whose ``.grad`` torch leaves None; None if not known."""
        if not self.partial:
            return None
        parts = [torch.full((n,), i not in self.reached) for i, n in enumerate(self.sizes)]
        return torch.cat(parts).to(self.flat.device)

    @property
    def head(self) -> nn.Linear | None:
        """The nn.Linear that runs last; None if there is none."""
        return None if self.head_at is None else cast(nn.Linear, self.module.get_submodule(self.head_at))

    def last(self) -> tuple[int, int | None] | None:
        """Positions in ``flat`` of the head's weights and biases; None unless these tensors are trained directly."""
        parameters = {} if self.head is None else self.head._parameters
        weight = parameters.get("weight")
        bias = parameters.get("bias")
        if weight is None or not all(p.requires_grad for p in parameters.values() if p is not None):
            return None
        # Parameters are views of the flat vector.
        return int(weight.storage_offset()), None if bias is None else int(bias.storage_offset())

    @property
    def readout(self) -> Readout | None:
        """Where x has the last linear layer; None unless it is trained."""
        at = self.last()
        return None if at is None else Readout(*at)

    def split(self, x: Shaped[Tensor, " d"]) -> list[Tensor]:
        """Views of x in the parameters' shapes."""
        return [v.view(s) for v, s in zip(torch.split(x, self.sizes), self.shapes, strict=True)]

    def load(self, x: Vec) -> None:
        """Make x the module's parameters."""
        if x.data_ptr() != self.flat.data_ptr():
            self.flat.copy_(x)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set parameters and buffers to those of a state dict.

        Raises RecipeError, naming the tensor, if one is missing, unknown or of another shape; or if one is frozen, or a
        buffer that stands still, and differs from the module's, because clients in other processes have the module's.
        """
        expected = self.module.state_dict(keep_vars=True)
        call = "run(init=...)"
        remedy = "the weights are of another network, or of a part of one: load them into the module yourself"
        prefix = _prefix(state, expected)
        if prefix:
            remedy = (
                f"its names begin with {prefix!r}: give {{k.removeprefix({prefix!r}): t for k, t in state.items()}}"
            )
        for names, verb in ((expected.keys() - state.keys(), "lacks"), (state.keys() - expected.keys(), "has")):
            if names:
                raise RecipeError(f"{call}: the state_dict {verb} {min(names)!r}; {remedy}", "init")
        for name, t in expected.items():
            new = state[name].to(t)
            fixed = name in self._still or (isinstance(t, nn.Parameter) and not t.requires_grad)
            if new.shape != t.shape:
                raise RecipeError(
                    f"{call}: {name} is {list(new.shape)}, the module's {list(t.shape)}; {remedy}", "init"
                )
            if fixed and not torch.equal(new.nan_to_num(), t.nan_to_num()):
                kind = "frozen" if isinstance(t, nn.Parameter) else "not trained"
                raise RecipeError(
                    f"{call}: {name} is {kind}, and the module has other numbers there; load it into the module", "init"
                )
            if not fixed:
                with torch.no_grad():
                    t.copy_(new)

    def mode(self, training: bool) -> None:
        """Put the module into training or evaluation mode."""
        if training != self.module.training:
            self.module.train(training)

    def running(self) -> bool:
        """Whether every BatchNorm keeps running statistics."""
        norms = [m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        return all(m.running_mean is not None for m in norms)

    @contextlib.contextmanager
    def running_statistics(self) -> Iterator[None]:
        """A context in which BatchNorm uses its running statistics while everything else is in training mode."""
        norms = [m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
        for m in norms:
            m.eval()
        try:
            yield
        finally:
            for m in norms:
                m.train()

    def outputs(self, x: Vec, X: Data) -> Tensor:
        """The network's outputs in evaluation mode, without a graph. Random draws are the same at every call."""
        self.load(x)
        self.mode(False)
        with torch.no_grad(), self.forked() if self.noisy else contextlib.nullcontext():
            if self.noisy:
                (torch.default_generator.manual_seed if self.device == "cpu" else torch.manual_seed)(EVALUATION)
            return self.apply(X)

    def forked(self) -> contextlib.AbstractContextManager[None]:
        """A context that restores torch's global random streams at its end."""
        cuda = [torch.device(self.device)] if self.device.startswith("cuda") else []
        return cast("contextlib.AbstractContextManager[None]", torch.random.fork_rng(cuda))

    def apply(self, X: Data) -> Tensor:
        """The network's outputs for these rows, in its current mode and with its current parameters."""
        return self._wide(applied(self.module, self.protected(inputs_of(X))))

    def _wide(self, out: Tensor) -> Tensor:
        return out.to(self.dtype) if self.low and isinstance(out, Tensor) and out.is_floating_point() else out

    def protected(self, X: Inputs) -> Inputs:
        """The inputs of one forward pass: copies, if the module would change the rows in place."""
        return tree_map(torch.clone, X) if self.changes_inputs else X

    def call(self, x: Vec, X: Inputs) -> Tensor:
        """The network's outputs in its current mode, differentiable with respect to x."""
        parts = self.split(x)
        params = {path: parts[i] for path, i in self.places}
        # Tied by torch, a module at two paths would be left with what it was given.
        args, named = arguments(self.module, self.protected(X))
        return self._wide(outputs_of(functional_call(self.module, params, args, named, tie_weights=False)))

    def compared(self, outputs: Tensor, y: Data) -> Tensor:
        """Outputs, with −∞ for the classes with which a row's label is not compared.

        If there are such masks, outputs beyond the number of classes are cut off.
        """
        if self.allowed is None:
            return outputs
        return outputs[:, : len(self.allowed)].masked_fill(~self.allowed[y], -torch.inf)

    def mean_loss(self, outputs: Tensor, y: Data, w: Weights = None) -> Tensor:
        """The mean loss of a batch, a 0-d tensor; (1/b) Σ_j w_j l_j if rows have weights w [b]."""
        if callable(self.family.loss) and w is None:
            loss = evaluated(self.family.loss, outputs, y)
            return loss if loss.ndim == 0 else loss.mean()
        if w is not None or self.factors is not None or (y.ndim > 1 and self.family.loss == "cross_entropy"):
            rows = self.losses(outputs, y)
            assert rows is not None, "a run refuses weights of rows where the loss is a mean"
            return (rows if w is None else rows * w).mean()
        if self.family.loss == "mse":
            return F.mse_loss(outputs, y)
        return F.cross_entropy(self.compared(outputs, y), y)

    def losses(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"] | None:
        """Loss of each row [n]; None if the user's loss returns only a mean."""
        if callable(self.family.loss):
            losses = evaluated(self.family.loss, outputs, y) if self.by_rows else None
            return None if losses is None else losses.reshape(len(y), -1).mean(1)
        if self.family.loss == "cross_entropy" and (y.ndim > 1 or self.factors is not None):
            return padded_cross_entropies(self.compared(outputs, y), y, self.family.ignore_index, self.factors)
        if self.family.loss == "cross_entropy":
            return cross_entropies(self.compared(outputs, y), y)
        return F.mse_loss(outputs, y, reduction="none").reshape(len(y), -1).mean(1)

    def _check_still(self) -> None:
        """Raise RecipeError, naming it, for a buffer that stood still when the network was tried and has changed since.

        Changes of large buffers are seen only if torch counts them.
        """
        buffers = dict(self.module.named_buffers()) if self._stood else {}
        for name, (b, version, was) in self._stood.items():
            current = buffers.get(name)
            if was is None:
                same = current is b and b._version == version
            else:
                same = current is not None and torch.equal(current.nan_to_num(), was.nan_to_num())
            if not same:
                raise RecipeError(
                    f"Network(module): the buffer {name} did not change in a pass of two rows, so clients do "
                    "not send it to the server, but it has changed since; write to it in every pass in "
                    f"training mode, for example self.{name.rpartition('.')[2]}.add_(0), and clients send it",
                    "module",
                )

    def settle(self) -> None:
        """Copy buffers that a pass assigned anew, as `self.mean = ...` does, back into their original tensors.

        The new tensor may be a view of a parameter or of the rows, which the next client's numbers must not overwrite.
        If a buffer has another shape, raises RecipeError with its name.
        """
        for owned, name, b in self._moving:
            current = owned.get(name.rpartition(".")[2])
            if current is b:
                continue
            if current is None or current.shape != b.shape:
                after = "gone" if current is None else str(list(current.shape))
                raise RecipeError(
                    f"Network(module): the buffer {name} was {list(b.shape)} and is {after} after a pass: what clients "
                    "send to the server must keep its shape; register it in its full size, and fill it",
                    "module",
                )
            b.copy_(current.detach().clone())
            owned[name.rpartition(".")[2]] = b

    def buffers(self) -> State | None:
        """Copies of the buffers' values, floats and integers separately; None if there are none to send.

        Raises RecipeError if a buffer that is not sent has changed, and as `settle` does.
        """
        self._check_still()
        self.settle()
        if not self.floats and not self.ints:
            return None
        floats = [b.detach().reshape(-1).to(self.dtype) for b in self.floats]
        ints = [b.detach().reshape(-1).to(torch.int64) for b in self.ints]
        empty = torch.zeros(0, device=self.device)
        return torch.cat([*floats, empty.to(self.dtype)]), torch.cat([*ints, empty.long()])

    def load_buffers(self, state: State) -> None:
        """Set the buffers to these values."""
        self.settle()
        for buffers, flat in ((self.floats, state[0]), (self.ints, state[1])):
            for b, v in zip(buffers, torch.split(flat, [b.numel() for b in buffers]), strict=True):
                b.copy_(v.view(b.shape))


def _copied(family: NetworkSpec, dtype: torch.dtype, device: str) -> tuple[nn.Module, Tensor]:
    """A copy of the module, and a vector [d] whose views are its parameters, unless it copies itself otherwise.

    A module in `FRESH` that is already in this dtype and on this device is not copied.
    """
    params, _ = trainable(family.module, family.shared)
    flat = torch.empty(sum(p.numel() for p in params), dtype=dtype, device=device)
    parts = torch.split(flat, [p.numel() for p in params])
    views = {p: v.view(p.shape) for p, v in zip(params, parts, strict=True) if type(p) is nn.Parameter}
    floats = (t for t in (*family.module.parameters(), *family.module.buffers()) if t.is_floating_point())
    stays = len(views) == len(params) and all((t.dtype, str(t.device)) == (dtype, device) for t in floats)
    if family.module in FRESH and stays:
        for p, v in views.items():
            tricks.move(p.data, v)
            p.data = v
        return family.module, flat
    copies = {id(p): nn.Parameter(v.copy_(p.detach())) for p, v in views.items()}
    return placed(family.module, dtype, device, copies), flat


def _refuse_complex(module: nn.Module) -> None:
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, t in tensors:
            if t.is_complex():
                raise RecipeError(
                    f"Network(module): the {kind} {name} is complex, and a model is a vector of real numbers: hold its "
                    "real and imaginary parts, and join them by torch.complex in forward()",
                    "module",
                )


def _prefix(names: Collection[str], expected: Collection[str]) -> str:
    """The prefix that a wrapper, such as DataParallel, put before each of the names ``expected``; empty if none."""
    name = min(expected)
    prefixes = (k.removesuffix(name) for k in names if k.endswith(f".{name}"))
    return next((p for p in prefixes if {p + n for n in expected} <= {*names}), "")
