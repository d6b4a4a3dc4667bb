"""A user's own loss, tried on two rows before anything is trained."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...contract.errors import BadData, MedleyError, RecipeError
from ..labels import refuse_classes
from .spec import Loss

DRAWS = (
    "Network: the module draws random numbers in evaluation mode too, so its figures are of random outputs; if that is "
    "from F.dropout(x), write F.dropout(x, training=self.training)"
)

PROBE = (0.3, 0.6)
"""Outputs of two rows that can be read as logits, as probabilities and as positive numbers."""

VALUES = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.poisson_nll_loss)
VALUE_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss)
"""PyTorch's losses whose targets are values, as functions and as modules."""


def called(loss: str | Loss) -> str:
    """How an error about this loss begins."""
    name = repr(loss) if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return f"Network(loss={name})"


def fits_values(loss: str | Loss, classes: int) -> bool:
    """Whether a loss reads targets as values: "mse" and PyTorch's do; others are tried if there are over two classes.

    The trial asks whether the loss changes with targets between 0 and 1 that keep their order.
    """
    if isinstance(loss, str):
        return loss == "mse"
    if loss in VALUES or isinstance(loss, VALUE_MODULES):
        return True
    if classes <= 2:  # binary cross-entropy takes probabilities too
        return False
    z = torch.tensor(PROBE)[:, None]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one, other = (float(loss(z, torch.tensor(y)).mean()) for y in ((0.25, 0.75), (0.125, 0.5)))
    except Exception:
        return False
    return one != other


def refuse_other(loss: object) -> None:
    """Raise RecipeError for a loss that is neither one of Medley's names nor a function."""
    if isinstance(loss, type):
        raise RecipeError(f"Network(loss={loss.__name__}) is a class; give a loss of it, {loss.__name__}()", "loss")
    if not callable(loss) and loss not in ("cross_entropy", "mse"):
        raise RecipeError.unknown(str(loss), ("cross_entropy", "mse"), "Network(loss=...)")


def refuse_class_numbers(loss: str | Loss, y: Tensor) -> None:
    """Raise BadData if a loss of values gets whole numbers that look like classes, see `refuse_classes`."""
    if loss == "mse" or loss in VALUES or isinstance(loss, VALUE_MODULES):
        refuse_classes(y, called(loss))


LOGITS = ("cross_entropy", F.cross_entropy, F.binary_cross_entropy_with_logits)
"""PyTorch's losses of logits, as functions."""

LOGIT_MODULES = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)
"""PyTorch's losses of logits, as modules."""

LOGARITHMS = (F.nll_loss, F.kl_div)
"""PyTorch's losses of logarithms of probabilities, as functions."""

LOGARITHM_MODULES = (nn.NLLLoss, nn.KLDivLoss)
"""PyTorch's losses of logarithms of probabilities, as modules."""

PROBABILITIES = (F.binary_cross_entropy,)
"""PyTorch's losses of probabilities, as functions."""

PROBABILITY_MODULES = (nn.BCELoss,)
"""PyTorch's losses of probabilities, as modules."""


def unsuited(loss: str | Loss, out: Tensor, end: str) -> str:
    """The sentence that says that a loss does not take such outputs; empty if it does, or if that is not known.

    A function of one's own is tried: a loss that falls without end along its own class takes logarithms, and one that
    equals cross-entropy takes logits.

    Args:
        out: the network's outputs of two rows
        end: the operation that makes the outputs, as `Layers.end`
    """
    z = out.detach().double()
    several = z.ndim > 1 and z.shape[1] > 1
    shares = several and bool((z >= 0).all()) and torch.allclose(z.sum(1), torch.ones_like(z.sum(1)), atol=1e-4)
    logs = several and torch.allclose(z.logsumexp(1), torch.zeros_like(z[:, 0]), atol=1e-4)
    of: Callable[[Collection[object], tuple[type, ...]], bool] = lambda some, kinds: (
        loss in some or isinstance(loss, kinds)
    )
    kind = "" if isinstance(loss, str) or not several else _alike(loss, z.shape[1])
    if of(LOGITS, LOGIT_MODULES) or kind == "logits":
        what = end if end in ("sigmoid", "softmax") else "softmax" if shares else ""
        why = "takes logits, and the network ends in a {}: leave that out, since the loss has its own"
        return f"{called(loss)} {why.format(what)}" if what else ""
    if (of(LOGARITHMS, LOGARITHM_MODULES) or kind == "logarithms") and several and not logs:
        what = "softmax, without the logarithm" if shares else "layer, and not in a log_softmax"
        return (
            f"{called(loss)} takes logarithms of probabilities, and the network ends in a {what}: the loss then falls "
            "without end. End the network in nn.LogSoftmax(1), or give loss='cross_entropy' and outputs without softmax"
        )
    if of(PROBABILITIES, PROBABILITY_MODULES) and end not in ("sigmoid", "softmax") and not shares:
        return (
            f"{called(loss)} takes probabilities, and the network does not end in a sigmoid: end it in nn.Sigmoid(), "
            "or give nn.BCEWithLogitsLoss(), which takes logits"
        )
    return ""


