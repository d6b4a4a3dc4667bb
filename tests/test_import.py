"""Modules that `import medley` and a first run load; a module that isn't loaded takes no time."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from support.pairs import quick
from support.scripts import in_a_child

SCRIPT = """
import gc, sys
import medley as md
assert not {"torch", "numpy"} & {*sys.modules}
import torch
torchs = set(sys.modules)
md.run
assert gc.isenabled() and not hasattr(md, "gc")
print(*sorted({*sys.modules} - torchs))
fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
md.run(md.FedAvg(), fed, rounds=1, progress=False)
print(*sorted({*sys.modules} - torchs))
"""


@pytest.mark.slow
def test_heavy_libraries_wait_until_they_are_needed():
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    imported, ran = ({name for name in line.split()} for line in out.splitlines())
    heavy = {"sklearn", "pandas", "matplotlib", "rich", "typer", "click", "ray", "flwr", "tensorboard", "torchvision"}
    heavy |= {"scipy.stats", "scipy.sparse", "scipy.special", "scipy.optimize", "torch._dynamo", "torch._inductor"}
    assert imported & heavy == set()
    assert ran & heavy == set()


@pytest.mark.slow
def test_an_import_that_fails_leaves_the_search_for_garbage_on():
    script = "import gc, sys\nsys.modules['medley.experiments.tune'] = None\n"
    script += "try: from medley import run\nexcept ImportError: print(gc.isenabled())"
    assert in_a_child(script) == "True\n"


@pytest.mark.slow
def test_the_commands_and_the_battery_need_no_extra():
    absent = ("Crypto", "cryptography", "flwr", "ray", "pandas", "PIL", "datasets")
    script = f"import sys\nof_them = [name for name in sys.modules if name.split('.')[0] in {absent}]\n"
    script += f"sys.modules.update(dict.fromkeys([*{absent}, *of_them]))\n"
    script += "import medley.cli, medley.flower, medley.testing as t, medley as md\n"
    script += "print('secure sums' in [c.name for c in t.checks(md.FedAvg())], hasattr(md.secure, 'SecureSum'))"
    assert in_a_child(script) == "False True\n"


@pytest.mark.parametrize("command", quick(2, ["-h", "run -h", "deploy run --help", "--version"]))
def test_help_comes_without_torch(command: str) -> None:
    script = f"import sys\nfrom medley.cli import app\ntry: app({command.split()})\n"
    script += "except SystemExit as e: assert not e.code and not {'torch', 'numpy'} & {*sys.modules}, e.code"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_a_completion_comes_without_what_checks_values() -> None:
    words = {"_MEDLEY_COMPLETE": "complete_bash", "COMP_WORDS": "medley deploy run --", "COMP_CWORD": "3"}
    script = f"import os, sys; os.environ.update({words}); sys.argv = ['medley']\nfrom medley.cli import app\n"
    script += "try: app()\nexcept SystemExit as e: assert not {'pydantic', 'torch', 'numpy'} & {*sys.modules}, e.code"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"--timeout", "--help"} <= {*done.stdout.split()}


@pytest.mark.parametrize(
    ("end", "code", "said"),
    quick(1, [("app(['list'])", 130, "stopped by Ctrl-C\n"), ("from medley import run", -signal.SIGINT, None)]),
)
def test_ctrl_c_while_torch_is_imported_is_one_sentence(end: str, code: int, said: str | None) -> None:
    script = f"""
import sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from medley.cli import app
{end}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr == said if said else done.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.slow
@pytest.mark.parametrize("end", quick(1, ["md.__all__", "dir(md)"]))
def test_public_names_are_there_before_the_first_is_used(end: str) -> None:
    out = in_a_child(f"import medley as md\nprint(*{end})").split()
    assert {"run", "FedAvg", "datasets", "Result"} <= {*out}
    assert in_a_child("from medley import *\nprint(FedAvg.__name__, scenarios.__name__)") == "FedAvg medley.scenarios\n"


def test_ctrl_c_while_the_commands_are_imported_is_too(monkeypatch: Any, capsys: Any) -> None:
    class CtrlC:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "medley.cli.watch":
                raise KeyboardInterrupt

    importlib.import_module("medley.cli")
    monkeypatch.delitem(sys.modules, "medley.cli")
    monkeypatch.delitem(sys.modules, "medley.cli.watch")
    monkeypatch.setattr(sys, "meta_path", [CtrlC(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["/usr/bin/medley", "run"])
    with pytest.raises(SystemExit, match="130"):
        importlib.import_module("medley.cli")
    assert capsys.readouterr().err == "stopped by Ctrl-C\n"
