"""The cells of `datasets/test_doors.py` that do not hold yet: a line for each table and row, with its doors.

After a change of many cells, ``python tests/support/door_differences.py`` writes the lines anew. Read what it adds: a
cell that held before must go on holding.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_suffix(".txt")


def read() -> frozenset[tuple[str, str, str]]:
    """The cells in the file: table, row, door."""
    lines = [line.split(" | ") for line in FILE.read_text(encoding="utf-8").splitlines()]
    return frozenset((table, row, door) for table, row, doors in lines for door in doors.split("; "))


class Failures:
    """Collects the cells whose tests fail: test_labels[a row-a door] is the cell of these three."""

    def __init__(self) -> None:
        self.doors: dict[tuple[str, str], list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """See pytest."""
        if report.failed:
            test, _, cell = report.nodeid.partition("::test_")[2].partition("[")
            row, _, door = cell.removesuffix("]").rpartition("-")
            self.doors[test, row].append(door)


def write() -> None:
    """Run all cells with an empty file, and write those that fail."""
    FILE.write_text("")
    failures = Failures()
    tests = Path(__file__).parents[1] / "datasets" / "test_doors.py"
    pytest.main([str(tests), "-q", "--tb=no", "--no-summary", "-p", "no:cacheprovider"], plugins=[failures])
    lines = [f"{test} | {row} | {'; '.join(doors)}\n" for (test, row), doors in failures.doors.items()]
    FILE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write()
