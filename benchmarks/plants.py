"""Bugs planted on purpose: each is a change of one place in a copy of the source, with the tests that must fail then.

    python benchmarks/plants.py                     # compares with benchmarks/plants.json
    python benchmarks/plants.py --only seed --write
    python benchmarks/plants.py --broad             # with all tests of the room, to look for a test of a new plant

A plant is caught if a named test fails with it, and missed if all pass. A plant whose text is not in the source any
more is stale, which is an error as well. Nothing is changed but the copy. Tests that need Flower run in .venv-deploy,
if it is there. All plants take about eight minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".json")
sys.path.insert(0, str(Path(__file__).parent))

from planted_bugs import PLANTS, Plant  # noqa: E402


class Outcome(NamedTuple):
    """What became of a plant: "caught", "missed", "stale", "absent" without the environment, or "broken"."""

    word: str
    text: str = ""


def outcome(plant: Plant, folder: Path, broad: bool) -> Outcome:
    """Plant the bug in a copy of the source, and run its tests."""
    copy = folder / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(HOME / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "medley" / plant.file
    source = path.read_text(encoding="utf-8")
    if source.count(plant.old) != 1:
        return Outcome("stale", f"{plant.file} has {plant.old!r} {source.count(plant.old)} times")
    path.write_text(source.replace(plant.old, plant.new), encoding="utf-8")
    python = HOME / (".venv-deploy" if plant.deployed else ".venv") / "bin" / "python"
    if not python.exists():
        python = Path(sys.executable)
        if plant.deployed:
            return Outcome("absent", "needs .venv-deploy")
    tests = sorted({name.partition("::")[0] for name in plant.tests}) if broad else plant.tests
    done = run(python, copy, tests)
    words = {0: "missed", 1: "caught"}
    return Outcome(words.get(done.returncode, "broken"), done.stdout[-2000:] + done.stderr[-2000:])


def run(python: Path, source: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """pytest on these tests, with the package in ``source``; it stops at the first failure."""
    command = [str(python), "-m", "pytest", "-x", "-m", "", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="plants whose name has this text")
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--broad", action="store_true", help="run all tests of the named files")
    args = parser.parse_args()
    before = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for plant in PLANTS:
            if args.only in plant.name:
                word, text = outcome(plant, Path(folder), args.broad)
                results[plant.name] = word
                print(f"{word}: {plant.name}", flush=True)
                if word in ("stale", "broken"):
                    print(text)
    count = {word: list(results.values()).count(word) for word in dict.fromkeys(results.values())}
    print(", ".join(f"{n} {word}" for word, n in count.items()))
    if args.write:
        table = {plant.name: results.get(plant.name, before.get(plant.name, "")) for plant in PLANTS}
        TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    wrong = [name for name, word in results.items() if word != "absent" and word != before.get(name)]
    if wrong:
        print(f"not as in {TABLE.name}: {'; '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
