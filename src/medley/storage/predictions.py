"""Outputs and predictions of a trained module on a user's rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ..contract import BadData, Decision, Place, RecipeError
from ..numerics.scaling import Scaling
from ..rows.columns import TARGETS, cells, columns_of, is_frame, is_hugging_face
from ..rows.fields import Fields, applied, described, inputs_of, names_of, tensors
from ..rows.fields import integers as whole
from ..rows.lazy import in_memory
from ..rows.numbers import table as table_of
from ..rows.precision import is_far, moved
from ..rows.sparse import Sparse
from ..rows.tensors import as_row, as_tensor, check_finite

CALL = Place("predict(X)")

SOFTMAX = {"Softmax", "softmax", "cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"}
"""Problems and losses whose outputs, one per class, are logarithms of probabilities but for a number per row."""

SIGMOID = {"Logistic", "logistic", "binary_cross_entropy_with_logits", "BCEWithLogitsLoss"}
"""Problems and losses whose outputs are logits."""

WITHHELD: Mapping[str, Any] = {}
"""Stands for a scaling that a folder must not hold, because no noise protects it."""


def rows_of(X: Any, features: Sequence[str], scaling: Mapping[str, Any] | None, missing: bool = False) -> Any:
    """Rows as the model saw them in training: a frame's columns by name, scaled; anything but a table unchanged.

    Args:
        features: names of the features of training, in order; none if training had no names
        scaling: mean and deviation of its features, `Scaling.plain`, and how they are computed from a frame's columns;
            None if they were not standardised
        missing: whether empty cells stand for missing values, which the model reads; default False

    Raises BadData, naming the columns, if some are missing or unknown to training, if cells are not finite numbers, and
    if X holds targets too.
    """
    is_dataset = is_hugging_face(X)
    _refuse_pairs(X, features)
    if not is_dataset and not is_frame(X):
        wide = np.shape(X)[1] if features and np.ndim(X) == 2 else len(features)
        if wide != len(features):
            raise BadData(f"predict(X): rows have {wide} columns, training rows {len(features)}: {', '.join(features)}")
        return X
    columns = columns_of(X, "predict(X)")
    if scaling and "coding" in scaling:
        return Scaling.from_plain(scaling).of_table(X, columns, "predict(X)")
    if is_dataset:  # its items have the target as well
        columns = {n: c for n, c in columns.items() if n in features or (not features and n not in TARGETS)}
    elif features:
        _refuse_others([*columns], features)
    absent = [name for name in features if name not in columns]
    if absent:
        raise BadData(f"predict(X): the data set has no {_listed(absent)}, which the training data had")
    return _scaled(X, {name: columns[name] for name in features or columns}, scaling, missing)


def _refuse_pairs(X: Any, features: Sequence[str]) -> None:
    """Raise BadData for data sets, loaders and lists that include targets, and for a table that is no frame yet."""
    kind = type(X).__name__
    if isinstance(X, str | Path):
        raise BadData(
            f"predict(X): X is the {'path' if isinstance(X, Path) else 'text'} {str(X)!r}; read the file first"
        )
    if (isinstance(X, Mapping) and features) or (isinstance(X, list) and X and isinstance(X[0], Mapping)):
        raise BadData(f"predict(X): X is a {kind} of {'columns' if isinstance(X, Mapping) else 'rows'} by name; give a "
                      "frame, predict(pandas.DataFrame(X))")  # fmt: skip
    if isinstance(X, tuple) and features:
        raise BadData("predict(X): X is a tuple, such as a pair (X, y); give the rows alone, predict(X)")
    if hasattr(X, "X_test") and hasattr(X, "y"):
        raise BadData(f"predict(X): X is a {kind}; give its rows, predict(data.X_test) or predict(data.X)")
    if isinstance(X, DataLoader):
        raise BadData(
            f"predict(X): X is a {kind}; give its batches' inputs in one tensor, torch.cat([x for x, *_ in loader])"
        )
    if isinstance(X, TorchDataset) and not is_hugging_face(X):
        raise BadData(
            f"predict(X): X is a {kind}; give its items' inputs in one tensor, torch.stack([x for x, *_ in data])"
        )
    if isinstance(X, list) and X and isinstance(X[0], tuple):
        raise BadData("predict(X): X is a list of tuples; give the inputs alone, torch.stack([x for x, *_ in X])")


def _refuse_others(names: Sequence[str], features: Sequence[str]) -> None:
    """Raise BadData if a frame has columns that training lacked, or lacks some that training had."""
    more = [name for name in names if name not in features]
    missing = [name for name in features if name not in names]
    if missing:
        extra = f", and has {_listed(more)}, which training did not have" if more else ""
        raise BadData(
            f"predict(X): the frame has no {_listed(missing)}, which training had{extra}; if these columns come "
            "from get_dummies, frame.reindex(columns=list(result.features), fill_value=0) adds the columns of "
            "absent categories"
        )
    if more:
        raise BadData(
            f"predict(X): training had no {_listed(more)}; leave such columns out, frame[list(result.features)]"
        )


def _scaled(table: Any, columns: Mapping[str, Any], scaling: Mapping[str, Any] | None, missing: bool) -> Any:
    """These columns of a table as rows, scaled like the training rows; several non-numeric columns as a dict."""
    arrays = {name: cells(table, column) for name, column in columns.items()}
    if any(c.ndim > 1 or (c.dtype == object and hasattr(c[0], "getbands")) for c in arrays.values()):
        inputs: dict[str, Tensor] = {}
        for name, array in arrays.items():
            inputs[name] = torch.stack([as_row(value, (name,)) for value in array])
        return inputs if len(inputs) > 1 else next(iter(inputs.values()))
    X = table_of(arrays, CALL, missing)
    if scaling is None:
        return torch.from_numpy(X)
    scaler = scaling_of(scaling)
    assert scaler is not None
    if scaler.mean.shape[1:] != X.shape[1:]:
        raise BadData(
            f"predict(X): the frame has {X.shape[1]} columns, but the training rows had {scaler.mean.shape[1]}"
        )
    # As `kept_apart` keeps the training rows.
    far = is_far(scaler.mean.numpy(), scaler.deviation.numpy())
    return scaler(torch.from_numpy(np.where(far | moved(X), X, X.astype(np.float32))))


def scaling_of(plain: Mapping[str, Any] | None, call: str = "predict(X)") -> Scaling | None:
    """The scaling of a result's settings; None if there is none. Raises RecipeError if the result withholds it."""
    if plain is None:
        return None
    if plain == WITHHELD:
        raise RecipeError(
            f"{call}: the result of a private run does not store the mean and deviation of the training rows, "
            "because they are exact and not private. Pass an array of rows that are scaled already, or train on rows "
            "scaled by public numbers, standardise(like=...)",
            "scaling",
        )
    return Scaling.from_plain(plain)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(repr(name) for name in names[:5]) + more


