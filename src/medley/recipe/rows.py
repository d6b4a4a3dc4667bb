"""The table [data]: reads a data set, then changes it by the keys of `STEPS`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..contract.errors import RecipeError
from ..datasets import Dataset
from . import schema
from .build import Builder
from .schema import STEPS
from .user_code import is_own


def read(build: Builder, table: Mapping[str, Any]) -> tuple[Dataset, float]:
    """The data set of [data], and the fraction of its training rows to use for validation.

    Raises RecipeError for wrong keys and values, and BadData for data that cannot be used.
    """
    table = dict(table)
    name = table.pop("kind") if "kind" in table else table.pop("name", None)
    reader = build.pick("data.name", name, schema.readers(schema.only_name(name)))
    parameters = inspect.signature(reader).parameters
    steps = {k: table.pop(k) for k in STEPS if k in table and k not in parameters}
    build.check_keys("data", table, parameters, also=("name", *STEPS))
    for key, value in steps.items():
        if key == "test" and isinstance(value, float):
            raise build.wrong("data.test", value, f"a number of test rows to keep; split = {value} draws a test set")
        build.typed(f"data.{key}", value, STEPS[key])
    data = build.call("data", reader, table if is_own(name) else build.with_paths(table))
    if not isinstance(data, Dataset):
        raise RecipeError(f"{build.source}: data.name = {name!r} gives a {type(data).__name__}, not a Dataset", "name")
    return _changed(build, data, steps), steps.get("validation", 0.0)


def _changed(build: Builder, data: Dataset, steps: Mapping[str, Any]) -> Dataset:
    if "split" in steps:
        if data.X_test is not None:
            raise RecipeError(
                f"{build.source}: data.split: {data.name} has a test set already; leave split out", "split"
            )
        split = steps["split"]
        data = build.call("data.split", data.split, split if isinstance(split, dict) else {"test": split})
    if "train" in steps or "test" in steps:
        data = data.take(steps.get("train"), steps.get("test"))
    if "pool" in steps:
        data = data.pool(steps["pool"])
    if steps.get("standardise"):
        data = data.standardise()
    if steps.get("flatten"):
        data = data.flatten()
    return data
