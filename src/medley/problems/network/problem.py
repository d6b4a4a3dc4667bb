"""A network, ready for rows of a known shape."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map

from ...contract import BadData, Data, Need, RecipeError, Vec, Weights
from ...numerics.initial_weights import redrawn
from ...rows.fields import Fields, applied, arguments, inputs_of, outputs_of, tensors
from ...rows.lazy import Lazy
from ...runtime.meter import Meter
from ...storage.modules import OWN
from ..cross_entropy import row_means
from .layers import Layers, traced_layers
from .model import COMPARED, NetworkModel
from .names import trainable
from .objective import NetworkObjective
from .spec import NetworkSpec

log = logging.getLogger("medley")

DRAWING = (_DropoutNd, nn.RNNBase, nn.RReLU, nn.MultiheadAttention, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
"""Torch's layers whose forward pass may draw random numbers in training mode."""

TRIED = (
    "gives",
    "row",
    "kinds",
    "allowed",
    "by_rows",
    "changes_inputs",
    "counting",
    "noisy",
    "head_at",
    "decision",
    "still",
    "numbers",
    "maps",
    "partial",
)
"""What `Network.ready` finds out from rows of the data; processes without rows get it from there."""


def is_binary(loss: object) -> bool:
    """Whether a loss is PyTorch's binary cross-entropy of logits, the function or the module."""
    return loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)


def may_draw(module: nn.Module) -> bool:
    """Whether a forward pass of this module may draw random numbers; True for a user's own class, which may do so."""
    known = type(module).__module__.startswith(("torch.nn.modules.", "medley.models."))
    return not known or isinstance(module, DRAWING)


def depends(out: Tensor, on: Sequence[Tensor]) -> list[bool]:
    """Whether a tensor depends on each of these leaves, as torch's graph says, without a gradient's memory.

    If there is an autograd.Function, which may return no gradient, the gradient says it.
    """
    total = out.sum()
    todo: list[Any] = [total.grad_fn]
    seen = set[object]()
    leaves = set[int]()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return [g is not None for g in torch.autograd.grad(total, on, allow_unused=True)]
        seen.add(node)
        leaves.add(id(getattr(node, "variable", None)))
        todo += [after for after, _ in node.next_functions]
    return [id(t) in leaves for t in on]


def counted(module: nn.Module) -> dict[str, object]:
    """By name, numbers that modules hold as plain attributes, also in lists and dicts; tensors as lists of values.

    For a large tensor, the value is how often it was changed in place.
    """
    out: dict[str, object] = {}
    for path, m in module.named_modules():
        for name, value in vars(m).items():
            leaves = [v for v in tree_leaves(value) if isinstance(v, int | float | Tensor)] if name not in OWN else []
            for k, leaf in enumerate(leaves):
                number: object = leaf
                if isinstance(leaf, Tensor):
                    number = leaf.detach().tolist() if leaf.numel() <= COMPARED else leaf._version
                out[f"{path}.{name}".lstrip(".") + (f" ({k})" if k else "")] = repr(number)
    return out