def _alike(loss: Loss, classes: int) -> str:
    """What a loss of one's own takes: "logits" if it equals cross-entropy on some numbers, "logarithms" if nll_loss."""
    z = torch.linspace(-2, 2, 2 * classes).reshape(classes, 2).T.contiguous()
    y = torch.tensor([0, classes - 1])
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = float(loss(z, y).mean())
    except Exception:
        return ""
    references = {"logits": F.cross_entropy(z, y), "logarithms": F.nll_loss(z, y)}
    return next((what for what, value in references.items() if math.isclose(result, float(value), rel_tol=1e-5)), "")


def check_loss(loss: Loss, out: Tensor, y: Tensor) -> Tensor | None:
    """The loss of two rows' outputs; None if it fails on them, for example because it needs more rows.

    Args:
        loss: the user's function
        out: the network's outputs of two rows [2, ...]
        y: their targets [2, ...]

    Raises RecipeError if the function does not take two arguments, has trainable parameters, returns no tensor, or
    returns one that for autograd does not depend on the outputs; and BadData if the targets are integers but the loss
    takes only floats.
    """
    try:
        inspect.signature(loss).bind(out, y)
    except TypeError as e:
        raise RecipeError(f"{called(loss)}: {e}; it is called with (outputs, y)", "loss") from None
    except ValueError:  # a builtin has no signature
        pass
    try:
        z = out.detach().clone().requires_grad_()
        value: object = loss(z, y)
        of_constants: object = loss(out.detach(), y)
    except Exception:
        _check_floats(loss, out, y)
        return None
    value = _tensor(loss, value)
    if isinstance(of_constants, Tensor) and of_constants.requires_grad:
        raise RecipeError(
            f"{called(loss)} has trainable parameters of its own, or of a module that it holds, and a run trains only "
            "the network's, in copies: move them into the network or freeze them; for weight decay use "
            "Pace(weight_decay=...)",
            "loss",
        )
    if not value.requires_grad:
        raise RecipeError(
            f"{called(loss)} has no gradient with respect to the outputs; leave out .detach() and no_grad", "loss"
        )
    try:
        torch.autograd.grad(value.sum(), z)
    except Exception:
        _check_floats(loss, out, y)
    return value.detach()


def _check_floats(loss: Loss, out: Tensor, y: Tensor) -> None:
    """Raise BadData if a loss that failed on integers y works on the same numbers as floats."""
    if y.is_floating_point():
        return
    try:
        z = out.detach().clone().requires_grad_()
        torch.autograd.grad(loss(z, y.to(z.dtype)).sum(), z)
    except Exception:
        return
    raise BadData(
        f"{called(loss)} takes targets as floats, and they are whole numbers; give y.astype('float32'), or take "
        "y.float() in the loss"
    )


def check_mean(loss: Loss, out: Tensor, y: Tensor, value: Tensor) -> None:
    """Raise RecipeError for a loss that is a sum over rows: if every row comes k times, it is k times as large.

    A softmax over the rows of a batch may also double, from log 2 to log 4, but it does not triple.

    Args:
        loss: the user's function
        out: the network's outputs of two rows [2, ...]
        y: their targets [2, ...]
        value: the loss of these two rows
    """
    once = float(value)
    try:
        with torch.no_grad():
            multiplied = [
                math.isclose(float(loss(_times(out, k), _times(y, k))), k * once, rel_tol=1e-4) for k in (2, 3)
            ]
    except Exception:
        return
    if once and math.isfinite(once) and all(multiplied):
        raise RecipeError(
            f"{called(loss)} is a sum over rows, which grows with the batch; return the mean, as reduction='mean' "
            "does, or the loss of each row, reduction='none'",
            "loss",
        )


