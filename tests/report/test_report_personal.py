"""The section on each client, and the figure that methods with models of clients' own are compared by."""

from __future__ import annotations

import re

import pytest

import medley as md
from medley import report
from medley.report.numbers import final, primary
from medley.report.sections.comparison import Comparison
from medley.report.sections.personal import personal
from support.made_up_runs import run


def made(method: str, seed: int, own: list[float], server: list[float] | None, new: int = -1) -> md.Result:
    """A run whose clients have these accuracies."""
    r = run(method, seed)
    rows = [
        {"round": 3, "client": i, "rows": 10, "loss": 1.0, "test_rows": 4, "accuracy": a} for i, a in enumerate(own)
    ]
    for i, row in enumerate(rows):
        row["took_part"] = int(i != new)
        if server is not None:
            row |= {"server_loss": 2.0, "server_accuracy": server[i]}
    r.clients = [{"round": 1, "client": 0, "rows": 10, "loss": 9.0}, *rows]
    if server is not None:
        r.summary |= {"personal_accuracy": sum(own) / len(own)}
    return r


OWN = [made("Own", s, [0.9, 0.7, 0.2], [0.1, 0.2, 0.3], new=2) for s in (0, 1)]
BASE = [made("Base", s, [0.5, 0.5, 0.5], None) for s in (0, 1)]


def cells(results: list[md.Result]) -> list[list[str]]:
    table = personal(Comparison.of(results, None))[0]
    return [[getattr(cell, "text", cell) for cell in row] for row in table.rows]  # type: ignore[attr-defined]


def test_gains_are_over_the_base_method_client_by_client():
    assert cells([*BASE, *OWN]) == [
        ["Base", "50.0%", "50.0%", "–", "–", "–"],
        ["Own", "60.0%", "20.0%", "+10.0%", "4 of 6", "20.0%"],
    ]


def test_alone_gains_are_over_the_servers_model():
    assert cells(OWN) == [["Own", "60.0%", "20.0%", "+40.0%", "4 of 6", "20.0%"]]


def test_runs_of_one_model_for_all_have_no_such_section():
    assert personal(Comparison.of(BASE, None)) == []
    assert "Each client" not in report.page(BASE)


def test_clients_models_are_compared_with_the_servers_where_all_use_that():
    assert primary([*BASE, *OWN]) == "personal_accuracy"
    assert primary(BASE) == "accuracy"
    assert final(OWN[0], "personal_accuracy") == pytest.approx(0.6)
    assert final(BASE[0], "personal_accuracy") == final(BASE[0], "accuracy")


def test_the_page_draws_each_client():
    text = report.page([*BASE, *OWN])
    section = text[text.index("Each client") :]
    assert "Gain over Base of each client" in section
    assert len(re.findall("<circle", section[: section.index("</section")])) >= 6 * 2 + 6
