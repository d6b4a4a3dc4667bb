"""FLamby with every method tuned: the command finds the league's methods from wherever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scripts import in_a_child

SCRIPT = Path(__file__).parents[2] / "papers" / "flamby" / "tuned.py"


@pytest.mark.slow
def test_the_command_knows_the_leagues_methods(tmp_path: Path) -> None:
    asked = [str(SCRIPT), "--methods", "Nobody", "--out", str(tmp_path / "runs.jsonl")]
    script = f"""
import contextlib, os, runpy, sys
os.chdir({str(tmp_path)!r})
for name, module in list(sys.modules.items()):
    if "/papers/" in (getattr(module, "__file__", None) or ""):
        del sys.modules[name]
sys.argv, sys.path = {asked!r}, [{str(SCRIPT.parent)!r}, *(p for p in sys.path if "/papers" not in p)]
with contextlib.redirect_stderr(sys.stdout):
    try:
        runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
    except SystemExit as e:
        print("ended with", e.code)
"""
    said = in_a_child(script)
    assert "ended with 2" in said
    assert "Nobody" in said
    assert "FedNorton" in said
