"""The packages of the extra `statistics`, each imported when it is first used."""

from __future__ import annotations

import html
import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from ..contract import RecipeError
from ..contract.explained import Explained
from ..runtime.versions import install


class InNotebooks(Explained):
    """Base of a study's results: print and a notebook show their table, or the summary of those without one, and in a
    line how they may be pooled.

    ``pooling`` has all of that: ``.figures`` and ``.left``; see `medley.statistics.pooling`.
    """

    _pooled: Callable[[], Any] | None = None
    _disclosed: Callable[[], Any] | None = None

    @cached_property
    def pooling(self) -> Any:
        """How the figures may be pooled, and what left the sites; None if no study made the result."""
        return self._pooled() if self._pooled else None

    @cached_property
    def disclosure(self) -> Any:
        """The bits that had left when the study made the result, as `Study.disclosure` has them."""
        return self._disclosed() if self._disclosed else None

    def __str__(self) -> str:
        me: Any = self
        return str(me.frame().to_string() if me._is_table else me.summary()) + self.pooled_line()

    def _repr_html_(self) -> str:
        me: Any = self
        table = me.frame().to_html() if me._is_table else f"<pre>{html.escape(me.summary())}</pre>"
        return str(table) + (f"<p>{html.escape(self.pooled_line().strip())}</p>" if self.pooling else "")

    def pooled_line(self) -> str:
        """How the result may be pooled, after the end of a line; empty if no study has made it."""
        return f"\n{self.pooling.line}" if self.pooling else ""

    _is_table = False


def needed(package: str) -> Any:
    """The module of one of the extra's packages. Raises RecipeError if the package is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise RecipeError(f"medley.statistics needs {package} ({e}): {install('statistics')}") from e
