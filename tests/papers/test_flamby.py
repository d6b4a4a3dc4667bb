"""FLamby with every method tuned: the command finds the league's methods from wherever it is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "papers" / "flamby" / "tuned.py"


def test_the_command_knows_the_leagues_methods(tmp_path: Path) -> None:
    asked = [sys.executable, str(SCRIPT), "--methods", "Nobody", "--out", str(tmp_path / "runs.jsonl")]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Nobody" in done.stderr
    assert "FedNorton" in done.stderr
