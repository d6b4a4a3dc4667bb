"""Commands of `papers/` as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PAPERS = Path(__file__).parents[2] / "papers"


def loaded(path: str) -> ModuleType:
    """A file of `papers/` as a module of its own, under a name with its folders: others are called ``run`` too."""
    spec = importlib.util.spec_from_file_location(f"papers_{path.removesuffix('.py').replace('/', '_')}", PAPERS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # data classes look for their module there
    spec.loader.exec_module(module)
    return module
