"""A site's rows in a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def sql(connection: Any, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> dict[str, Any]:
    """The rows of a query, as columns [n] by name: ``Study({"Bern": sql(connection, query), ...})``.

    The rows' order does not matter to a study. Arguments and errors are those of `medley.datasets.sql`.
    """
    from ..datasets.readers.sql import table  # the whole room of data sets, which no study needs

    return table(connection, query, parameters, "statistics.sql(...)")
