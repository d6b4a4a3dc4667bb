"""The first model of a run: drawn from the seed, or given by ``init``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ..contract import Problem, RecipeError, Vec
from ..datasets import Dataset
from ..numerics.initial_weights import undrawn
from ..numerics.scaling import Scaling
from ..problems.network import NetworkProblem, SharedNetwork
from ..rows.columns import differ
from ..storage.predictions import WITHHELD
from ..storage.result import Result
from ..storage.weights import Weights
from .labels import refuse_renumbered
from .protocols import Population

log = logging.getLogger("medley")

FLAT = {"x", "floats", "ints"}
"""Names of a result's tensors."""

_told = WeakSet[nn.Module]()
"""Modules about which `_tell_of_redrawn` has warned."""


def start(problem: Problem, x0: Vec, init: Weights | None) -> Vec:
    """``init``, if given, otherwise the seed's x₀ [d]. Loads the buffers in ``init`` into the problem.

    Raises RecipeError, naming the tensor, if ``init`` cannot be used.
    """
    if init is None:
        _tell_of_redrawn(problem)
        return x0
    if (
        isinstance(problem, SharedNetwork)
        and not isinstance(init, Tensor)
        and not ("x" in init and init.keys() <= FLAT)
    ):
        return problem.begin_at(start(problem.joint, problem.joint.flat, init))
    if isinstance(init, Tensor):
        return _finite(_vector(init, x0))
    if "x" in init and init.keys() <= FLAT:
        x = _finite(_vector(init["x"], x0))
        if "floats" in init and "ints" in init:
            _load_buffers(problem, init["floats"], init["ints"])
        return x
    if not isinstance(problem, NetworkProblem):
        raise RecipeError("run(init=...): a linear model has no state_dict; pass a Result, or a vector [d]", "init")
    problem.load_state(init)
    return _finite(problem.flat.clone())


def check_names(init: Any, fed: Population) -> None:
    """Raise RecipeError if ``init`` is a result, or its folder, whose features, labels or scaling differ from
    ``fed``'s.

    Compares only what both have. If only one has a scaling, it logs a warning.
    """
    if isinstance(init, str | Path) and Path(init).is_dir():
        init = Result.load(init, model=False)
    rows = getattr(fed, "data", None)
    data = rows if isinstance(rows, Dataset) else None
    unnamed = isinstance(init, Mapping | str | Path) or (isinstance(init, Result) and not init.settings.get("labels"))
    if data is not None and unnamed:
        refuse_renumbered(data, "run(init=...)")
    if not isinstance(init, Result):
        return
    said = fed.settings() if data is None else {}  # what clients on other machines say of their rows
    features, labels = (said.get(k, ()) if data is None else getattr(data, k) for k in ("features", "labels"))
    if init.features and features and [*init.features] != [*features]:
        difference = differ(init.features, features) or f"has them in the order {', '.join(init.features)}"
        raise RecipeError(
            f"run(init=...): of the features {', '.join(features)}, the result {difference}; leave init out to begin "
            "with a new model",
            "init",
        )
    theirs = init.settings.get("labels")
    if theirs and labels and [*theirs] != [*labels]:
        result_labels, data_labels = (", ".join(map(repr, names)) for names in (theirs, labels))
        raise RecipeError(
            f"run(init=...): the data has the labels {data_labels}, but the result has {result_labels}; pass "
            "Dataset(X, y, labels=...) in the result's order, init=result.x to match classes by number, or leave init "
            "out to begin with a new model",
            "init",
        )
    if data is not None:
        _check_scaling(init.settings.get("scaling"), data)


def _check_scaling(scaled: Any, data: Dataset) -> None:
    """Raise RecipeError if a result's rows were standardised otherwise than these, and warn if only one of the two."""
    if scaled is not None and scaled != WITHHELD and data.scaling is not None:
        if not data.scaling.same(Scaling.from_plain(scaled)):
            raise RecipeError(
                "run(init=...): the result was trained on rows that were standardised differently; pass "
                "data=rows.standardise(like=...), or init=result.x if that is intended",
                "init",
            )
    elif (scaled is None) != (data.scaling is None):
        log.warning(
            "run(init=...): the result's rows were %s, but these are %s",
            *(("not standardised", "standardised") if scaled is None else ("standardised", "not")),
        )


def _tell_of_redrawn(problem: Problem) -> None:
    """Log a warning, once per module, if its weights do not look freshly drawn and ``start`` is not set."""
    joint = problem.joint if isinstance(problem, SharedNetwork) else problem
    if not isinstance(joint, NetworkProblem) or joint.family.start is not None or joint.family.module in _told:
        return
    name = undrawn(joint.family.module)
    if name:
        _told.add(joint.family.module)
        log.warning(
            "Network(module): %s has values that its layer does not draw, so it was trained or initialised "
            "differently; "
            "the run starts from new weights drawn from the seed. Pass start='module' to start from the module's "
            "weights, or start='draw' to confirm the new weights",
            name,
        )


def _vector(init: Tensor, x0: Vec) -> Vec:
    if init.shape != x0.shape:
        raise RecipeError(
            f"run(init=...): x has {x0.numel()} parameters, but init has shape {list(init.shape)}", "init"
        )
    return init.detach().to(x0).clone()


def _finite(x: Vec) -> Vec:
    if not bool(torch.isfinite(x).all()):
        raise RecipeError("run(init=...): it contains numbers that are not finite", "init")
    return x


def _load_buffers(problem: Problem, floats: Tensor, ints: Tensor) -> None:
    mine = problem.buffers()
    sizes = [0, 0] if mine is None else [len(t) for t in mine]
    if [len(floats), len(ints)] != sizes:
        raise RecipeError(
            f"run(init=...): the result comes from another network: its buffers hold {len(floats)} floats and "
            f"{len(ints)} integers, yours {sizes[0]} and {sizes[1]}. To start from its parameters alone, pass "
            "init=result.x",
            "init",
        )
    if mine is not None:
        problem.load_buffers((floats.to(mine[0]), ints.to(mine[1])))
