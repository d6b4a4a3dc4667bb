"""A network as a user writes it."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...contract import BadData, Data, Need, Problem, RecipeError
from ...numerics.initial_weights import redrawn
from ...rows.fields import Fields, described, tensors
from ...rows.lazy import in_memory
from ...rows.sparse import Sparse
from ...storage.base import frozen
from ...storage.modules import is_trained
from ..cross_entropy import binary_targets, class_labels
from ..labels import is_one_hot
from . import probes
from .model import FRESH
from .names import BODY, patterns, trainable, without_last
from .own_loss import DRAWS, called, check_loss, check_mean, check_pairs, refuse_class_numbers, refuse_other, unsuited
from .problem import TRIED, NetworkProblem, counted, is_binary
from .shared import SharedNetwork
from .spec import NetworkSpec, keeps_state

log = logging.getLogger("medley")

SOME = 8
"""The number of rows on which a user's own loss is tried, spread over the data."""


def _check_shapes(module: nn.Module) -> None:
    """Raises RecipeError for parameters without a shape, of lazy modules, and without values, on the device "meta"."""
    for name, p in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(p) or p.is_meta:
            lazy = "of a lazy module, has no shape yet; send a batch through the module first"
            meta = "on the device 'meta', has no values; call module.to_empty(device='cpu'), and the seed draws them"
            raise RecipeError(f"Network(module): {name!r}, {lazy if is_lazy(p) else meta}", "module")


