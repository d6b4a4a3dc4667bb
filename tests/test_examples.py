"""Every example runs as it stands, has at most 60 lines, and draws the picture that is beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
DRAWN = sorted(path for path in FOLDER.glob("*.py") if path.with_suffix(".svg").exists())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", DRAWN, ids=[path.stem for path in DRAWN])
def test_an_example_draws_its_picture(path: Path, tmp_path: Path) -> None:
    if path.stem == "hospitals" and not os.environ.get("MEDLEY_DATA"):
        pytest.skip("MEDLEY_DATA is not set")
    if path.stem == "frame":
        pytest.importorskip("pandas")
    if path.stem == "leakage":
        pytest.importorskip("dp_accounting")
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / f"{path.stem}.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert "<title>" in picture


def test_examples_are_short() -> None:
    wanted = {
        "own_model",
        "personal_heads",
        "hospitals",
        "slow_phones",
        "adapters",
        "frame",
        "text",
        "leakage",
        "circuit",
    }
    assert wanted <= {path.stem for path in DRAWN}
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 60 for path in DRAWN)
