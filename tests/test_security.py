"""The table of attacks on the page about security: its commands are there, and find as many cases as it says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| .+ \| (\d+) \| (\d+) \| `pytest (tests/[^`]+)` \|$", re.MULTILINE)
ROWS = [(paths.split(), int(cases)) for cases, _, paths in ROW.findall((ROOT / "docs" / "security.md").read_text())]


def test_every_command_of_the_table_names_tests_that_are_there() -> None:
    assert len(ROWS) == 24
    for paths, _ in ROWS:
        assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_commands_find_as_many_cases() -> None:
    """Those of a deployment where Flower is installed."""
    rows = [(p, n) for p, n in ROWS if find_spec("flwr") or not any("tests/deploy" in path for path in p)]
    named = sorted({path for paths, _ in rows for path in paths})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    there = Counter({path: int(n) for path, n in re.findall(r"^(tests/\S+): (\d+)$", done.stdout, re.MULTILINE)})
    for paths, cases in rows:
        found = sum(n for path, n in there.items() if path.startswith(tuple(paths)))
        assert found >= cases, (paths, found)


NAMED = re.compile(r"^\| (.+) \| `tests/statistics/(\w+)\.py` \|$", re.MULTILINE)


def test_the_attacks_on_studies_are_those_of_the_tests() -> None:
    pytest.importorskip("formulaic")
    named = NAMED.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) >= 20
    for module in {module for _, module in named}:
        tried = runpy.run_path(str(ROOT / "tests" / "statistics" / f"{module}.py"))["ATTACKS"]
        assert [attack for attack, of in named if of == module] == [*tried]
