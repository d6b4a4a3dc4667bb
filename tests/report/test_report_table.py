from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from medley.experiments.board import Board
from medley.report import aggregate, markdown, page, paired, rows, table
from medley.report.table import caption, told_apart
from medley.report.units import count, duration, nbytes, number, percent, plus_minus
from medley.storage.result import Result
from support.made_up_runs import board, run


def printed(results: list[Result], **kwargs: Any) -> str:
    console = Console(width=220)
    with console.capture() as got:
        console.print(table(results, **kwargs))
    return got.get()


def test_rows_carry_the_numbers() -> None:
    results = board(3)
    a, b, c = rows(results, "A")
    s = aggregate(results)[1]
    assert (b["accuracy"], b["accuracy_half"], b["accuracy_n"]) == (s["accuracy"].mean, s["accuracy"].half, 3)
    assert (b["difference"], b["wins"], b["base"]) == (paired(results)[0].diff.mean, 3, "A")
    assert (c["seeds"], c["used"], c["difference_n"]) == (3, 2, 2)
    assert math.isnan(a["difference"])
    assert rows(results, "B")[0]["difference"] == pytest.approx(-b["difference"])


def test_the_terminal_shows_every_method_and_how_it_ended() -> None:
    text = printed(board(3))
    assert "diverged after round 7 on 1 of 3 seeds" in text
    assert "against A" in text
    assert "30.0 kB" in text
    assert "27.0 kB" in text
    assert "2 to 3 finished seeds" in text
    lone = printed([run()])
    assert "One seed: no intervals" in lone
    assert "±" not in lone.split("One seed")[0]
    assert "against" not in lone
    assert "Figures of the last evaluation." in lone
    assert "No run finished." in printed([run(died=True)])


def test_names_are_not_markup() -> None:
    text = printed([run("[red]x[/red]", s) for s in range(2)])
    assert "[red]x[/red]" in text


def test_markdown_is_a_table_whatever_the_names() -> None:
    text = markdown([run("a|b\n<i>", s) for s in range(2)] + [run("B", s) for s in range(2)])
    lines = text.split("\n\n")[0].splitlines()
    assert len(lines) == 4
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "a\\|b &lt;i>" in lines[2]


def test_without_accuracy_the_loss_leads() -> None:
    head = markdown(board(accuracy=False)).splitlines()[0]
    assert "accuracy" not in head
    assert head.startswith("| method | loss | against A |")


def test_bold_is_the_best_and_its_equals() -> None:
    results = board(3, noise=0.001)
    assert told_apart(results, "accuracy") == {"B"}
    for r in results:
        if r.method == "A":
            twin = next(b for b in results if b.method == "B" and b.seed == r.seed)
            for mine, row in zip(r.history, twin.history, strict=True):
                mine["accuracy"] = row["accuracy"] + (0.002 if r.seed else -0.005)
    assert told_apart(results, "accuracy") == {"A", "B"}
    assert told_apart([run("A"), run("B")], "accuracy") == set()


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (nbytes(0), "0 B"),
        (nbytes(999), "999 B"),
        (nbytes(999.9), "1.00 kB"),
        (nbytes(12345), "12.3 kB"),
        (nbytes(4.56e9), "4.56 GB"),
        (nbytes(math.nan), "–"),
        (duration(0.0), "0 s"),
        (duration(0.35), "350 ms"),
        (duration(89), "89.0 s"),
        (duration(90), "1.50 min"),
        (duration(7200), "2.00 h"),
        (duration(4 * 86400), "4.00 d"),
        (duration(math.nan), "–"),
        (count(1234567), "1,234,567"),
        (count(2.5), "2.5"),
        (number(1.5e-9), "1.50e-09"),
        (number(0.123456), "0.1235"),
        (percent(0.8765), "87.6 %"),
        (plus_minus(0.8766, 0.0123, share=True), "87.7 ± 1.2"),
        (plus_minus(0.8765, 0.0003, share=True), "87.65 ± 0.03"),
        (plus_minus(0.8766, math.nan, share=True), "87.7"),
        (plus_minus(0.4312, 0.012), "0.431 ± 0.012"),
        (plus_minus(0.0004, 0.01), "0.000 ± 0.010"),
        (plus_minus(-0.031, 0.004, share=True, signed=True), "−3.1 ± 0.4"),
        (plus_minus(0.031, 0.004, share=True, signed=True), "+3.1 ± 0.4"),
        (plus_minus(-2.5e-7, 1e-8), "−2.50e-07 ± 1.0e-08"),
        (plus_minus(123456.0, 10.0), "1.23e+05 ± 1.0e+01"),
        (plus_minus(math.nan, math.nan), "–"),
    ],
)
def test_units(got: str, want: str) -> None:
    assert got == want


@given(st.floats(1, 1e14))
def test_bytes_read_back_to_three_digits(b: float) -> None:
    value, unit = nbytes(b).split()
    size = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert float(value) * size == pytest.approx(b, rel=0.0051, abs=0.5)


def test_in_a_stream_it_says_which_figures_are_of_the_last_task_alone() -> None:
    plain, coming = board(accuracy=False), board(accuracy=False)
    for r in coming:
        for row in r.history:
            row |= {"task": 0 if row["round"] < 15 else 1, "test_loss": row["loss"]}
    assert "last task" not in markdown(plain) + printed(plain)
    assert markdown(coming).startswith("| method | test loss, last task | against A | loss, last task |")
    assert "test loss, last task" in printed(coming)
    for r in coming:
        r.summary |= {"acc": 0.5, "learn": 0.6, "fgt": 0.1}
    assert markdown(coming).startswith(
        "| method | accuracy, all tasks | against A | accuracy when learnt | forgetting | up |"
    )


