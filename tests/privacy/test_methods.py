"""The list of methods in docs/privacy.md against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley.contract.algorithm import Algorithm
from support.methods import METHODS

pytest.importorskip("dp_accounting")


def names(method: Algorithm[Any, Any]) -> str:
    """The method as the page writes it."""
    return 'FedECADO(flows="client")' if getattr(method, "flows", "") == "client" else method.name


def test_the_page_names_the_methods_that_run() -> None:
    """Of the methods that run on this federation as they are, those run under Private that the page names."""
    data, how = md.datasets.digits().take(60, 20), md.scenarios.Pace(steps=1)
    fed = md.Federation(
        md.problems.Softmax(mu=1e-2), data=data, partition=md.scenarios.IID(3), weights="uniform", pace=how
    )
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    said = set(re.findall(r"[\w=()\"]+", page.partition("with one weight for all clients")[2].partition("are such")[0]))
    runs, refused = set(), set()
    for method in METHODS:
        if isinstance(method, md.Private):
            continue
        try:
            md.run(method, fed, rounds=1, progress=False)
        except md.Unsupported:
            continue
        try:
            md.run(md.Private(method, noise=0.0, clip=1e6), fed, rounds=1, progress=False)
            runs.add(names(method))
        except (md.Unsupported, TypeError):  # TypeError: annotations, which tests check, refuse hidden ids first
            refused.add(names(method))
    assert (runs - said, refused & said) == (set(), set())
    assert len(runs) > 15
