"""Rows as a pandas DataFrame, if pandas is installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any


def framed(rows: Iterable[Mapping[str, Any]], call: str, error: type[Exception]) -> Any:
    """A DataFrame of these rows. Raises ``error``, which names ``call``, if pandas is not installed."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as e:
        raise error(f"{call} makes a pandas DataFrame; pip install pandas") from e
    return pandas.DataFrame([dict(row) for row in rows])