def test_what_was_spent_is_a_column_and_two_curves() -> None:
    private = [run("DP-A", s) for s in (0, 1)]
    for r in private:
        for row in r.history:
            row["epsilon"] = 0.5 * row["round"]
    both = [*(run("A", s) for s in (0, 1)), *private]
    head, _, first, second = markdown(both).splitlines()[:4]
    k = [cell.strip() for cell in head.split("|")].index("ε")
    last = private[0].history[-1]["epsilon"]
    assert [line.split("|")[k].strip() for line in (first, second)] == ["–", f"{last:.2f}"]
    text = page(both)
    assert ">ε over round<" in text
    assert " over ε<" in text


def with_rows(rows: int, data: str = "wards", **settings: Any) -> dict[str, Any]:
    return {"test_rows": rows, "data": data, "test_majority": ["alive", 0.651], **settings}


def test_the_caption_says_to_what_the_test_rows_tell_an_accuracy() -> None:
    same = [run("A", s, top=0.74, noise=0.0, settings=with_rows(596)) for s in range(5)]
    said = "All seeds share 596 test rows, which alone leave an accuracy of 74.0 % uncertain by ± 3.5 pp (95 %)"
    assert f"{said}. The ± over seeds does not include this." in markdown(same)
    assert said in " ".join(printed(same).split())
    # Wilson's interval at p = 1 of 100 rows: half of 1 − n/(n + z²).
    perfect = [run("A", s, top=1.0, noise=0.0, settings=with_rows(100)) for s in range(2)]
    for r in perfect:
        r.history[-1]["accuracy"] = 1.0
    assert "an accuracy of 100.0 % uncertain by ± 1.8 pp" in markdown(perfect)
    assert "There are 596 test rows, which alone leave an accuracy" in markdown(same[:1])
    own = [run("A", s, settings=with_rows(596, f"wards {s}")) for s in range(3)]
    assert "Every seed has 596 test rows of its own, so ± includes the luck of their draw." in markdown(own)
    for silent in (
        [run("A", s) for s in range(3)],
        [run("A", s, settings=with_rows(596, evaluate_on="validation")) for s in range(3)],
        [run("A", s, accuracy=False, settings=with_rows(596)) for s in range(3)],
        [run("A", s, settings=with_rows(596 + s)) for s in range(3)],
    ):
        assert "test rows" not in markdown(silent)


def test_the_report_has_the_share_of_the_commonest_label() -> None:
    both = [run(m, s, settings=with_rows(596)) for m in "AB" for s in range(2)]
    assert "The commonest label, alive, is right on 65.1 % of the test rows." in page(both)
    assert "commonest" not in page([run("A", s) for s in range(2)])
    scaled = [run("A", s, settings=with_rows(9, scaling={"mean": [[0.25]], "deviation": [[1.0]]})) for s in range(2)]
    assert "scaling.mean" not in page(scaled)


def test_the_caption_says_what_brackets_are() -> None:
    few = [run("A", s, top=top, noise=0.0) for s, top in enumerate((0.02, 0.95))]
    assert "(" in markdown(few).splitlines()[2]
    assert "In brackets: each seed's figure, if the interval of so few would leave the possible range." in caption(few)
    assert "In brackets" not in caption([run("A", s) for s in range(5)])
    assert "In brackets" not in caption(few, ["method", "up"])


def test_a_narrow_console_says_nothing_of_brackets_that_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [run(m, s) for m in "AB" for s in range(3)]
    for r, worst in zip(runs, (0.0, 0.9, 0.1) * 2, strict=True):
        r.history = [row | {"client_accuracy_worst": worst} for row in r.history]
    shown = Board(runs)
    for width, there in (("200", True), ("60", False)):
        monkeypatch.setenv("COLUMNS", width)
        text = " ".join(str(shown).split())
        assert ("worst tenth" in text, "In brackets" in text) == (there, there), text


def federation(**settings: Any) -> dict[str, Any]:
    return {"data": "digits [1438, 64] #5a08", "participation": "Fraction(fraction=0.25, weighted=False)", **settings}


def test_the_caption_says_where_runs_are_of_different_federations_or_rounds() -> None:
    a = [run("A", s, settings=federation()) for s in range(2)]
    half = federation(participation="Fraction(fraction=0.5, weighted=False)", attack="Attack(kind='alie')")
    b = [run("B", s, rounds=50, settings=half) for s in range(2)]
    said = (
        "Not one comparison: the runs are of different federations (participation: fraction=0.25 or fraction=0.5; "
        "attack: none or Attack kind='alie') and of different numbers of rounds (30 and 50), so not only the "
        "methods differ."
    )
    assert said in markdown(a + b)
    assert said in " ".join(printed(a + b).split())
    mnist = [run("B", s, settings=federation(data="mnist [60000, 784] #a1")) for s in range(2)]
    assert "(data: digits or mnist), so" in caption(a + mnist)
    other = [run("B", s, settings=federation(data="digits [1438, 64] #ffff")) for s in range(2)]
    assert "different federations (data), so" in caption(a + other)


def test_runs_of_one_comparison_have_no_such_sentence() -> None:
    split = [run(m, s, settings=federation(data=f"digits [1438, 64] #{s}")) for m in "AB" for s in range(2)]
    early = run("C", 0, rounds=7, died=True, settings=federation(data="digits [1438, 64] #0"))
    for alike in (split, [*split, early], board(3), []):
        assert "Not one comparison" not in caption(alike)
