"""The section on each client, and the figure that methods with models of clients' own are compared by."""

from __future__ import annotations

import re

import pytest

import medley as md
from medley import report
from medley.report.figures import Dots, strip
from medley.report.numbers import final, primary
from medley.report.sections.comparison import Comparison
from medley.report.sections.curves import curves
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
    table = re.sub(r"<svg.*?</svg>", "", personal(Comparison.of(results, None))[0].split("<tbody>")[1])
    return [re.findall(r">([^<>]+)</(?:td|span)>", row) for row in table.split("</tr>")[:-1]]


def test_gains_are_over_the_base_method_client_by_client():
    assert cells([*BASE, *OWN]) == [
        ["Base", "50.0 %", "–", "–", "–"],
        ["Own", "60.0 %", "+20.0 pp", "2 of 3", "20.0 %"],
    ]


def test_alone_gains_are_over_the_servers_model():
    assert cells(OWN) == [["Own", "60.0 %", "+50.0 pp", "2 of 3", "20.0 %"]]


def test_a_method_has_one_figure_in_every_table():
    """Clients of 4, 40 and 400 test rows: a mean over clients would be another figure."""
    runs = [
        *(made("Base", s, [0.5, 0.1, 0.7], None) for s in (0, 1)),
        *(made("Own", s, [0.9, 0.7, 0.8], [0.1, 0.2, 0.3]) for s in (0, 1)),
    ]
    for r in runs:
        for row, n in zip(r.clients[1:], (4, 40, 400), strict=True):
            row["test_rows"] = n
        mean = sum(row["test_rows"] * row["accuracy"] for row in r.clients[1:]) / 444
        r.summary |= {"personal_accuracy": mean} if r.method == "Own" else {}
        r.history[-1]["accuracy"] = mean if r.method == "Base" else 0.1
    text = report.page(runs)
    assert [row[1] for row in cells(runs)] == ["64.4 %", "79.2 %"]
    results = text.split("<h2>Results</h2>")[1].split("</section>")[0]
    assert [f"<b>{v}</b>" in results or f"<td>{v}</td>" in results for v in ("64.4 %", "79.2 %")] == [True, True]
    ends = text.split("<h2>Learning curves</h2>")[1].split("</figure>")[0]
    assert "Base ends at 64.4 %; Own ends at 79.2 %" in ends


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


def with_curve(r: md.Result, column: str, values: list[float]) -> md.Result:
    """The run with a column in the rows of every other round, as clients_every=2 gives them."""
    for row, value in zip(r.history[::2], values, strict=False):
        row[column] = value
    return r


def drawn(results: list[md.Result]) -> list[str]:
    blocks = curves(Comparison.of(results, None))
    return re.findall(r"<svg.*?</svg>(?=</figure>)", "".join(blocks), re.DOTALL)


def test_curves_are_of_the_models_in_use():
    own = [with_curve(made("Own", s, [0.9, 0.7], [0.1, 0.2]), "personal_accuracy", [0.1, 0.5, 0.8]) for s in (0, 1)]
    figures = drawn([*BASE, *own])
    assert {re.search("<title>(.*?) over", f)[1] for f in figures} == {  # type: ignore[index]
        "accuracy of clients&#x27; models",
        "loss of clients&#x27; models",
    }
    # The base method's curve is that of the server's model, which its clients use.
    assert {'class="m0"', 'class="m1"'} <= set(re.findall(r'class="m\d"', figures[0]))
    assert "server&#x27;s model over" not in "".join(figures)
    assert "A single point" not in report.page([*own])


def test_models_measured_at_the_end_only_are_a_point_and_no_flat_line():
    (first, *_) = drawn([*BASE, *OWN])
    lines = dict(re.findall(r'data-name="(\w+)"><path d="(M[^"]+)" style="fill:none', first))
    assert (len(lines["Base"].split(" ")), len(lines["Own"].split(" "))) == (31, 1)
    assert "Own ends at 60.0 %" in first
    assert "A single point: the models were measured only at the end; run(clients_every=5)" in report.page(
        [*BASE, *OWN]
    )


def test_gains_below_zero_stay_on_their_axis():
    svg = str(strip([Dots("A name", 0, [-0.3, 0.4])], title="Gains", x="points"))
    assert min(float(x) for x in re.findall(r'<circle cx="([\d.]+)"', svg)) > 20 + 6.1 * len("A name")
