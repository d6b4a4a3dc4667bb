"""Comparisons: the same conditions for all, nothing missing, nothing lost."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import medley as md
from medley import cli
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.errors import WireError
from medley.contract.message import Message
from medley.contract.types import Vec
from medley.experiments import workers
from medley.experiments.board import Board
from medley.experiments.compare import compare, names
from medley.experiments.plan import slot
from support.pairs import quick


def federation(**over):
    settings = dict(
        data=md.datasets.digits(),
        partition=md.partitions.Dirichlet(clients=10, alpha=0.3),
        pace=md.scenarios.Pace(lr=md.distributions.Uniform(0.01, 0.1), epochs=md.distributions.Integers(1, 3)),
        participation=0.3,
    )
    return md.Federation(md.problems.Network(md.models.mlp(64, 10, (8,))), **{**settings, **over})


class Point(Message):
    x: Vec


@dataclass
class Server:
    x: Vec


@dataclass(frozen=True)
class Probe(Algorithm[Server]):
    """Goes nowhere; fails, sleeps or dies where it is told to."""

    what: str = ""
    seed: int = -1
    asleep: str = ""

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        s.x = clients.ask(self.stay, Point(s.x)).mean().x

    @on_client
    def stay(self, me: Client, request: Point) -> Point:
        if me.seed == self.seed and me.round == 2:
            if self.what == "fail":
                raise ValueError("no such luck")
            if self.what == "die":
                os._exit(7)
            if self.what == "sleep":
                Path(self.asleep).touch()
                time.sleep(3600)
        return Point(request.x)


def cohorts(result):
    return sorted({(e.round, e.client) for e in result.ledger})


def test_all_methods_meet_the_same_clients_cohorts_and_start():
    fed = federation()
    board = compare([md.FedAvg(), md.FedAvg(server_lr=0.5), Probe()], fed, rounds=4, seeds=[3, 8], jobs=1)
    assert [(r.method, r.seed) for r in board.results] == [
        (m, s) for m in ("FedAvg", "FedAvg (server_lr=0.5)", "Probe") for s in (3, 8)
    ]
    by = {(r.method, r.seed): r for r in board.results}
    for seed in (3, 8):
        a, b, c = (by[m, seed] for m in ("FedAvg", "FedAvg (server_lr=0.5)", "Probe"))
        assert cohorts(a) == cohorts(b) == cohorts(c)
        assert len(cohorts(a)) == 4 * 3
        assert a["loss"][0] == b["loss"][0] == c["loss"][0] == pytest.approx(c["loss"][-1], rel=1e-6)
        single = fed.run(md.FedAvg(), rounds=4, seed=seed)
        assert torch.equal(a.x, single.x)
    assert cohorts(by["Probe", 3]) != cohorts(by["Probe", 8])
    # One round of the same batches from the same x: half the server step is half the way.
    one = compare([md.FedAvg(), md.FedAvg(server_lr=0.5), Probe()], fed, rounds=1, seeds=1, jobs=1).results
    torch.testing.assert_close(one[1].x - one[2].x, (one[0].x - one[2].x) / 2, atol=1e-7, rtol=1e-4)


@pytest.mark.slow
def test_two_jobs_give_the_bits_of_one():
    methods = [md.FedAvg(), md.FedAvg(server_lr=1.3)]
    one = compare(methods, federation(), rounds=3, seeds=2, jobs=1)
    two = compare(methods, federation(), rounds=3, seeds=2, jobs=2)
    assert one.status.outcome == two.status.outcome == "finished"
    for a, b in zip(one.results, two.results, strict=True):
        assert (a.method, a.seed, a.status, a.settings) == (b.method, b.seed, b.status, b.settings)
        assert torch.equal(a.x, b.x)
        for p, q in zip(a.history, b.history, strict=True):
            assert {k: v for k, v in p.items() if k != "wall"} == {k: v for k, v in q.items() if k != "wall"}
        assert list(a.ledger) == list(b.ledger)


def test_a_diverging_run_is_a_row():
    fed = federation(pace=md.scenarios.Pace(lr=0.1))
    board = compare([md.FedAvg(), md.Tuned(md.FedAvg(), lr=1e30)], fed, rounds=3, seeds=2, jobs=1)
    good, bad = board.rows
    assert (good["method"], good["used"], bad["method"], bad["used"]) == ("FedAvg", 2, "FedAvg (lr=1e+30)", 0)
    assert "diverged" in bad["status"]
    assert good["status"] == "finished on 2 seeds"
    assert np.isnan(bad["accuracy"])


def test_rows_are_means_and_t_intervals_of_the_results(monkeypatch):
    board = compare([md.FedAvg(), Probe()], federation(), rounds=3, seeds=3, jobs=1, base="Probe")
    values = np.array([r["accuracy"][-1] for r in board.results if r.method == "FedAvg"])
    row = board.rows[0]
    assert row["accuracy"] == pytest.approx(values.mean())
    assert row["accuracy_half"] == pytest.approx(4.302652729911275 * values.std(ddof=1) / np.sqrt(3))
    (pair,) = board.paired()
    still = np.array([r["accuracy"][-1] for r in board.results if r.method == "Probe"])
    assert (pair.base, pair.n) == ("Probe", 3)
    assert pair.diff.mean == pytest.approx((values - still).mean())
    assert board.table().row_count == 2
    assert repr(board) == "Board(FedAvg, Probe; seeds [0, 1, 2]; finished)"
    monkeypatch.setenv("COLUMNS", "100")
    head, _, *lines = str(board).splitlines()
    assert head.split()[:2] == ["method", "accuracy"]
    assert [line.split()[0] for line in lines[:2]] == ["FedAvg", "Probe"]
    assert 60 < max(map(len, lines)) <= 100


def test_a_folder_keeps_finished_runs_and_they_are_not_made_again(tmp_path, monkeypatch):
    fed = federation()
    methods = [md.FedAvg(), Probe()]
    first = compare(methods, fed, rounds=2, seeds=2, jobs=1, save=tmp_path / "board")
    runs = []
    true_run = md.Federation.run
    monkeypatch.setattr(
        md.Federation, "run", lambda self, m, *a, **k: (runs.append((m.name, k["seed"])), true_run(self, m, *a, **k))[1]
    )
    again = compare(methods, fed, rounds=2, seeds=3, jobs=1, save=tmp_path / "board")
    assert runs == [("FedAvg", 2), ("Probe", 2)]
    results = {(r.method, r.seed): r for r in again.results}
    assert len(results) == 6
    for r in first.results:
        assert torch.equal(results[r.method, r.seed].x, r.x)
    loaded = Board.load(tmp_path / "board")
    assert {(r.method, r.seed) for r in loaded.results} == set(results)
    with pytest.raises(md.WireError, match=r"run was .*'rounds': 2.* is .*'rounds': 5"):
        compare(methods, fed, rounds=5, seeds=2, jobs=1, save=tmp_path / "board")
    other = federation(pace=md.scenarios.Pace(lr=0.5))
    with pytest.raises(md.WireError, match=r"pace.lr was .*delete that one"):
        compare(methods, other, rounds=2, seeds=2, jobs=1, save=tmp_path / "board")


@pytest.fixture
def no_collection():
    """No garbage collection: a callback of it, such as hypothesis has one, would swallow a KeyboardInterrupt."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_keeps_what_is_finished(tmp_path, jobs, no_collection):
    fed = federation()
    stuck = Probe("sleep", seed=1, asleep=str(tmp_path / "asleep"))
    before = signal.getsignal(signal.SIGINT)

    def strike():
        paths = tmp_path / "b" / "Probe" / "seed-0" / "result.json", tmp_path / "asleep"
        while not all(path.exists() for path in paths):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    wait = threading.Thread(target=strike)
    wait.start()
    board = compare([stuck], fed, rounds=3, seeds=2, jobs=jobs, save=tmp_path / "b")
    wait.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert board.status.outcome == "interrupted"
    assert "1 of 2 runs are done; the same call resumes" in board.status.message
    ends = {r.seed: r for r in board.results}
    assert ends[0].status.outcome == "finished"
    assert ends[1].status.outcome == "interrupted"
    assert ends[1]["round"][-1] == 1
    # The interrupted run is made again, now from its start to its end.
    stub = json.loads((tmp_path / "b" / "Probe" / "seed-1" / "result.json").read_text())
    assert stub["status"][0] == "interrupted"


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_names_the_run(jobs):
    with pytest.raises(md.ClientFailed, match=r"Probe, seed 1: client . failed in round 2 .*no such luck") as e:
        compare([Probe("fail", seed=1)], federation(), rounds=3, seeds=3, jobs=jobs)
    assert e.value.round == 2
    assert "ValueError" in e.value.traceback


