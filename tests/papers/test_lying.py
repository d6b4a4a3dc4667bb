"""Figures, tables and the page over the share of attackers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import medley as md
from medley.report.numbers import final
from support.scripts import loaded

lying = loaded("robust/lying.py")
Point = lying.Point

POINTS = [
    *(Point("mean", "none", 0.0, s, 0.90 + s / 100, 0.02) for s in (0, 1)),
    *(Point("Krum", "none", 0.0, s, 0.85, 0.01) for s in (0, 1)),
    *(Point("mean", "alie", 0.1, s, 0.84, None) for s in (0, 1)),
    *(Point("mean", "alie", 0.4, s, 0.50 + s / 10, None) for s in (0, 1)),
    *(Point("Krum", "alie", 0.1, s, 0.86, None) for s in (0, 1)),
    *(Point("Krum", "alie", 0.4, s, 0.82, None) for s in (0, 1)),
    *(Point("mean", "backdoor", 0.1, s, 0.90, 0.6) for s in (0, 1)),
    *(Point("Krum", "backdoor", 0.1, s, 0.85, 0.49) for s in (0, 1)),
]


def test_where_each_breaks() -> None:
    # Without attackers the mean has 0.905: an accuracy below 0.805 is broken.
    assert lying.broken_at(POINTS, "mean", "alie") == 0.4
    assert lying.broken_at(POINTS, "Krum", "alie") is None
    assert lying.broken_at(POINTS, "mean", "backdoor") == 0.1
    assert lying.broken_at(POINTS, "Krum", "backdoor") is None
    bad = [*POINTS, *(Point("Median", "none", 0.0, s, 0.7) for s in (0, 1))]
    assert lying.broken_at(bad, "Median", "alie") == 0.0


def test_seeds_that_break_by_themselves() -> None:
    # Below 0.805: one of the mean's two seeds with 40 % of attackers has 0.5, the other 0.6; both backdoors succeed.
    assert lying.seeds_broken(POINTS, "mean", "alie", 0.4) == (2, 2)
    assert lying.seeds_broken(POINTS, "mean", "backdoor", 0.1) == (2, 2)
    one = [*POINTS, Point("Krum", "alie", 0.4, 2, 0.80), Point("Krum", "backdoor", 0.1, 2, 0.85, 0.51)]
    assert lying.seeds_broken(one, "Krum", "alie", 0.4) == (1, 3)
    assert lying.seeds_broken(one, "Krum", "backdoor", 0.1) == (1, 3)
    assert "| Krum | 0 of 2 | 0 of 2, 1 of 3 | 1, – of 3 |" in lying.table(one)


def test_a_method_with_fewer_seeds_is_held_against_the_first_on_the_same_seeds() -> None:
    more = [*POINTS, *(Point("mean", "none", 0.0, s, 1.0) for s in range(2, 20))]
    assert lying.broken_at(more, "Krum", "alie") is None  # 0.82 is below 0.99 less 0.1, and not below 0.905 less 0.1
    assert lying.broken_at(more, "mean", "alie") == 0.4  # 0.84 on the seeds 0 and 1, on which it has 0.905 without
    assert "over 2 to 20 seeds is more than" in lying.table(more)


def test_table() -> None:
    text = lying.table(POINTS)
    assert "over 2 seeds is more than 10 points below mean's without attackers on the same seeds" in text
    assert "| mean | 90.5 % | 40 % | 10 % |" in text
    assert "| Krum | 85.0 % | holds | holds |" in text
    alie, backdoor, success = re.split(r"\n## ", text)[1:]
    assert alie.startswith("alie: accuracy, %")
    assert "| mean | 90.5 | 84.0 | 55.0 |" in alie
    assert "| Krum | 85.0 | 85.0 |" in backdoor
    assert "| mean | 2.0 | 60.0 |" in success


def test_page_and_picture() -> None:
    html = lying.page(POINTS, command="made <so>")
    assert html.count("<svg") >= 3
    for text in ("16 runs: 2 methods, 2 attacks", "ALIE", "Backdoor", "attack success", "made &lt;so&gt;"):
        assert text in html, text
    svg = lying.picture(POINTS)
    assert svg.count("<svg x=") == 3 + 3  # panels, and the frame inside each
    assert "prefers-color-scheme:dark" in svg
    assert "ends at 55.0 %" in svg
    nine = [p._replace(method=f"m{k}") for k in range(9) for p in POINTS if p.method == "mean"]
    assert "m8, dashed" in lying.picture(nine)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_runs_under_several_shares_make_that_page(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for k, attackers in enumerate((share, 0.4)):
        fed = md.Federation(
            md.problems.Softmax(mu=1e-3),
            data=md.datasets.digits(),
            partition=md.partitions.IID(10),
            weights="uniform",
            attack=md.scenarios.Attack("backdoor", attackers, strength=3.0),
        )
        for method in (md.FedAvg(), md.Robust(md.FedAvg(), rule=md.robust.Median())):
            folder = tmp_path / f"{method.name}{k}"
            runs.append(md.run(method, fed, 3, progress=False, throw=False, checkpoint=folder))
    points = lying.points(runs)
    assert [p.method for p in points] == ["FedAvg", "Median-FedAvg"] * 2
    assert [p.attack for p in points] == ["backdoor" if share else "none"] * 2 + ["backdoor"] * 2
    assert [p.share for p in points] == [share, share, 0.4, 0.4]
    assert points[0].accuracy == runs[0].summary["tail_accuracy"]
    assert points[0].success == final(runs[0], "attack_success")
    folders = sorted(str(p) for p in tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", ["lying.py", *folders, "-o", str(tmp_path / "page.html")])
    lying.main()
    assert "A method breaks at the least share" in capsys.readouterr().out
    assert "Where each breaks" in (tmp_path / "page.html").read_text()
    one = md.report.page([r for r in runs if "0.4" in r.settings["attack"]])
    assert "attack success" in one
    assert "get a backdoor&#39;s target" in one or "get a backdoor's target" in one
