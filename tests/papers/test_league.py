"""The league: its statistics against numbers by hand, its tuning budget, and runs that survive a kill."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from support.pairs import quick

FOLDER = Path(__file__).parents[2] / "papers" / "league"
NAMES = (
    "averaged",
    "clocks",
    "constants",
    "data",
    "entrants",
    "federations",
    "page",
    "ranking",
    "registry",
    "results",
    "rounds",
    "run",
)


@pytest.fixture
def league(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in NAMES:
        sys.modules.pop(name, None)
    import entrants
    import federations
    import page
    import ranking
    import results
    import run

    yield {m.__name__: m for m in (entrants, federations, page, ranking, results, run)}
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", quick(1, ["FedAvg", "SCAFFOLD", "FedDyn"]))
def test_a_control_is_judged_by_the_average_of_its_methods_models(league: dict[str, Any], name: str) -> None:
    toy = md.problems.synthetic_quadratics(clients=4)
    method, control = (league["entrants"].ENTRANTS[n].method for n in (name, f"{name} averaged"))
    for share in (1.0, 0.25):
        fed = md.Federation(toy.problem, clients=toy.clients, pace=md.scenarios.Pace(lr=0.05), participation=share)
        want, *models = (md.run(method, fed, rounds=k, progress=False).x for k in range(4))
        for x in models:
            want = want + share**0.5 * (x - want)
        assert torch.allclose(md.run(control, fed, rounds=3, progress=False).x, want, rtol=1e-14, atol=1e-14)


def test_the_control_of_three_parts_by_hand(league: dict[str, Any]) -> None:
    """v ← .5 v + 2·(mean displacement), and an average of weight √(f/2); with all parts off it is SCAFFOLD."""
    toy = md.problems.synthetic_quadratics(clients=4)
    entrant = league["entrants"].ENTRANTS["SCAFFOLD with step and momentum"]
    pace = md.scenarios.Pace(lr=0.02, steps=3, batch=None)
    fed = md.Federation(toy.problem, clients=toy.clients, pace=pace)
    H = [(X.T @ X / len(y)).numpy() for X, y in toy.clients]
    b = [(X.T @ y / len(y)).numpy() for X, y in toy.clients]
    x = v = c = read = np.zeros(len(b[0]))
    c_i = np.zeros((4, len(b[0])))
    for _ in range(4):
        moved, new = [], []
        for i in range(4):
            y, gradients = x, []
            for _ in range(3):
                gradients.append(H[i] @ y - b[i])
                y = y - 0.02 * (gradients[-1] - c_i[i] + c)
            moved.append(y - x)
            new.append(np.mean(gradients, axis=0))
        v = 0.5 * v + 2 * sum(float(p) * m for p, m in zip(toy.p, moved, strict=True))
        x = x + v
        c_i = np.array(new)
        c = sum(float(p) * g for p, g in zip(toy.p, new, strict=True))
        read = read + 0.5**0.5 * (x - read)
    found = md.run(entrant.at((0, 4)), fed, rounds=4, progress=False)
    assert np.allclose(found.x.numpy(), read, rtol=0, atol=1e-12)
    plain = dataclasses.replace(entrant.method, parts=(1.0, 0.0, False))
    half = md.Federation(toy.problem, clients=toy.clients, pace=pace, participation=0.5)
    a, e = (md.run(m, half, rounds=5, progress=False).x for m in (plain, md.SCAFFOLD()))
    assert torch.allclose(a, e, rtol=1e-13, atol=1e-13)


def test_new_rows_leave_the_results_of_the_old_ones(league: dict[str, Any]) -> None:
    # Runs are kept under a digest of the ladder and the settings: a changed row would throw its runs away.
    rows = league["entrants"].ENTRANTS
    assert (rows["FedDyn"].start, rows["FedDyn from .01"].start) == (4, 2)
    assert rows["FedDyn from .01"].at((0, 2)).method.alpha == 0.01
    assert rows["FedADMM"].method.server_lr == 1.0
    assert rows["FedADMM share"].method.server_lr == "share"


def test_ranks_share_ties_and_diverged_seeds_come_last(league: dict[str, Any]) -> None:
    merits = {
        "one": {"a": [0.9, 0.8], "b": [0.8, 0.9], "c": [0.1, 0.1], "d": [1.0, -math.inf], "e": [-math.inf] * 2},
        "two": {"a": [-1.0, -2.0], "b": [-3.0, -3.0], "c": [0.0, 0.0], "d": [-4.0, -4.0], "e": [-9.0, -9.0]},
    }
    table = league["ranking"].ranks(merits, list("abcde"))
    assert table.tolist() == [[1.5, 1.5, 3, 4, 5], [2, 3, 1, 4, 5]]


def test_friedman_and_nemenyi_of_demsars_paper(league: dict[str, Any]) -> None:
    # Demšar, JMLR 2006, table 6: 14 data sets, mean ranks 3.143, 2.000, 2.893, 1.964; q = 2.569, CD = 1.25.
    assert league["ranking"].nemenyi(4, 14) == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=2e-3)
    assert league["ranking"].nemenyi(4, 14) == pytest.approx(1.25, abs=5e-3)
    # By hand, without ties: χ² = 12/(N k (k+1)) Σ R_j² − 3 N (k+1), with N = 4, k = 3 and rank sums 5, 8, 11.
    table = np.array([[1, 2, 3], [2, 1, 3], [1, 2, 3], [1, 3, 2]], dtype=float)
    assert table.sum(0).tolist() == [5, 8, 11]
    chi, p = league["ranking"].friedman(table)
    assert chi == pytest.approx(12 / (4 * 3 * 4) * (25 + 64 + 121) - 3 * 4 * 4)
    assert p == pytest.approx(math.exp(-chi / 2))  # two degrees of freedom


def test_cliques_are_the_longest_runs_within_the_difference(league: dict[str, Any]) -> None:
    assert league["ranking"].cliques([1.0, 1.5, 2.4, 4.0, 4.1], 1.0) == [(0, 1), (1, 2), (3, 4)]
    assert league["ranking"].cliques([1.0, 3.0], 1.0) == []


def test_holm_by_hand(league: dict[str, Any]) -> None:
    # Sorted 0.01, 0.02, 0.03, 0.2 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.2, made monotone.
    assert league["ranking"].holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    found = league["ranking"].holm([math.nan, 0.03, 0.01, math.nan, 0.2, 0.02])
    assert found == pytest.approx([math.nan, 0.06, 0.04, math.nan, 0.2, 0.06], nan_ok=True)
    assert league["ranking"].holm([0.5, 0.9]) == [1.0, 1.0]


def test_a_paired_difference_by_hand(league: dict[str, Any]) -> None:
    # d = 1, 2, 3, 4, 5: mean 3, sd √2.5, t = 3 / (√2.5 / √5) = 4.2426, p = 0.01324 with 4 degrees of freedom.
    d, p = league["ranking"].paired([1, 2, 3, 4, 5], [0, 0, 0, 0, 0])
    assert d == 3
    assert p == pytest.approx(0.013236, abs=1e-5)
    assert league["ranking"].paired([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5)
    assert league["ranking"].paired([1.0, 1.0], [1.0, 1.0]) == (0.0, 1.0)


def test_lost_seeds_are_counted_by_fishers_exact_test(league: dict[str, Any]) -> None:
    # Of 5 and 5 seeds, k lost on one side alone: 2 C(5, k) / C(10, k) = 2·5/210 for four, 2·1/252 for five, 1 for one.
    fine, lost = [1.0] * 5, [-math.inf] * 5
    for k, p in ((1, 1.0), (4, 10 / 210), (5, 2 / 252)):
        found = league["ranking"].paired(fine, lost[:k] + fine[k:])
        assert found == (math.inf, pytest.approx(p))
    assert league["ranking"].paired(lost, fine)[0] == -math.inf
    assert league["ranking"].paired(lost, lost) == (0.0, 1.0)


def test_duels_are_corrected_over_federations(league: dict[str, Any]) -> None:
    merits = {
        "f": {"a": [1, 2, 3, 4, 5], "b": [0] * 5},  # p = 0.0132, twice that is 0.0265
        "g": {"a": [1, -1, 1, -1, 0], "b": [0] * 5},
        "h": {"a": [0] * 5, "b": [1, 2, 3, 4, 5]},
    }
    found = league["ranking"].duels(merits, "a", dict.fromkeys(merits, "b"))
    assert [d.outcome for d in found] == ["win", "tie", "loss"]
    assert found[0].p == pytest.approx(3 * 0.013236, abs=1e-4)


def test_breadth_is_the_share_within_the_margin_of_the_best_method(league: dict[str, Any]) -> None:
    grid = {"a": [0.5, 0.90, 0.895, -math.inf], "b": [0.891, 0.7, 0.6, 0.5]}
    assert league["ranking"].breadth(grid, 0.01) == {"a": 0.5, "b": 0.25}


def test_the_search_extends_an_edge_and_keeps_the_budget(league: dict[str, Any]) -> None:
    entrants = league["entrants"]
    entrant = entrants.ENTRANTS["FedProx"]
    asked: list[Any] = []

    def judge(point: Any) -> tuple[float, ...]:
        asked.append(point)
        return (-((point[0] - 3) ** 2) - (point[1] - 3) ** 2,)

    best = entrants.search(entrant, judge)
    assert asked[:4] == [(-2, 2), (-1, 2), (0, 2), (1, 2)]
    assert asked[4:6] == [(2, 2), (3, 2)]  # twice beyond the grid
    assert asked[6:8] == [(4, 2), (3, 3)]  # the other side, then the knob
    assert asked[8:] == [(3, 4)]  # the budget is spent, and the best knob is the largest tried
    assert len(asked) == len(set(asked))
    assert best == (3, 3)
    assert entrants.at_edge(entrant, best, asked) == []
    assert entrants.at_edge(entrant, best, asked[:8]) == ["mu"]
    assert entrants.at_edge(entrant, (4, 2), asked[:8]) == ["lr", "mu"]


def test_a_full_grid_tries_every_rate_with_every_value(league: dict[str, Any]) -> None:
    entrants = league["entrants"]
    asked: list[Any] = []
    best = entrants.grid(entrants.ENTRANTS["SCAFFOLD"], lambda p: asked.append(p) or (-abs(p[0] + 3) - abs(p[1] - 3),))
    assert best == (-3, 3)
    assert len(set(asked)) == len(asked) == len(entrants.GRID) * 4


def test_a_full_grid_wants_a_folder_of_its_own(
    league: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(league, monkeypatch)
    assert command(league, monkeypatch, "--methods", "FedAvg", "--grid") == 2
    assert "give --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "to", "value"), [("FedProx", 9, 27.0), ("FedProx", -2, 1e-3 / 9), ("FedAvgM", 6, 0.9875)]
)
def test_the_search_goes_on_beyond_a_ladder_until_the_choice_is_inside(
    league: dict[str, Any], name: str, to: int, value: float
) -> None:
    entrants = league["entrants"]
    entrant = entrants.ENTRANTS[name]
    asked: list[Any] = []
    best = entrants.search(entrant, lambda p: asked.append(p) or (-abs(p[0]) - abs(p[1] - to),))
    assert best == (0, to)
    assert entrants.at_edge(entrant, best, asked) == []
    assert getattr(entrant.at(best).method, entrant.knob) == pytest.approx(value)


def test_the_search_stops_where_the_method_takes_no_further_value(league: dict[str, Any]) -> None:
    entrants = league["entrants"]
    asked: list[Any] = []
    share = entrants.ENTRANTS["FedCM"]  # alpha is at most 1
    assert entrants.search(share, lambda p: asked.append(p) or (-abs(p[0]), p[1])) == (0, 4)
    assert entrants.at_edge(share, (0, 4), asked) == []
    for name in ("FedNova", "FedLESAM", "SCAFFOLD with step and momentum"):
        assert not entrants.ENTRANTS[name].has(-1)  # 0 has no ratio, and neither have settings that are no numbers
    asked.clear()
    entrants.search(entrants.ENTRANTS["FedAvg"], lambda p: asked.append(p) or (p[0],))
    assert len(asked) == entrants.BUDGET + entrants.BEYOND


def test_every_ladder_is_of_a_setting_and_starts_at_the_methods_own(league: dict[str, Any]) -> None:
    for name, e in league["entrants"].ENTRANTS.items():
        assert list(e.ladder) == sorted(e.ladder), name
        assert 0 <= e.start < len(e.ladder), name
        assert e.at((0, e.start)).lr == 1
        for j in range(len(e.ladder)):  # a ladder of values that the method takes
            e.at((0, j))


def test_the_groups_are_as_large_as_promised(league: dict[str, Any]) -> None:
    groups: dict[str, int] = {}
    for e in league["federations"].FEDERATIONS.values():
        groups[e.group] = groups.get(e.group, 0) + 1
        assert (e.target is None) == (not e.group.startswith("clock"))
    assert groups["development"] >= 10
    assert groups["test"] >= 10
    assert groups["clock"] >= 5


def small(league: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The league with one small federation and two methods."""

    def build() -> md.Federation:
        pace = md.scenarios.Pace(lr=0.3, batch=16)
        partition = md.partitions.Dirichlet(5, 1.0)
        return md.Federation(
            md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=partition, pace=pace, validation=0.2
        )

    entry = league["federations"].Entry("development", build, 4, "small")
    for module in ("federations", "run", "results", "page"):
        monkeypatch.setattr(league[module], "FEDERATIONS", {"small": entry})
    monkeypatch.setattr(league["run"].os, "nice", lambda n: None)


