"""The tables of docs/privacy.md against the code. Run as a script, this file prints the tables of methods."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

import medley as md
from medley.contract.algorithm import Algorithm
from support.methods import METHODS

pytest.importorskip("dp_accounting")

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")

REASONS = {
    "runs": "taken",
    "takes late replies": "late replies belong to another round's draw",
    "chooses whom it asks": "it chooses whom it asks",
    "which clients": "it reads which clients take part, or how many",
    "replies one by one|reads one by one": "it reads replies one by one",
    "of their rows outside": "clients read gradients, curvature, losses or labels outside local steps",
    "descend twice": "clients descend twice in one exchange, but the account has one descent",
    "method's own loss": "clients train on a loss that has no gradient for each row",
    "correct gradients": "clients correct gradients on rows",
    "clients' own": "parameters of the clients' own, which the account does not know",
}
"""What an error says, and what the page says of it."""


def federations() -> Iterator[md.Federation]:
    data, how = md.datasets.digits().take(60, 20), md.scenarios.Pace(steps=1)
    for problem in (md.problems.Softmax(mu=1e-2), md.problems.Network(md.models.mlp(64, 10, (8,)))):
        yield md.Federation(problem, data=data, partition=md.partitions.IID(3), weights="uniform", pace=how)


def verdict(method: Algorithm[Any, Any], fed: md.Federation, unit: Literal["client", "row"]) -> str:
    try:
        md.run(md.Private(method, noise=0.0, clip=1e6, unit=unit), fed, rounds=1, progress=False)
    except md.Unsupported as error:
        (reason,) = (reason for words, reason in REASONS.items() if re.search(words, str(error)))
        return reason
    return REASONS["runs"]


@cache
def verdicts(unit: Literal["client", "row"]) -> dict[str, tuple[str, ...]]:
    """Methods by reason, of those that run on a simple federation as they are."""
    out: dict[str, set[str]] = {}
    feds = tuple(federations())
    for method in METHODS:
        if isinstance(method, md.Private) or "-" in method.name:  # rules that wrap a method: see the text
            continue
        name = 'FedNorton(flows="client")' if getattr(method, "flows", "") == "client" else method.name
        for fed in feds:
            try:
                md.run(method, fed, rounds=1, progress=False)
            except md.MedleyError:
                continue
            out.setdefault(verdict(method, fed, unit), set()).add(name)
            break
    return {reason: tuple(sorted(names)) for reason, names in out.items()}


def table(unit: Literal["client", "row"]) -> list[str]:
    """The lines of the page's table."""
    order = [reason for reason in REASONS.values() if verdicts(unit).get(reason)]
    return [f"| {reason} | {', '.join(verdicts(unit)[reason])} |" for reason in order]


@pytest.mark.slow
def test_the_page_has_the_tables_of_methods() -> None:
    # In a process of its own: annotations, which tests check, would refuse hidden ids before the method's error.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    script = [sys.executable, __file__]
    done = subprocess.run(script, capture_output=True, text=True, encoding="utf-8", env=env, check=True)
    tables = done.stdout.strip().split("\n\n")
    assert [len(re.findall(r"\n", t)) for t in tables] == [6, 7]
    assert all(t in PAGE for t in tables)


def test_the_page_has_the_certainty_of_a_guess() -> None:
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in PAGE.splitlines() if line.startswith("| ")}
    epsilons = [float(cell) for cell in rows["ε"]]
    assert [float(cell.rstrip("% ")) for cell in rows["right guesses at most"]] == pytest.approx(
        [100 / (1 + math.exp(-e)) for e in epsilons], abs=0.06
    )
    assert [float(cell) for cell in rows["odds change by a factor of at most"]] == pytest.approx(
        [math.exp(e) for e in epsilons], rel=0.03
    )


if __name__ == "__main__":  # prints the tables for the page
    for which in ("client", "row"):
        print(f'| `unit="{which}"` | methods |', "|---|---|", *table(which), "", sep="\n")  # type: ignore[arg-type]