def reads_missing(module: nn.Module) -> bool:
    """Whether a model reads NaN in its rows as a missing value, as a forest may."""
    return getattr(module, "reads_missing", False) is True


def outputs_of(
    module: nn.Module, X: Any, batch: int, integers: Sequence[str] | None, dimensions: int | None = None
) -> Tensor:
    """The module's outputs for rows X in evaluation mode, on the CPU; afterwards its mode is as before.

    Args:
        X: rows [n, ...]: a tensor, an array, a SciPy sparse matrix, or a dict or tuple of such; numbers in any dtype
        integers: names or places of inputs that are whole numbers; None: all whole-number inputs, if the module embeds
            some
        dimensions: of the training rows X; None if they are not known, or if rows have several inputs

    Raises BadData if the module cannot read the rows, and if the outputs of one row lack the row dimension.
    """
    missing = reads_missing(module)
    rows = as_tensor(X, CALL, missing=missing)
    if isinstance(rows, Fields) and dimensions is not None:
        raise BadData(
            f"predict(X): X is a {type(X).__name__} of several inputs, but the training rows are one array; give such "
            "rows, for example numpy.column_stack([*X.values()]) of columns by name"
        )
    check_finite(rows, CALL, missing)
    if rows.ndim < 2:
        raise BadData(f"predict(X): X has shape {list(rows.shape)}; give rows [n, ...], one row as X[None]")
    if dimensions is not None and rows.ndim != dimensions:
        raise BadData(
            f"predict(X): X has shape {list(rows.shape)}, of {rows.ndim} dimensions, but the training rows have "
            f"{dimensions}; give rows [n, ...] of the same form, one row as X[None]"
        )
    if integers is None:
        embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())
        integers = whole(rows) if embeds else ()
    was = module.training
    module.eval()
    try:
        with torch.no_grad():
            parts = [_outputs(module, part, integers) for part in torch.split(rows, batch)]
    except BadData:
        raise
    except IndexError as e:  # from an embedding
        raise BadData(
            f"predict(X): the model cannot read {_ranges(rows, integers)} ({e}); it was trained on smaller ids: check "
            "the tokeniser"
        ) from e
    except Exception as e:  # torch's own words for rows of another shape, or the module's
        first = next((m for m in module.modules() if not list(m.children())), None)
        layer = f", whose first layer takes {first.in_features} columns" if isinstance(first, nn.Linear) else ""
        takes = f"; its forward takes {inspect.signature(module.forward)}" if isinstance(rows, Fields) else ""
        raise BadData(f"predict(X): rows of shape {described(rows)} do not fit the model{layer}: {e}{takes}") from e
    finally:
        module.train(was)
    return torch.cat(parts)