@pytest.mark.slow
def test_a_dead_worker_is_no_endless_wait():
    with pytest.raises(md.MedleyError, match="the process of Probe, seed 1 died"):
        compare([Probe("die", seed=1)], federation(), rounds=3, seeds=3, jobs=2)


def test_a_worker_that_dies_before_it_has_read_its_work_is_named_too(monkeypatch):
    monkeypatch.setattr(workers, "work", lambda *_: (time.sleep(0.3), os._exit(7)))
    with pytest.raises(md.MedleyError, match=r"the process of Probe, seed . died"):
        compare([Probe()], federation(), rounds=3, seeds=2, jobs=2)


def test_names_say_what_differs_and_nothing_else():
    tuned = md.Tuned(md.FedAvg(server_lr=2.0), lr=0.5)
    assert names([md.FedAvg(), tuned, Probe()]) == ["FedAvg", "FedAvg (lr=0.5, server_lr=2)", "Probe"]
    assert names([md.FedAvg(server_lr=2.0)]) == ["FedAvg"]
    with pytest.raises(md.RecipeError, match="2 methods are FedAvg with the same settings"):
        names([md.FedAvg(), md.FedAvg()])
    private = [md.Private(md.FedProx(mu=0.5), noise=z) for z in (1.0, 4.0)]
    assert names([*private, md.FedAvg()]) == ["DP-FedProx (noise=1)", "DP-FedProx (noise=4)", "FedAvg"]


