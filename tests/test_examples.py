"""Every example runs as it stands, has at most 70 lines, and draws the picture that is beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NEEDS = {
    "frame": ["pandas"],
    "leakage": ["dp_accounting"],
    "privacy_price": ["dp_accounting"],
    "scans": ["nibabel", "pandas"],
    "secure_dropouts": ["cryptography", "Crypto"],
}
"""Extras of an example."""

DRAWN = sorted(path for path in FOLDER.glob("*.py") if path.with_suffix(".svg").exists())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", DRAWN, ids=[path.stem for path in DRAWN])
def test_an_example_draws_its_picture(path: Path, tmp_path: Path) -> None:
    if path.stem == "hospitals" and not os.environ.get("MEDLEY_DATA"):
        pytest.skip("MEDLEY_DATA is not set")
    for extra in NEEDS.get(path.stem, ()):
        pytest.importorskip(extra)
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / f"{path.stem}.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert "<title>" in picture


def test_examples_are_short_and_each_draws() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"demo"}
    assert scripts == {path.stem for path in DRAWN}
    assert len(DRAWN) >= 20
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 70 for path in DRAWN)
