"""Commands of `papers/` and `benchmarks/` as modules, blocks of documents, and scripts in children without Medley."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType

PAPERS, BENCHMARKS = (Path(__file__).parents[2] / name for name in ("papers", "benchmarks"))


def loaded(path: str, folder: Path = PAPERS) -> ModuleType:
    """A file of ``folder`` as a module of its own, under a name with its folders: others are called ``run`` too."""
    name = f"{folder.name}_{path.removesuffix('.py').replace('/', '_')}"
    spec = importlib.util.spec_from_file_location(name, folder / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # data classes look for their module there
    spec.loader.exec_module(module)
    return module


def documented(page: str, heading: str) -> str:
    """The first python block below a heading of a page of ``docs/``, also of one that the tests of documents skip."""
    text = (PAPERS.parent / "docs" / page).read_text(encoding="utf-8")
    _, _, section = text.partition(f"# {heading}\n")
    return section.partition("```python\n")[2].partition("```")[0]


def in_a_child(script: str) -> str:
    """What a script prints in a fork of this process that has not imported Medley; a new one would import torch too."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*multi-threaded, use of fork\(\)", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            for name in [name for name in sys.modules if name.split(".")[0] == "medley"]:
                del sys.modules[name]
            with open(writes, "w") as out, contextlib.redirect_stdout(out):
                exec(script, {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writes)
    with open(reads) as out:
        printed = out.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, printed
    return printed