def _check_kind(module: nn.Module) -> None:
    """Raises RecipeError for modules that cannot be copied or called with other parameters; warns of batch norm."""
    for name, m in module.named_modules():
        where = f"Network(module): {name or 'the module'!r}"
        if isinstance(m, torch.jit.ScriptModule):
            raise RecipeError(
                f"{where} is compiled by TorchScript; give the Python module that it was made of", "module"
            )
        if isinstance(m, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise RecipeError(f"{where} is a {type(m).__name__}; give the module inside, model.module", "module")
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and not m.track_running_stats:
            log.warning(
                "%s keeps no running statistics, so outputs of a row depend on the rows evaluated with it; use "
                "track_running_stats=True, or GroupNorm",
                where,
            )
        derived = next((k for k, v in vars(m).items() if isinstance(v, Tensor) and not v.is_leaf), None)
        if derived:
            raise RecipeError(
                f"{where} holds the tensor {derived!r}, computed from parameters, which cannot be copied. If it is "
                "from weight_norm, spectral_norm or prune, use torch.nn.utils.parametrizations, or prune.remove first",
                "module",
            )


def _module(wrong: object) -> str:
    """A clause on how to get a module from something else."""
    if isinstance(wrong, str):
        return "; networks that have names are in models, such as md.models.mlp(64, 10)"
    if isinstance(wrong, type):
        return f"; this is a class, so {wrong.__name__}(...)"
    return "; this is a function, so what it returns" if callable(wrong) else ""


def _takes(module: nn.Module, X: Data) -> str:
    """A clause about the arguments of the module's `forward`, if rows have several inputs."""
    return f"; its forward takes {inspect.signature(module.forward)}" if isinstance(X, Fields) else ""


def _first(module: nn.Module, X: Data) -> str:
    """A clause about the first layer, if it is linear and takes another number of columns than flat rows have."""
    layer = next((m for m in module.modules() if not [*m.children()]), None)
    if not isinstance(layer, nn.Linear) or X.ndim != 2 or layer.in_features == X.shape[1]:
        return ""
    return f"; its first layer takes {layer.in_features} columns: give nn.Linear({X.shape[1]}, ...)"


def _one_tensor(out: object) -> Tensor:
    """The outputs. If they are a dict, a tuple or another object, raises RecipeError, which says how to change that."""
    if isinstance(out, Tensor):
        return out
    part = f"[{next(iter(out))!r}]" if isinstance(out, Mapping) and out else "[0]"
    raise RecipeError(
        f"Network(module): the module returns a {type(out).__name__}, and outputs must be one tensor; wrap it in a "
        f"module whose forward returns that, such as self.module(X){part}",
        "module",
    )


@dataclass(frozen=True, eq=False)
class Network(NetworkSpec):
    """Any nn.Module, trained on a loss of its outputs.

    Attributes:
        module: the network; a copy of it is trained.
        loss: "cross_entropy" (integer labels [n], or [n, ...] with outputs [n, classes, ...] for sequences and maps),
            "mse" (targets in the outputs' shape), or a function (outputs, y) -> the 0-d mean loss of the batch, or the
            loss of each row. If rows have weights, it must return the loss of each row.
        start: "draw", the default, draws x₀ anew for every seed by the layers' own ``reset_parameters``; "module"
            begins at the weights that the module has. If the module, or a part of it, comes from a run, you must
            choose. If you don't choose and its layers hold weights that they do not draw, Medley logs a warning.
        class_weights: a factor of cross-entropy for each class; default 1 each. The mean divides by the number of rows;
            torch's divides by the sum of the factors.
        ignore_index: the label in sequences and maps that has no loss, such as padding; default −100, as in torch. A
            row's loss and its accuracy are means over its other labels. Medley refuses other values if rows have one
            label each, and with a loss of your own.
        transform: a function (rows [b, ...], generator) -> rows, applied to training batches only, such as
            `medley.datasets.augment.crop`. The generator is a named stream of the client and the round.
        shared: names of the parameters that clients share, a pattern such as "backbone.*" or a list of them; "!head.*"
            takes names away. "body" is all layers except the one that runs last, "all but norms" all except
            normalisation layers. Each client has the other parameters, and the buffers of their modules, to itself:
            they are not sent, and communication counts leave them out. None shares all
        base: the name of the module's frozen part, such as the name of the weights it was read from. Folders of runs
            then refer to it by this name and a digest, and hold only the trained part; `Result.load` needs ``module=``.
            Default None: folders hold the frozen part, except for peft models, whose configuration names their base.
        train: a training loop of your own, a function (module, rows, pace, seed) that trains the module in place on one
            client's rows; the client sends how far the parameters moved. See the page "Bring your own loop". Methods
            that change clients' gradients refuse it before round 1. Default None: Medley's own steps.

    Frozen parameters of 16 bits or of integers keep their dtype if all trained parameters are float32; clients, workers
    and results share one copy of them. If the module returns an object, as Hugging Face's models do, its ``logits`` are
    the outputs.

    Modules that are not torch's own are tried once, on two rows, in training mode: if they draw random numbers, each
    client draws its own, from a named stream. Medley also tries, on copies of two rows, whether the module changes its
    inputs in place; if it does, it always gets copies.

    Raises RecipeError if the module has no trainable parameters, if loss or start has another value, and if a result's
    module comes without start.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise RecipeError(
                f"Network(module={self.module!r}): give a torch.nn.Module{_module(self.module)}", "module"
            )
        _check_kind(self.module)
        _check_shapes(self.module)
        if not any(p.requires_grad for p in self.module.parameters()):
            raise RecipeError("Network(module): the module has no trainable parameters", "module")
        refuse_other(self.loss)
        if self.class_weights is not None:
            try:
                weights = [float(w) for w in self.class_weights]
            except (TypeError, ValueError, RuntimeError):
                weights = [math.nan]
            ordered = not isinstance(self.class_weights, Mapping | Set | str | bytes)
            fit = ordered and all(0 <= w < math.inf for w in weights) and any(weights)
            if self.loss != "cross_entropy" or not fit:
                raise RecipeError(
                    "Network(class_weights=...): want a list, in the order of the classes, of a "
                    "finite number from 0 for each, not all 0, and loss='cross_entropy'",
                    "class_weights",
                )
            object.__setattr__(self, "class_weights", tuple(weights))
        super().__post_init__()
        if self.ignore_index != -100 and self.loss != "cross_entropy":
            raise RecipeError(
                f"Network(ignore_index={self.ignore_index}) needs loss='cross_entropy'; a loss of your own takes it "
                "itself, as in nn.CrossEntropyLoss(ignore_index=...)",
                "ignore_index",
            )
        object.__setattr__(self, "ignore_index", int(self.ignore_index))
        self._check_train()
        if self.shared is not None:
            shared: object = self.shared
            if not isinstance(shared, Collection) or not shared or not all(isinstance(name, str) for name in shared):
                raise RecipeError(f"Network(shared={self.shared!r}): give a name, a pattern, or a list", "shared")
            object.__setattr__(self, "shared", self.shared if isinstance(self.shared, str) else tuple(self.shared))
            trainable(self.module, tuple(name for name in patterns(self.shared) if name != BODY) or None)
        self._check_start()

    def _check_train(self) -> None:
        """Raise RecipeError for a training loop that cannot be called with a module, rows, a pace and a seed."""
        if self.train is None:
            return
        if not callable(self.train) or isinstance(self.train, nn.Module | type):
            raise RecipeError(
                f"Network(train={self.train!r}): give a function (module, rows, pace, seed) that trains the module in "
                "place",
                "train",
            )
        try:
            more: dict[str, Any] = {"state": {}} if keeps_state(self.train) else {}
            inspect.signature(self.train).bind(self.module, None, None, 0, **more)
        except TypeError as e:
            raise RecipeError(
                f"Network(train=...): the function is called with (module, rows, pace, seed): {e}", "train"
            ) from None
        if self.class_weights is not None:
            raise RecipeError(
                "Network(class_weights=..., train=...): a loop of your own has its own loss; weigh classes there, and "
                "leave class_weights= out",
                "class_weights",
            )
        if self.transform is not None:
            raise RecipeError(
                "Network(transform=..., train=...): a loop of your own makes its batches; transform them there, and "
                "leave transform= out",
                "transform",
            )

    def _check_start(self) -> None:
        """Raise RecipeError if no start is given, and a draw would replace weights of a run or of peft."""
        if self.start is None:
            if hasattr(self.module, "peft_config"):
                raise RecipeError(
                    "Network(module): say how peft's adapters start. start='module' keeps them, so that they add "
                    "nothing at first; start='draw' draws new ones for every seed",
                    "start",
                )
            if is_trained(self.module):
                raise RecipeError(
                    "Network(module): the module comes from a run; say how this one starts. start='module' begins at "
                    "its weights; start='draw' draws new ones for every seed",
                    "start",
                )

    def ready(self, X: Data, y: Data, classes: int | None, dtype: torch.dtype | None, device: str) -> Problem:
        """The problem for rows of this shape.

        Args:
            X: inputs [n, ...]; floats, or integers that the network embeds.
            dtype: the run's dtype; None for float32.

        Raises BadData if the network cannot read such rows or its outputs do not fit the labels, and RecipeError if the
        outputs are not one tensor.
        """
        if isinstance(X, Sparse):
            raise BadData("a network's rows are dense; give X.toarray(), or use Logistic, Softmax or LeastSquares")
        body = self.shared is not None and BODY in patterns(self.shared)
        p = NetworkProblem(replace(self, shared=None) if body else self, classes, dtype or torch.float32, device)
        p.row = X.shape[1:]
        p.kinds = tuple(t.is_floating_point() for t, _ in tensors(X, ""))
        rows, out = self._read(p, X)
        self._check_outputs(out, y, classes)
        if self.loss == "mse" and out.shape[1:] != y.shape[1:]:
            narrow = list(out.shape[1:]) == [1] and y.ndim == 1
            raise BadData(
                f"the network's outputs are {list(out.shape[1:])} a row and the targets {list(y.shape[1:])}, so torch "
                "would compare each output with the targets of all rows; "
                f"{'end the network with nn.Flatten(0), or return outputs.squeeze(1)' if narrow else 'reshape y'}"
            )
        p.noisy = p.noisy and p.draws_random_numbers(rows, training=False)
        if p.noisy:
            log.warning(DRAWS)
        if Need.NOISE in p.gives and not p.draws_random_numbers(rows):
            p.gives -= {Need.NOISE}
        first = counted(p.module)
        p.changes_inputs, p.still = p.works_in_place(rows)
        before = counted(p.module)
        if before != first:
            p.works_in_place(rows)  # of the same rows and random numbers: last outputs in a module stay the same
        p.numbers = out[0].numel()
        moved = [name for name, value in counted(p.module).items() if value != before.get(name, value)]
        if moved:
            p.counting = True
            log.warning(
                "Network: the module's %s changes from pass to pass and is no buffer: each process counts its own "
                "passes, so results depend on the number of workers, and on a resume; register it as a buffer",
                moved[0],
            )
        self._refuse_left_behind(p, rows)
        p.sample = rows, self.targets(y[:2], classes).to(device)
        self._try_loss(p, out, y, classes)
        if y.ndim > 1:
            p.gives -= {Need.CLASSES}
        layers = p.note_layers(rows)
        self._ends(p, out, layers.end)
        if self.shared is not None and body:
            whole = p
            names = without_last(p.module, self.shared, layers.last, layers.failed)
            p = NetworkProblem(replace(self, shared=names), classes, p.dtype, device)
            p.__setstate__({name: getattr(whole, name) for name in (*TRIED, "sample")})
        return p if p.shared_count == len(p.shapes) else SharedNetwork(p)

    @staticmethod
    def _refuse_left_behind(p: NetworkProblem, rows: Data) -> None:
        """Raise RecipeError for a parameter that a copy of the module would not train."""
        name = p.left_behind(rows)
        if name:
            raise RecipeError(
                f"Network(module): {name} would not be trained: clients train copies of the module, and in a copy a "
                "function that was made with the first module, such as a lambda over self, still uses the first "
                "module's parameters; make it a method of the class",
                "module",
            )

    def _read(self, p: NetworkProblem, X: Data) -> tuple[Tensor, Tensor]:
        """Try the network on two rows of X; returns these rows and the outputs. Raises BadData if it cannot read such
        rows.
        """
        try:
            p.check_ids(X)
            rows = in_memory(p.inputs(X[:2])).clone()
            p.noisy = Need.NOISE in p.gives  # until it is tried
            out = p.outputs(p.flat, rows)
        except BadData:
            raise
        except Exception as e:
            of_integers = (
                ""
                if X.is_floating_point() or isinstance(X, Fields)
                else " of integers (convert them to floats if it does not embed them)"
            )
            raise BadData(
                f"the network cannot read rows of shape {described(X)}{of_integers}: "
                f"{_images(self.module, X) or e}{_takes(self.module, X) or _first(self.module, X)}"
            ) from e
        return rows, _one_tensor(out)

    def _check_outputs(self, out: Tensor, y: Data, classes: int | None) -> None:
        """Raise BadData if the outputs for two rows do not have the shape that cross-entropy needs for these labels."""
        if self.loss != "cross_entropy":
            return
        if out.ndim == y.ndim == 2 and is_one_hot(in_memory(y)):
            raise BadData(
                f"the targets are one-hot: each row has shape {list(y.shape[1:])}. Pass class labels instead: "
                "y.argmax(1)"
            )
        if not classes:
            return
        wide = out.ndim >= 2 and out.shape[1] >= classes
        last = out.ndim > 2 and out.shape[1:-1] == y.shape[1:] and out.shape[-1] >= classes
        if last and not (wide and out.shape[2:] == y.shape[1:]):
            raise BadData(
                f"the network's outputs are {list(out.shape[1:])} a row, with the {classes} classes last, and torch's "
                "cross_entropy takes them first; return outputs.movedim(-1, 1)"
            )
        if not wide or (y.ndim == 1 and out.ndim != 2):
            too_large = (y >= (out.shape[1] if out.ndim >= 2 else classes)).nonzero()
            raise BadData(
                f"the data has {classes} classes, but the network's outputs are {list(out.shape[1:])} a row; widen its "
                f"last layer, or number the labels from 0{', or name padding by ignore_index=' if y.ndim > 1 else ''}",
                row=int(too_large[0][0]) if len(too_large) else None,
            )
        if out.ndim == 2 and list(y.shape[1:]) == [1]:
            raise BadData("the labels are a column, [n, 1]; give [n], y[:, 0]")
        if out.shape[2:] != y.shape[1:]:
            raise BadData(
                f"the labels are {list(y.shape[1:])} a row and the network's outputs {list(out.shape[1:])}; the "
                f"outputs must be {[classes, *y.shape[1:]]}, the classes first, as for torch's cross_entropy"
            )
        if self.class_weights is not None and len(self.class_weights) not in (classes, out.shape[1]):
            raise BadData(f"Network(class_weights=...): {len(self.class_weights)} weights for {classes} classes")

    def _try_loss(self, p: NetworkProblem, out: Tensor, y: Data, classes: int | None) -> None:
        """Try the user's own loss on some rows' outputs: its form, how it reads classes, and the losses of rows."""
        if not callable(self.loss) or p.sample is None:
            return
        two = p.sample[1].to(out.dtype) if p.sample[1].is_floating_point() else p.sample[1]
        value = check_loss(self.loss, out, two)
        if value is not None and value.ndim == 0:
            check_mean(self.loss, out, two, value)
        check_pairs(self.loss, out, in_memory(y))
        some = in_memory(y[torch.linspace(0, len(y) - 1, min(len(y), SOME)).long()])
        targets = self.targets(some, classes).to(two)
        with p.forked():
            if probes.separable(self.loss, out[:1].expand(len(targets), *out.shape[1:]), targets):
                p.gives |= {need for need in (Need.ROWS,) if p.running() or not p.mixes_rows}
                p.by_rows = value is not None and value.ndim > 0 and len(value) == len(out)
            if is_binary(self.loss):
                p.decision = 0.0
            elif classes and not two.is_floating_point():
                p.decision = probes.decision(self.loss, out, two, classes)
            else:
                p.decision = None
        if p.by_rows:
            p.gives |= {Need.WEIGHTS}

    def _ends(self, p: NetworkProblem, out: Tensor, end: str) -> None:
        """Warn in the log if the loss does not take such outputs; after a sigmoid, decide at ½."""
        why = unsuited(self.loss, out, end)
        if why:
            log.warning("%s", why)
        unclear = p.decision is None and callable(self.loss) and p.classes == 2
        if end == "sigmoid" and (is_binary(self.loss) or unclear):
            p.decision = 0.5

    def labelled(self, y: Data) -> bool:
        """Whether targets y are class labels: integers for cross-entropy, for a user's own loss one integer a row."""
        return not y.is_floating_point() and (self.loss == "cross_entropy" or (y.ndim == 1 and callable(self.loss)))

    def canonical(self, y: Data, classes: int | None) -> Data:
        """Labels as data sets hold them: the same as `targets` gives."""
        return self.targets(y, classes)

    def targets(self, y: Data, classes: int | None) -> Data:
        """int64 labels for cross-entropy, floats for mse and binary cross-entropy, y as it is for other losses.

        Raises BadData with the first bad label, and for binary cross-entropy with the first target outside 0..1.
        """
        if self.loss == "cross_entropy":
            if self.ignore_index != -100 and y.ndim == 1:
                raise BadData(
                    f"Network(ignore_index={self.ignore_index}) is for sequences and maps, and these rows have one "
                    "label each; leave out the rows without a label, X[y != ignore_index]"
                )
            return class_labels(y, classes, "Network", self.ignore_index)
        if is_binary(self.loss):
            return binary_targets(y, called(self.loss))
        refuse_class_numbers(self.loss, y)
        return y.float() if self.loss == "mse" and not y.is_floating_point() else y

    @property
    def fingerprint(self) -> list[Any]:
        """All that decides a run's bits. With ``start="draw"``, weights that the seed draws don't count.

        A module in `FRESH` is drawn anew for this, so its x must not be in use yet.
        """
        start = self.start or "draw"
        module = redrawn(self.module, in_place=self.module in FRESH) if start == "draw" else self.module
        rest: list[Any] = [self.class_weights, self.ignore_index, self.transform]
        rest = [] if rest == [None, -100, None] else rest
        rest = [*rest, self.shared] if self.shared is not None else rest
        base = frozen(self.module) if start == "draw" else None  # it is not drawn
        rest = [*rest, base] if base else rest
        rest = [*rest, {"train": self.train}] if self.train is not None else rest
        return [module, self.loss, start, *rest]

    def settings(self) -> dict[str, Any]:
        """The module's text, the loss's name and the start, for the record."""
        return {
            "problem": "Network",
            "module": str(self.module),
            "loss": self.loss if isinstance(self.loss, str) else _name_of(self.loss),
            "start": self.start or "draw",
            **({} if self.class_weights is None else {"class weights": list(self.class_weights)}),
            **({} if self.transform is None else {"transform": getattr(self.transform, "__name__", "own")}),
            **({} if self.shared is None else {"shared": self.shared}),
            **({} if self.train is None else {"train": getattr(self.train, "__name__", "own")}),
            **({} if self.ignore_index == -100 else {"ignore_index": self.ignore_index}),
        }


def _name_of(loss: object) -> str:
    """The loss's name: a function's, or that of one of PyTorch's classes; "own" for others, and for a namesake."""
    if type(loss).__module__.startswith("torch."):
        return type(loss).__name__
    name = str(getattr(loss, "__name__", "own"))
    is_namesake = hasattr(nn.functional, name) and loss is not getattr(nn.functional, name)
    return "own" if is_namesake or hasattr(nn, name) else name


def _images(module: nn.Module, X: Data) -> str:
    """A sentence about images without channels, or with channels last, which the first layer cannot take."""
    first = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None or isinstance(X, Fields) or X.ndim not in (3, 4):
        return ""
    if X.ndim == 3:
        return "images are [channels, height, width], so give X[:, None]"
    last = X.shape[1] != first.in_channels == X.shape[3]
    return "channels come first, so give X.transpose(0, 3, 1, 2)" if last else ""