def _times(t: Tensor, k: int) -> Tensor:
    """The rows of t, repeated k times."""
    return t.repeat(k, *[1] * (t.ndim - 1))


def evaluated(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """The user's loss of a batch. If it fails or returns no tensor, raises RecipeError with both shapes."""
    try:
        value: object = loss(out, y)
    except (MedleyError, torch.OutOfMemoryError):
        raise
    except Exception as e:
        pairs = _remedy(out.shape[1:], y.shape[1:]) if isinstance(e, ValueError | RuntimeError) else ""
        raise RecipeError(
            f"{called(loss)} failed on outputs {list(out.shape)} and targets {list(y.shape)}, {type(e).__name__}: {e}"
            f"{pairs and f'; for equal shapes take {pairs} in the loss'}",
            "loss",
        ) from e
    return _tensor(loss, value)


def _tensor(loss: Loss, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise RecipeError(
            f"{called(loss)} returned {type(value).__name__}; return a tensor, without .item() or .numpy()", "loss"
        )
    return value


def _remedy(out: torch.Size, y: torch.Size) -> str:
    """The change to a row's outputs or targets that makes their shapes equal; empty unless only a 1 sets them apart."""
    if len(out) == len(y) or [k for k in out if k != 1] != [k for k in y if k != 1]:
        return ""
    longer, name = (out, "outputs") if len(out) > len(y) else (y, "y")
    shape = "y.shape" if name == "outputs" else "outputs.shape"
    return f"{name}.squeeze(1)" if longer[1:] == min(out, y, key=len) else f"{name}.reshape({shape})"


def check_pairs(loss: Loss, out: Tensor, y: Tensor) -> None:
    """Raise BadData for outputs like [n, 1] and targets [n], or the reverse, if the loss makes pairs [n, n] of them.

    Args:
        loss: the user's function
        out: outputs of two rows, for their shape and type
        y: the targets of all rows
    """
    remedy = _remedy(out.shape[1:], y.shape[1:])
    if not remedy:
        return
    other = (y != y[:1]).reshape(len(y), -1).any(1).nonzero()
    if not len(other):
        return
    y = torch.stack([y[0], y[int(other[0])]]).to(out.device)
    y = y.to(out.dtype) if y.is_floating_point() else y
    shape = out.shape[1:]
    # Two probes: where a loss is linear between two outputs, the rows' mean is that of pairs as well.
    probes = (out.new_tensor(PROBE).reshape(2, *[1] * len(shape)).expand(out.shape), y.flip(0).to(out.dtype))
    for copies in (1, 16):  # some losses want more than two rows
        try:
            tried = [_tried(loss, z.reshape(2, *shape), y, copies) for z in probes]
        except Exception:
            continue
        if all(exchangeable for exchangeable, _ in tried) and any(other for _, other in tried):
            raise BadData(
                f"{called(loss)}: the network's outputs are {list(shape)} a row and the targets {list(y.shape[1:])}, "
                f"so it compares each output with the targets of all rows; take {remedy} in the loss"
            )
        return


def _tried(loss: Loss, z: Tensor, y: Tensor, copies: int) -> tuple[bool, bool]:
    """Two answers: whether the loss of z [2, ...] stays the same if the two targets change places, and whether it
    changes if outputs and targets get the same shape.
    """
    many: Callable[[Tensor], Tensor] = lambda t: _times(t, copies)
    short = min(z.shape[1:], y.shape[1:], key=len)
    value = float(loss(many(z), many(y)).mean())
    exchanged = float(loss(many(z), many(y.flip(0))).mean())
    try:
        equal = float(loss(many(z.reshape(2, *short)), many(y.reshape(2, *short))).mean())
    except Exception:  # one that takes the mean over a dimension that pairs have, and rows have not
        singles = (loss(many(z[j : j + 1]), many(y[j : j + 1])) for j in range(2))
        equal = sum(float(of_row.mean()) for of_row in singles) / 2
    return math.isclose(value, exchanged, rel_tol=1e-4), not math.isclose(value, equal, rel_tol=1e-4)