def _outputs(module: nn.Module, rows: Tensor, integers: Sequence[str]) -> Tensor:
    """The module's outputs for some rows, converted to the dtypes that it was trained on."""
    like = next(p for p in module.parameters() if p.is_floating_point())

    def ready(t: Tensor, name: str) -> Tensor:
        t = torch.from_numpy(t.matrix.toarray()) if isinstance(t, Sparse) else in_memory(t)
        is_whole = name in integers and (not t.is_floating_point() or bool((t == t.round()).all()))
        # A copy: the module may change its inputs in place.
        return t.to(like.device, torch.int64 if is_whole else like.dtype, copy=True)

    if isinstance(rows, Fields):
        parts = zip(rows.parts, names_of(rows), strict=True)
        inputs: Tensor = Fields([ready(t, name) for t, name in parts], rows.names)
    else:
        inputs = ready(rows, "0")
    out = applied(module, inputs_of(inputs))
    if not isinstance(out, Tensor):
        raise BadData(f"predict(X): the model returns a {type(out).__name__}; call it yourself, result.model(rows)")
    if len(rows) == 1 and out.shape[:1] != (1,) and applied(module, inputs_of(inputs[[0, 0]])).ndim != out.ndim:
        raise BadData(
            f"predict(X): the model's outputs of one row have shape {list(out.shape)}, without the rows; change its "
            "outputs.squeeze() to outputs.squeeze(1)"
        )
    return out.cpu()


def _ranges(rows: Tensor, integers: Sequence[str]) -> str:
    """The smallest and largest whole number of each input that has some."""
    inputs = [
        (t, where)
        for (t, where), name in zip(tensors(rows, ""), names_of(rows), strict=True)
        if name in integers and t.numel()
    ]
    return " and ".join(f"ids{where} {int(t.min())}..{int(t.max())}" for t, where in inputs) or "rows"


def predicted(
    outputs: Tensor, classes: int | None, labels: Sequence[Any] | None, decision: Decision = "argmax"
) -> np.ndarray:
    """Predictions from outputs.

    Args:
        outputs: [n], margins of two classes; [n, c, ...], one output per class; or any others
        classes: the number of classes; None for none
        labels: the classes' names as the data had them; None for 0..classes−1
        decision: the class that an output stands for; by default a margin above 0 means the second class

    Returns labels [n, ...] if there are classes, 0 or 1 for each output that a threshold decides, otherwise the
    outputs. Raises BadData for outputs that are nan, and for a class without a name.
    """
    if classes is None and isinstance(decision, float):  # targets are floats, one for each output
        return (outputs > decision).long().numpy()
    if classes is None or decision is None:
        return outputs.numpy()
    if not bool(outputs.isfinite().all()) and outputs.isnan().any():
        row = int(outputs.isnan().nonzero()[0, 0])
        raise BadData("the model's output is nan; fill the row's missing cells", place=CALL.at(row))
    if outputs.ndim > 1 and outputs.shape[1] >= classes and decision == "argmax":
        codes = outputs.argmax(1)
    elif outputs.numel() == len(outputs) and classes == 2:
        codes = (outputs.reshape(-1) > (0.0 if decision == "argmax" else decision)).long()
    else:
        return outputs.numpy()
    if labels is None:
        return codes.numpy()
    beyond = codes >= len(labels)
    if bool(beyond.any()):
        row = int(beyond.nonzero()[0, 0])
        raise BadData(
            f"predict(X): of the model's {outputs.shape[1]} outputs, number {int(codes[beyond][0])} (from 0) is the "
            f"largest in row {row}, but the data has {len(labels)} labels; give the network {len(labels)} outputs",
            row=row,
        )
    named: np.ndarray = np.asarray(labels)[codes.numpy()]
    return named


def probabilities(outputs: Tensor, settings: Mapping[str, Any]) -> np.ndarray:
    """Probabilities of outputs, by the run's problem and loss: [n, classes], or [n, outputs] without classes.

    Raises RecipeError if its outputs do not stand for probabilities.
    """
    classes = settings.get("classes")
    names = {settings.get("problem"), settings.get("loss")}
    if names & SOFTMAX:
        return torch.softmax(outputs, 1).numpy()
    decides_at_half = settings.get("decision") == 0.5
    if not names & SIGMOID and not (decides_at_half and names & {"binary_cross_entropy", "BCELoss"}):
        what = f"loss={settings['loss']!r}" if "loss" in settings else f"problems.{settings.get('problem')}"
        raise RecipeError(
            f"predict_proba(X): outputs of {what} are no probabilities that Medley knows; compute them from "
            "result.outputs(X), torch.softmax(outputs, 1) or outputs.sigmoid() if your loss takes logits, or train "
            "with loss='cross_entropy'",
            "loss",
        )
    p = outputs if decides_at_half else outputs.sigmoid()
    if classes is None:  # several yes-or-no targets
        return p.reshape(len(p), -1).numpy()
    p = p.reshape(-1)
    return torch.stack([1 - p, p], 1).numpy()
