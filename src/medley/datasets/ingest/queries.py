"""The queries by which rows were read, for whoever has to say so: a node's record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)


@contextmanager
def collected_queries() -> Iterator[list[str]]:
    """The queries that are asked in this context, each with the values of its placeholders."""
    queries = list[str]()
    token = _collected.set(queries)
    try:
        yield queries
    finally:
        _collected.reset(token)


def add_query(query: str, parameters: Any) -> None:
    """Note a query, if someone asks for it."""
    queries = _collected.get()
    if queries is not None:
        queries.append(f"{query}\n{parameters!r}" if parameters else query)
