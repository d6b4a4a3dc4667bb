"""The page of methods on nodes: it has every method, and what it says of each is so."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import medley as md
from medley.contract.algorithm import Algorithm
from support.methods import METHODS
from support.scripts import BENCHMARKS, loaded

pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return loaded("deployed_methods.py", BENCHMARKS)


def lines(pages: ModuleType) -> list[str]:
    text = pages.PAGE.read_text(encoding="utf-8")
    return text[text.index(pages.HEAD) + len(pages.HEAD) :].splitlines(keepends=True)


def test_the_page_has_every_run_over_tls_and_each_is_equal(pages: ModuleType) -> None:
    text = pages.PAGE.read_text(encoding="utf-8").partition(pages.REAL_HEAD)[2].partition("\n\n")[0]
    there = [line.strip("| ").split(" | ") for line in text.splitlines()]
    assert [row[:3] for row in there] == [[*key, pages.SAME] for key in pages.REAL]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("deployed")
def test_a_run_over_tls(pages: ModuleType) -> None:
    """Rows of two inputs, buffers, and a memory at each node."""
    key = ("SCAFFOLD", "images and numbers")
    ((*run, seconds),) = pages.over_tls([key])
    assert run == [*key, pages.SAME]
    assert float(seconds) > 0


def test_the_page_has_every_method_and_each_is_equal(pages: ModuleType) -> None:
    there = [line.split(" | ") for line in lines(pages)]
    assert [row[0].removeprefix("| ") for row in there] == [pages.named(m) for m in METHODS]
    assert all(row[2] == f"{pages.SAME} |\n" for row in there)


def test_a_method_of_the_page(pages: ModuleType) -> None:
    """FedPer's nodes keep their own parameters; `make test-deploy` looks at every method."""
    at = next(k for k, m in enumerate(METHODS) if isinstance(m, md.FedPer))
    assert pages.line(pages.row(METHODS[at])) == lines(pages)[at]


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(METHODS)), ids=lambda k: METHODS[k].name)
def test_every_method_of_the_page(at: int, pages: ModuleType) -> None:
    assert pages.line(pages.row(METHODS[at])) == lines(pages)[at]


def test_numbers_that_differ_are_not_equal(pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pages.on_nodes

    def other(path: Path, method: Algorithm[Any, Any], folder: Path) -> md.Result:
        found = honest(path, method, folder)
        found.x[0] += 1e-15
        return found

    monkeypatch.setattr(pages, "on_nodes", other)
    assert pages.row(md.FedAvg())[2].startswith("x differs by ")
