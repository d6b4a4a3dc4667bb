"""The short form of `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


def soak(*words: str) -> str:
    done = subprocess.run([sys.executable, str(SOAK), *words], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.slow
@pytest.mark.timed  # moments are drawn from the time that a whole run takes
@pytest.mark.timeout(900)
def test_ten_runs_killed_at_random_moments_resume_to_identical_digests() -> None:
    assert "10 of 10 runs resumed to identical digests" in soak("kills", "--count", "10")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("on", ["processes", "ray"])
def test_three_thousand_rounds_leave_memory_flat(on: str) -> None:
    if on == "ray" and find_spec("ray") is None:
        pytest.skip("ray is not installed")
    assert "a round (95 % interval)" in soak("memory", "--on", on, "--rounds", "3000")


def told(script: str, *words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(SOAK.with_name(script)), *words], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_minute_and_a_half_of_random_federations_agree_however_they_run() -> None:
    found = told("differential.py", "--minutes", "1.5")
    assert found["finished"] >= 10
    assert found["killed"] == found["stopped"] >= found["finished"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_comparisons_tunings_and_commands_survive_eight_kills() -> None:
    assert told("kills.py", "--count", "8")["kills"] >= 8
