"""Golden runs: a change that should not change what runs compute does not, to rounding. See `digests.py`."""

from __future__ import annotations

import json

import pytest

import medley as md
from golden import digests
from medley.contract.algorithm import Algorithm

QUICK = ("FedAvg / network / ", "SHED / quadratics", "SCAFFOLD / softmax / ", "CFLAG.joint / network stream / local")
"""Beginnings of names; these runs take some ten seconds together."""


def differing(names: tuple[str, ...]) -> list[str]:
    """What `digests.compare` says of the runs that begin with one of ``names``."""
    found = [(name, run) for name, run in digests.runs() if name.startswith(names)]
    assert found
    return list(digests.compare(found))


def test_a_few_methods_compute_what_they_did() -> None:
    assert differing(QUICK) == []


@pytest.mark.slow
@pytest.mark.parametrize("method", [*digests.methods(), "demo"])
def test_every_method_computes_what_it_did(method: str) -> None:
    assert differing((f"{method} / ",)) == []


def test_every_public_method_has_values() -> None:
    wrappers = {"Private", "Robust"}
    public = {k for k in md.__all__ if isinstance(v := getattr(md, k), type) and issubclass(v, Algorithm)} - wrappers
    assert {name.split(" ")[0].split(".")[0] for name in digests.methods()} == public


def test_the_files_have_every_run_and_no_other() -> None:
    names = [name for name, _ in digests.runs()]
    values = json.loads(digests.VALUES.read_text())
    assert list(values) == list(dict.fromkeys(name.rsplit(" / ", 1)[0] for name in names))
    ways = {f"{line} / {way}" for line, found in values.items() for way in found}
    assert ways <= set(names)
    assert all(digests.entry(values, name) is not None for name in names)


def test_other_bits_are_told_where_they_were_noted() -> None:
    run = next((name, run) for name, run in digests.runs("FedAvg") if name == "FedAvg / softmax / local")
    word = digests.reading(run[1]).word
    assert list(digests.compare([run], {run[0]: word})) == []
    (said,) = digests.compare([run], {run[0]: "0" * 32})
    assert said.endswith("other bits than were noted")


def test_values_bear_rounding_and_nothing_more() -> None:
    word, values, counts, tolerance = "4f", (2.0, 0.5, -0.25, 1.0, 0.0, 0.7), (3, 10, 20), 1e-6
    kept = [*values, *counts]
    assert digests.Reading("other bits", values, counts, tolerance).agrees(kept)
    assert digests.Reading(word, (2.0 + 1e-7, *values[1:]), counts, tolerance).agrees(kept)
    for k in range(6):
        other = tuple(v + 1e-5 * (i == k) for i, v in enumerate(values))
        assert not digests.Reading(word, other, counts, tolerance).agrees(kept)
    assert not digests.Reading(word, values, (3, 10, 21), tolerance).agrees(kept)
    assert not digests.Reading("Unsupported").agrees(kept)
    assert digests.Reading("Unsupported").agrees("Unsupported")