def command(league: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run.py", "development", *words])
    return int(league["run"].main())


@pytest.mark.slow
def test_a_league_goes_on_after_a_kill_and_makes_its_page(
    league: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small(league, monkeypatch)
    words = ("--methods", "FedAvg,FedProx", "--out", str(tmp_path))
    run, once, made = league["run"], league["run"].once, []

    def dying(*args: Any) -> Any:
        if len(made) == 6:
            raise KeyboardInterrupt
        made.append(args)
        return once(*args)

    monkeypatch.setattr(run, "once", dying)
    assert command(league, monkeypatch, *words) == 130
    path = tmp_path / "development" / "small" / "FedAvg.jsonl"
    assert len(path.read_text().splitlines()) == 6
    with path.open("a") as f:
        f.write('{"kind": "tuning", "se')  # a kill in the middle of a line
    monkeypatch.setattr(run, "once", once)
    assert command(league, monkeypatch, *words) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [x["seed"] for x in lines if x["kind"] == "final"] == [0, 1, 2, 3, 4]
    assert len({(x["kind"], x["seed"], tuple(x["point"])) for x in lines}) == len(lines) <= 13
    before = path.read_text()
    assert command(league, monkeypatch, *words) == 0
    assert path.read_text() == before

    monkeypatch.setattr(sys, "argv", ["page.py", "development", "--results", str(tmp_path), "--method", "FedProx"])
    assert league["page"].main() == 0
    page = (tmp_path / "development.md").read_text()
    mean = np.mean([x["score"] for x in lines if x["kind"] == "final"])
    assert f"{mean:.4g} ± " in page
    assert "FedProx: 0 wins, 1 ties, 0 losses" in page
    assert "Critical-difference diagram" in (tmp_path / "development.html").read_text()


@pytest.mark.slow
def test_runs_of_other_settings_are_not_mixed(
    league: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small(league, monkeypatch)
    words = ("--methods", "FedProx", "--label", "mine", "--out", str(tmp_path))
    assert command(league, monkeypatch, *words) == 0
    with pytest.raises(SystemExit, match="runs of other settings"):
        command(league, monkeypatch, *words, "--set", "mu=0.5")
    assert command(league, monkeypatch, "--methods", "FedFoo", "--out", str(tmp_path)) == 2


def test_an_asynchronous_run_has_as_many_replies(league: dict[str, Any]) -> None:
    entrants, run = league["entrants"].ENTRANTS, league["run"]
    # 18 clients, 5 replies a round: 3.6 times as many rounds.
    assert run.rounds_of("clock-digits", entrants["FedAvg"]) == 200
    assert run.rounds_of("clock-digits", entrants["FedBuff"]) == 720
    assert run.rounds_of("digits-softmax-dirichlet", entrants["FedAvg"]) == 40


@pytest.mark.slow
def test_a_changed_constant_is_compared_on_the_same_seeds(
    league: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import constants

    toys, before = ["T in ratios to 100", "lr h up to 3"], constants.fednorton.AHEAD
    monkeypatch.setattr(constants, "OUT", tmp_path / "constants.jsonl")
    monkeypatch.setattr(constants, "PLAN", [(toys[:1], 1.0, {"AHEAD": (0, before)})])
    monkeypatch.setattr(constants, "SEEDS", (0, 1))
    monkeypatch.setattr(constants.os, "nice", lambda _: 0)
    constants.run()
    lines = (tmp_path / "constants.jsonl").read_text().splitlines()
    assert len(lines) == 6
    assert constants.fednorton.AHEAD is before
    constants.run()  # nothing is missing
    assert (tmp_path / "constants.jsonl").read_text().splitlines() == lines
    runs = {tuple(x["key"]): constants.error(x) for x in map(json.loads, lines)}
    text, p = constants.row(runs, "AHEAD", str(before))
    assert (text, p) == ("1.00 | 1.00 to 1.00 | 0, 0 of 2 | 0, 0 of 1", 1.0)
    runs = {(toy, 1.0, seed, "", "0"): -1.0 for toy in toys for seed in range(3)}
    runs |= {(toy, 1.0, seed, "AHEAD", "4"): math.log(2 + 2 * k) - 1 for k, toy in enumerate(toys) for seed in range(3)}
    runs[toys[0], 1.0, 0, "AHEAD", "4"] = constants.LOST
    text, p = constants.row(runs, "AHEAD", "4")
    # √(2 · 4) over federations; the lost run counts as the worst. All of six are worse: p = 2/2⁶. Of the toys
    # none is worse beyond chance: of three seeds one that is lost says nothing, nor do three equal ones (p = 1/4).
    assert text == "2.83 | 2.00 to 4.00 | 1, 0 of 6 | 0, 0 of 2"
    assert p == pytest.approx(2 / 64)


@pytest.mark.slow
def test_each_term_of_the_ablation_is_in_the_method(league: dict[str, Any]) -> None:
    import constants

    plain = constants.one("T in ratios to 100", 0.0, 0, "", 0)["score"]
    for label in constants.TERMS:
        assert constants.one("T in ratios to 100", 0.0, 0, label, 0)["score"] != plain
    assert constants.one("T in ratios to 100", 0.0, 0, "", 0)["score"] == plain  # nothing stays changed
