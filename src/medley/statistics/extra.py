"""The packages of the extra `statistics`, each imported when it is first used."""

from __future__ import annotations

import importlib
from typing import Any

from ..contract import RecipeError
from ..runtime.versions import install


def needed(package: str) -> Any:
    """The module of one of the extra's packages. Raises RecipeError if the package is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise RecipeError(f"medley.statistics needs {package} ({e}): {install('statistics')}") from e
