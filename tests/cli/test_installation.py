"""Requirements against versions that are installed, and limits of a machine."""

from __future__ import annotations

import pytest

from medley.cli.installation import conflicts, extras, lacks, meets, parts
from medley.runtime.versions import install

WANTED = ["torch>=2.6", "numpy>=1.26", 'flwr<1.43,>=1.41; extra == "flower"', 'ray[tune]>=2.40; extra == "ray"']
HERE = {"torch": "2.13.0+cpu", "numpy": "1.26", "flwr": "1.42.3"}


def test_what_fits_is_no_conflict_and_a_missing_extra_none_either():
    assert conflicts(WANTED, lambda name: HERE.get(name, "")) == []
    rows = extras(WANTED, lambda name: HERE.get(name, ""))
    assert rows == {"flower": "flwr 1.42.3", "ray": f"no ray: {install('ray')}"}


@pytest.mark.parametrize(
    ("installed", "remedy"),
    [
        ({"flwr": "1.50.0"}, "pip install 'flwr<1.43,>=1.41'"),
        ({"flwr": "1.43"}, "medley-fl[flower] needs"),
        ({"torch": "2.5.1+cpu"}, "pip install 'torch>=2.6'"),
        ({"numpy": ""}, "numpy is not installed: pip install 'numpy>=1.26'"),
    ],
)
def test_a_version_out_of_range_is_named_with_its_remedy(installed, remedy):
    (line,) = conflicts(WANTED, lambda name: (HERE | installed).get(name, ""))
    assert line.startswith(next(iter(installed)))
    assert remedy in line


def test_requirements_are_taken_apart():
    assert parts("torch>=2.6") == ("torch", ">=2.6", "")
    assert parts('medley-fl[images,privacy]; extra == "dev"') == ("medley-fl", "", "dev")
    assert parts("tomli (>=2) ; python_version < '3.11'") == ("tomli", ">=2", "")
    assert meets("2.0", ">=2")
    assert meets("2", ">=2.0.0")
    assert not meets("2.0.0", "<2")
    assert meets("1.9.9rc1", "<2")
    assert meets("3", "!=3")  # not looked at


def test_what_a_machine_lacks():
    assert lacks(4096.0, 2, 2, "utf-8") == []
    assert lacks(None, 1, 1, "UTF8") == []
    memory, threads, signs = lacks(64.0, 8, 2, "ascii")
    assert "64 MiB free" in memory
    assert "--shm-size" in memory
    assert "OMP_NUM_THREADS=2" in threads
    assert "PYTHONUTF8=1" in signs