class NetworkProblem(NetworkModel):
    """The problem contract (`medley.contract.problem.Problem`) of a network.

    Args:
        row: the shape of a row; None before data is known.
        sample: two rows of the data and their labels; None before data is known, and in other processes.
    """

    def __init__(self, family: NetworkSpec, classes: int | None, dtype: torch.dtype, device: str) -> None:
        super().__init__(family, classes, dtype, device)
        noisy = any(map(may_draw, self.module.modules()))
        gives = {Need.HESSIAN: True, Need.NETWORK: True, Need.NOISE: noisy, Need.ADAPTERS: bool(self.adapters)}
        gives[Need.CLASSES] = family.loss == "cross_entropy" and classes is not None
        gives[Need.WEIGHTS] = self.by_rows
        gives[Need.ROWS] = self.by_rows and not (self.mixes_rows and not self.running())
        gives[Need.TARGETS] = gives[Need.ROWS] and not callable(family.loss)
        self.gives = frozenset(k for k, v in gives.items() if v)
        self.row: torch.Size | None = None
        self.kinds: tuple[bool, ...] = ()
        self.sample: tuple[Data, Data] | None = None

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew where it is sent: pickled, the parameters would cease to be views of one vector.
        state = {name: getattr(self, name) for name in TRIED}
        return NetworkProblem, (self.family, self.classes, self.dtype, self.device), state

    def inputs(self, X: Data) -> Data:
        """Floats in the run's dtype; integers (token ids) unchanged, unless the training rows were floats.

        Raises BadData as `check_ids` does, and for floats or bytes where the training rows were of the other kind.
        """
        for floats, (t, name) in zip(self.kinds, tensors(X, ""), strict=False):
            if floats != t.is_floating_point() and (not floats or t.dtype == torch.uint8):
                raise BadData(
                    f"X{name} is {str(t.dtype).removeprefix('torch.')}, but in the training rows it has "
                    f"{'floats' if floats else 'whole numbers, such as token ids'}; give both in one dtype"
                )
        if any(self.kinds) and not X.is_floating_point() and not isinstance(X, Fields):
            X = X.to(self.dtype)  # as `predict` does
        if self.row is not None and X.shape[1:] == self.row:
            self.check_ids(X)
        return X.to(device=self.device, dtype=self._dtype_of(X))

    def _dtype_of(self, X: Data) -> torch.dtype:
        """The dtype in which the module gets these rows: the run's, or theirs if they and the base are of 16 bits."""
        return X.dtype if not X.is_floating_point() or (self.low and X.itemsize < 4) else self.dtype

    def check_ids(self, X: Data) -> None:
        """Raise BadData, with the row, for integers that the network cannot read; for floats only if it has embeddings.

        It tries the rows with the greatest and the least number, which pass if all rows do. For rows up to 64 long it
        tries them for every column, because each column may have an embedding of its own.
        """
        embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in self.module.modules())
        for part, where in tensors(X, ""):
            if (part.is_floating_point() and not embeds) or isinstance(part, Lazy) or not part.numel():
                continue
            flat = part.reshape(len(part), -1)
            ends = [int(part.argmax()) // flat.shape[1], int(part.argmin()) // flat.shape[1]]
            if 1 < flat.shape[1] <= 64:
                ends = sorted({*flat.argmax(0).tolist(), *flat.argmin(0).tolist()})
            for row in ends:
                ids = part[row]
                try:
                    rows = X[row : row + 1]
                    self.outputs(self.flat, rows.to(self.device, self._dtype_of(X)))
                except IndexError as e:
                    raise BadData(
                        f"the network cannot read ids{where} {ids.min():.9g}..{ids.max():.9g} ({e}); give its "
                        "embedding more ids, or check the tokeniser",
                        row=row,
                    ) from e

    def bind(self, X: Data, y: Data, w: Weights = None) -> NetworkObjective:
        """f_i on these rows, with weights ``w`` [n], by default 1 each."""
        return NetworkObjective(self, X, y, Meter(), w=w)

    def initial(self, generator: torch.Generator) -> Vec:
        """x₀ [d]: unless ``start="module"``, by the layers' own ``reset_parameters`` under this generator's seed.

        Parameters that no layer resets stay as the module has them. On every device it draws from torch's CPU stream,
        and afterwards it restores the global stream.
        """
        if self.family.start != "module":
            log.info(
                "x₀ is drawn by the layers' reset_parameters, for every seed; Network(start='module') keeps weights"
            )
            fresh = redrawn(self.family.module, generator.initial_seed(), in_place=self.module is self.family.module)
            params, _ = trainable(fresh, self.family.shared)
            for mine, drawn in zip(self.split(self.flat), params, strict=True):
                mine.copy_(drawn.detach())
            del fresh, params
        return self.flat.clone()

    def draws_random_numbers(self, X: Data, training: bool = True) -> bool:
        """Whether the forward pass of these rows in training mode, or in evaluation mode, draws random numbers.

        The trial runs with forked global streams and copied buffers, so both stay as they are. True if the pass fails.
        """
        cuda = [torch.device(self.device)] if self.device.startswith("cuda") else []
        buffers = {name: b.clone() for name, b in self.module.named_buffers()}
        self.mode(training)
        with self.forked(), torch.no_grad():
            before = [torch.default_generator.get_state(), *map(torch.cuda.get_rng_state, cuda)]
            try:
                rows = self.protected(inputs_of(X))
                functional_call(self.module, buffers, *arguments(self.module, rows), tie_weights=False)
            except Exception:  # BatchNorm fails with one row; it is not known then
                return True
            after = [torch.default_generator.get_state(), *map(torch.cuda.get_rng_state, cuda)]
            return not all(map(torch.equal, before, after))

    def note_layers(self, X: Data) -> Layers:
        """The layers that run last in the forward pass of these rows, noted in ``head_at`` and ``gives``.

        Logs the run's dtype if the module has another one.
        """
        for kind in {t.dtype for t in self.family.module.parameters() if t.requires_grad} - {self.dtype}:
            name, dtype = (str(t).removeprefix("torch.") for t in (kind, self.dtype))
            keep = f"pass run(dtype={name!r})" if kind == torch.float64 else f"convert it, result.model.to({kind})"
            log.info(
                "Network: the module is %s, but trains and comes back in %s; to keep %s, %s", name, dtype, name, keep
            )
        self.mode(False)
        with self.forked():
            rows = self.protected(inputs_of(X))
            layers = traced_layers(self.module, rows, lambda: applied(self.module, rows))
        self.head_at = layers.head
        if layers.head is not None:
            self.gives |= {Need.FEATURES} if layers.raw else {Need.FEATURES, Need.BODY}
        return layers

    def left_behind(self, X: Data) -> str | None:
        """A trained parameter on which these rows' outputs depend in the user's module, but not in this copy.

        A function that was made with the module, such as a lambda over `self`, uses the first module's parameters in
        every copy. Sets ``partial`` if the outputs do not depend on every parameter.
        """
        parts = [v.detach().requires_grad_() for v in self.split(self.flat)]
        copied = self._reached(self.module, {path: parts[i] for path, i in self.places}, X)
        self.partial = not all(copied.values())
        if not self.partial:
            return None
        original: dict[str, bool] = {}
        with contextlib.suppress(Exception):
            original = self._reached(self.family.module, dict(self.family.module.named_parameters()), X)
        return next((name for name, reached in copied.items() if not reached and original.get(name)), None)

    def _reached(self, module: nn.Module, params: Mapping[str, Tensor], X: Data) -> dict[str, bool]:
        """Whether the outputs of these rows depend on each trained parameter, by name; in evaluation mode."""
        like = next(iter(params.values()))
        modes = [(m, m.training) for m in module.modules()]
        rows = tree_map(lambda t: t.to(like.device, like.dtype if t.dtype == self.dtype else t.dtype), inputs_of(X))
        args, named = arguments(module, tree_map(torch.clone, rows))
        trained = {name: p for name, p in params.items() if p.requires_grad}
        state = {**params, **{name: b.clone() for name, b in module.named_buffers()}}
        with self.forked(), torch.enable_grad():
            out = outputs_of(functional_call(module.eval(), state, args, named, tie_weights=False))
            reached = depends(out, [*trained.values()])
        for m, training in modes:
            m.training = training
        return dict(zip(trained, reached, strict=True))

    def works_in_place(self, X: Data) -> tuple[bool, frozenset[str]]:
        """Whether a forward pass of these rows, in training or evaluation mode, changes them, and the still buffers.

        The trial runs on a copy, as in `draws_random_numbers`. If a pass fails, the changes until then count, and every
        buffer counts as changing.
        """
        # A client with one row finds what the others find: batch normalisation wants two.
        rows = X[torch.zeros(2, dtype=torch.int64, device=X.device)] if len(X) == 1 else X.clone()
        parts = [part for part, _ in tensors(rows, "")]
        before = [part._version for part in parts]
        moving = set[str]()
        buffers = dict[str, Tensor]()
        with torch.random.fork_rng([torch.device(self.device)] if self.device.startswith("cuda") else []):
            for training in (False, True):
                self.mode(training)
                buffers = {name: b.clone() for name, b in self.module.named_buffers()}
                copies = {n: (b, b.clone()) for n, b in buffers.items()}
                moved = {*buffers}
                with torch.no_grad(), contextlib.suppress(Exception):
                    functional_call(self.module, buffers, *arguments(self.module, inputs_of(rows)), tie_weights=False)
                    # Batch normalisation changes its statistics without a new version.
                    moved = {
                        n
                        for n, (b, was) in copies.items()
                        if buffers[n] is not b or b._version or not torch.equal(b.nan_to_num(), was.nan_to_num())
                    }
                moving |= {n.rpartition(".")[0] for n in moved}  # of a layer all: one may be as it was by chance
        still = frozenset(n for n in buffers if n.rpartition(".")[0] not in moving)
        return before != [part._version for part in parts], still

    def restricted(self, allowed: Bool[Tensor, "c c"] | None) -> NetworkProblem:
        """The same network, with a row of label y compared with classes ``allowed[y]`` only; None for all.

        The module is shared with this problem. Raises RecipeError unless the loss is cross-entropy, with a known number
        of classes.
        """
        if allowed is not None and Need.CLASSES not in self.gives:
            raise RecipeError("a stream of classes needs Network(loss='cross_entropy') and labels in classes", "stream")
        out = NetworkProblem.__new__(NetworkProblem)  # not copy.copy, which makes another module by __reduce__
        vars(out).update(vars(self), allowed=allowed)
        return out

    def hits(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"] | None:
        """1 for each row whose output gives its label, see `decision`, else 0; None if there are no classes.

        For sequences and maps it is the share of a row's targets that are right, without ignored ones; likewise for
        `binary_cross_entropy_with_logits`. A user's own loss has classes if labels are integers [n].
        """
        at = self.decision
        if is_binary(self.family.loss) and isinstance(at, float):
            return ((outputs > at) == (y > 0.5)).to(outputs.dtype).reshape(len(y), -1).mean(1)
        if self.classes is None or at is None:
            return None
        if self.family.loss == "cross_entropy" and y.ndim > 1:
            present = y != self.family.ignore_index
            right = (self.compared(outputs, y).argmax(1) == y) & present
            return row_means(right.to(outputs.dtype), present)
        if y.is_floating_point() or y.ndim != 1:
            return None
        if at != "argmax":
            return ((outputs.reshape(-1) > at) == y).to(outputs.dtype)
        if outputs.ndim != 2 or outputs.shape[1] < self.classes:
            return None
        return (self.compared(outputs, y).argmax(1) == y).to(outputs.dtype)

    def penalty(self, x: Vec) -> float:
        """0, because weight decay belongs to the pace."""
        return 0.0
