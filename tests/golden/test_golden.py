"""Digests of runs against `digests.json`: a change that should not change what runs compute does not.

The digests hold for one processor and one version of torch and numpy; elsewhere these tests skip.
"""

from __future__ import annotations

import json

import pytest

import medley as md
from golden import digests
from medley.contract.algorithm import Algorithm

QUICK = ("FedAvg / network / ", "SHED / quadratics", "SCAFFOLD / softmax / ", "CFLAG.joint / network stream / local")
"""Beginnings of names; these runs take some ten seconds together."""


@pytest.fixture(scope="module")
def kept() -> dict[str, str]:
    """The digests in the file."""
    file = json.loads(digests.FILE.read_text())
    here = digests.machine()
    if file["machine"] != here:
        pytest.skip(f"digests.json is of {file['machine']}, and this machine is {here}; see CONTRIBUTING on digests")
    return dict(file["digests"])


def differing(kept: dict[str, str], names: tuple[str, ...]) -> list[str]:
    """Names of runs that begin with one of ``names`` and whose digest is not the one in the file."""
    found = [(name, run) for name, run in digests.runs() if name.startswith(names)]
    assert found
    return [name for name, run in found if kept.get(name) != digests.digest(run)]


def test_a_few_methods_compute_what_they_did(kept: dict[str, str]) -> None:
    assert differing(kept, QUICK) == []


@pytest.mark.slow
@pytest.mark.parametrize("method", [*digests.methods(), "demo"])
def test_every_method_computes_what_it_did(kept: dict[str, str], method: str) -> None:
    assert differing(kept, (f"{method} / ",)) == []


def test_every_public_method_has_digests() -> None:
    wrappers = {"Private", "Robust"}
    public = {k for k, v in vars(md).items() if isinstance(v, type) and issubclass(v, Algorithm)} - wrappers
    assert {name.split(" ")[0].split(".")[0] for name in digests.methods()} == public


def test_the_file_has_every_run_and_no_other(kept: dict[str, str]) -> None:
    assert kept.keys() == {name for name, _ in digests.runs()}
