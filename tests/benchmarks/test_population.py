"""A million clients: what a run holds does not grow by objects a client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "population.py"


def memory(method: str, clients: int) -> float:
    command = [sys.executable, str(FILE), "--one", "--methods", method, "--clients", str(clients)]
    figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return float(figures["memory"])


@pytest.mark.slow
def test_a_million_clients_take_their_rows_and_a_few_numbers_each() -> None:
    """At most 800 bytes a client at the peak, of which rows, their copy and their order take 480."""
    mib = memory("SCAFFOLD", 10**6) - memory("SCAFFOLD", 100)
    assert mib < 800e6 / 2**20