def test_slots_of_different_names_are_different_folders():
    names = ["a/b", "a-b", "a%2Fb", "FedNova (lr_aware=True)", "..", "é"]
    slots = {slot(Path("x"), name, 0) for name in names}
    assert len(slots) == len(names)
    assert all(len(s.parts) == 3 and ".." not in s.parts for s in slots)


def test_saving_as_page_table_figures_and_folder(tmp_path):
    board = compare({"mine": md.FedAvg(), "still": Probe()}, federation(), rounds=2, seeds=2, jobs=1)
    page = board.save(tmp_path / "a" / "report.html").read_text()
    assert "mine" in page
    assert "Who holds what" in page
    figures = json.loads(board.save(tmp_path / "figures.json").read_text())
    assert [r["seed"] for r in figures["runs"]] == [0, 1, 0, 1]
    assert figures["rows"][0]["accuracy"] == board.rows[0]["accuracy"]
    head, *lines = board.save(tmp_path / "table.csv").read_text().splitlines()
    assert head.startswith("method,seeds,used")
    assert len(lines) == 2
    back = Board.load(board.save(tmp_path / "runs"))
    assert sorted(r.method for r in back.results) == ["mine", "mine", "still", "still"]
    with pytest.raises(md.RecipeError, match=r"report\.doc: save a board as"):
        board.save(tmp_path / "report.doc")


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"seeds": 0}, "give a number from 1"),
        ({"seeds": [1, 1]}, "different integers"),
        ({"jobs": 0}, "jobs=0"),
        ({"base": "FedAvgg"}, "Did you mean 'FedAvg'"),
        ({"seed": 3}, "compare sets this for every run itself; set them with seeds=, a list or their number"),
        ({"save": "x.doc"}, "save a board as .html"),
    ],
)
def test_settings_that_make_no_sense(over, says):
    with pytest.raises(md.RecipeError, match=says):
        compare([md.FedAvg()], federation(), rounds=1, **over)


@pytest.mark.slow
def test_a_folder_with_automatic_settings_is_found_again(tmp_path):
    methods = [md.SHED(pairs=1), md.FedAvg()]
    fed = md.Federation(md.problems.Softmax(mu=1e-2), data=md.datasets.digits(), partition=md.partitions.IID(4))
    first = compare(methods, fed, 2, seeds=1, jobs=1, save=tmp_path / "board", progress=False)
    again = compare(methods, fed, 2, seeds=1, jobs=1, save=tmp_path / "board", progress=False)
    assert [r.settings["method.renewal"] for r in first.results[:1]] == ["auto"]
    assert first.results[0].settings["resolved.renewal"] == "fibonacci"
    assert [torch.equal(a.x, b.x) for a, b in zip(first.results, again.results, strict=True)] == [True, True]
    assert again.results[0].history[-1]["wall"] == first.results[0].history[-1]["wall"]
    with pytest.raises(WireError, match=r"board holds a comparison: resume it by compare\(save='.*board'\) or sweep"):
        md.run(methods[0], fed, 2, resume=tmp_path / "board", progress=False)


def test_a_file_that_cannot_be_written_is_refused_before_the_first_run(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(md.RecipeError, match=r"compare\(save=\.\.\.\): .*page.html cannot be written: it is a folder"):
        md.compare([Probe("fail", 0)], federation(), rounds=3, seeds=1, save=tmp_path / "page.html")


def test_the_error_of_saving_has_the_board(tmp_path, monkeypatch):
    def full(self, path):
        raise md.MedleyError("No space left on device")

    monkeypatch.setattr(Board, "save", full)
    with pytest.raises(md.MedleyError, match="No space left") as caught:
        md.compare([md.FedAvg()], federation(), rounds=1, seeds=1, jobs=1, save=tmp_path / "report.html")
    assert [r.method for r in caught.value.result.results] == ["FedAvg"]


@pytest.mark.parametrize("jobs", quick(1, [1, 2]))
def test_no_network_is_read_where_only_figures_are_wanted(tmp_path, monkeypatch, jobs):
    one = federation().run(md.FedAvg(), rounds=1, checkpoint=tmp_path / "one", progress=False)
    assert md.Result.load(tmp_path / "one").model is not None
    monkeypatch.setattr("medley.storage.modules.restored", lambda *a: pytest.fail("a network is read"))
    again = md.Result.load(tmp_path / "one", model=False)
    assert (again.model, again.digest) == (None, one.digest)
    for _ in range(2):  # the second call takes the runs from the folder
        compare([md.FedAvg()], federation(), rounds=1, seeds=2, jobs=jobs, save=tmp_path / "two")
    assert [r.model for r in Board.load(tmp_path / "two").results] == [None, None]
    shown = CliRunner().invoke(cli.app, ["show", str(tmp_path / "two")])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("name", ["FedAvg ", "", "Fed  Avg", "Fed\nAvg"])
def test_names_that_a_table_would_show_alike_are_refused(name):
    with pytest.raises(md.RecipeError, match="without spaces around it or two in a row"):
        compare({"FedAvg": md.FedAvg(), name: md.FedProx(0.1)}, federation(), 1)
    with pytest.raises(md.RecipeError, match="without spaces around it or two in a row"):
        md.run(md.FedAvg(), federation(), 1, metrics={name: (lambda z, y: 1.0, "max")})


def test_paired_names_a_metric_that_no_run_has():
    board = compare([md.FedAvg(), md.FedProx(0.1)], federation(), 1, 1, progress=False)
    for metric in ("nope", "status", "round"):
        with pytest.raises(md.RecipeError, match=rf"paired\(metric=\.\.\.\): this comparison has no '{metric}'"):
            board.paired(metric=metric)
    assert {p.metric for p in board.paired(metric="bytes_up")} == {"bytes_up"}
