from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract import pytree
from medley.server.loop import Loop
from medley.server.options import RunOptions
from medley.server.run_state import RunState
from medley.storage import checkpoint, events, spill
from medley.storage.result import Result
from medley.transports.inprocess import InProcessConnection
from support.pairs import quick
from support.toys import Kill, Toy, federation, host

HERE = Path(__file__).parent.parent


def figures(r: Result) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "wall"} for row in r.history]


def same(a: Result, b: Result) -> None:
    assert torch.equal(a.x, b.x)
    assert figures(a) == figures(b)
    assert list(a.ledger) == list(b.ledger)
    assert (a.ledger.exchanges, a.ledger.down, a.ledger.up) == (b.ledger.exchanges, b.ledger.down, b.ledger.up)


class At:
    """Trouble at one client of one round's exchange, once."""

    fingerprint = "trouble"  # the same run, whether it is armed or not

    def __init__(self, round: int, exchange: int, client: int, error: BaseException) -> None:
        self.where, self.error, self.armed = (client, round, exchange), error, True

    def __call__(self, client: int, round: int, exchange: int) -> None:
        if self.armed and (client, round, exchange) == self.where:
            self.armed = False
            raise self.error

    def __repr__(self) -> str:
        return "trouble"


def ctrl_c(round: int, exchange: int = 0, client: int = 2) -> At:
    return At(round, exchange, client, KeyboardInterrupt())


@pytest.fixture(scope="module")
def whole() -> Result:
    return md.run(Toy(), federation(), 6)


def test_a_history_has_a_row_for_x0_and_one_a_round(whole: Result):
    assert [row["round"] for row in whole.history] == [0, 1, 2, 3, 4, 5, 6]
    assert [row["exchanges"] for row in whole.history] == [0, 2, 4, 6, 8, 10, 12]
    d, n = 3, 5
    assert whole["bytes_down"] == [k * 2 * n * d * 8 for k in range(7)]
    assert whole["bytes_up"] == [k * 2 * n * (d * 8 + 16) for k in range(7)]
    assert "drift" not in whole.history[0]
    assert all(row["drift"] > 0 for row in whole.history[1:])
    wall = whole["wall"]
    assert wall == sorted(wall)
    assert whole.summary["round"] == 6
    assert whole.status.outcome == "finished"


def test_two_runs_of_one_seed_are_the_same_and_of_two_seeds_not(whole: Result):
    same(whole, md.run(Toy(), federation(), 6))
    assert not torch.equal(whole.x, md.run(Toy(), federation(), 6, seed=1).x)


@pytest.mark.parametrize("exchange", quick(1, [0, 1]))
@pytest.mark.parametrize("round", [1, 4])
def test_ctrl_c_in_a_client_undoes_the_round_and_resume_goes_on(
    whole: Result, tmp_path: Path, round: int, exchange: int
):
    seen: list[float] = []
    trouble = ctrl_c(round, exchange)
    r = md.run(
        Toy(trouble=trouble), federation(), 6, checkpoint=tmp_path, on_round=lambda row: seen.append(row["round"])
    )
    assert r.status.outcome == "interrupted"
    assert f"after round {round - 1} of 6" in r.status.message
    assert str(tmp_path) in r.status.message
    assert figures(r) == figures(whole)[:round]
    assert seen == list(range(round))
    assert list(r.ledger) == [e for e in whole.ledger if e.round < round]
    assert (tmp_path / checkpoint.FILE).exists()
    same(md.run(Toy(trouble=trouble), federation(), 6, resume=tmp_path), whole)


def test_a_run_that_goes_on_and_ends_at_once_has_the_notes_of_its_last_round(tmp_path: Path) -> None:
    def run(error: BaseException, **given: Any) -> Result:
        return md.run(Toy(trouble=At(4, 0, 2, error)), federation(), 6, eval_every=6, throw=False, **given)

    want = run(md.Diverged("it grew"))
    assert [row["round"] for row in want.history] == [0, 3]
    assert want.history[-1]["drift"] > 0
    assert run(KeyboardInterrupt(), checkpoint=tmp_path).status.outcome == "interrupted"
    same(run(md.Diverged("it grew"), resume=tmp_path), want)


def test_ctrl_c_in_on_round_keeps_the_round_it_was_told_of(whole: Result, tmp_path: Path):
    def stop(row: dict[str, float]) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    r = md.run(Toy(), federation(), 6, checkpoint=tmp_path, on_round=stop)
    assert r.status.outcome == "interrupted"
    assert "after round 3 of 6" in r.status.message
    assert figures(r) == figures(whole)[:4]
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)


class Fourth:
    """A figure that stops the run when it is asked for the fourth time."""

    fingerprint = "zero"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, z: torch.Tensor, y: torch.Tensor) -> float:
        self.calls += 1
        if self.calls == 4:
            raise KeyboardInterrupt
        return 0.0


def test_ctrl_c_in_an_evaluation_undoes_its_round(whole: Result, tmp_path: Path):
    figure = Fourth()
    X = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    r = md.run(Toy(), federation(test=X), 6, checkpoint=tmp_path, metrics={"f": figure})
    assert [row["round"] for row in r.history] == [0, 1, 2]
    again = md.run(Toy(), federation(test=X), 6, resume=tmp_path, metrics={"f": figure})
    assert torch.equal(again.x, whole.x)
    assert again["loss"] == whole["loss"]


def test_ctrl_c_between_evaluations_ends_with_a_row_of_the_last_whole_round(tmp_path: Path):
    whole = md.run(Toy(), federation(), 6, eval_every=4)
    assert [row["round"] for row in whole.history] == [0, 4, 6]
    trouble = ctrl_c(3)
    r = md.run(Toy(trouble=trouble), federation(), 6, eval_every=4, checkpoint=tmp_path)
    assert [row["round"] for row in r.history] == [0, 2]
    assert r["loss"][1] == md.run(Toy(), federation(), 2)["loss"][2]
    same(md.run(Toy(trouble=trouble), federation(), 6, eval_every=4, resume=tmp_path), whole)


def test_without_a_checkpoint_ctrl_c_says_only_where_it_stopped():
    r = md.run(Toy(trouble=ctrl_c(2)), federation(), 6)
    assert str(r.status) == "interrupted: stopped by Ctrl-C after round 1 of 6"


def test_code_that_fails_at_a_client_costs_only_the_round_it_failed_in(whole: Result, tmp_path: Path):
    trouble = At(4, 1, 3, ValueError("odd row"))
    with pytest.raises(
        md.ClientFailed, match=r"client 3 failed in round 4 in shift\(\): ValueError: odd row"
    ) as caught:
        md.run(Toy(trouble=trouble), federation(), 6, checkpoint=tmp_path)
    result = caught.value.result
    assert figures(result) == figures(whole)[:4]
    assert result.status.outcome == "failed"
    same(md.run(Toy(trouble=trouble), federation(), 6, resume=tmp_path), whole)


def test_an_error_in_on_round_is_the_users_own_and_the_checkpoint_is_there(whole: Result, tmp_path: Path):
    def fail(row: dict[str, float]) -> None:
        if row["round"] == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        md.run(Toy(), federation(), 6, checkpoint=tmp_path, on_round=fail)
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)


SCRIPT = """
import os, sys
sys.path.insert(0, {here!r})
from support.toys import Kill, Toy, federation
import medley as md
md.run(Toy(trouble=Kill()), federation(), 6, checkpoint=sys.argv[1], checkpoint_every=2)
"""


@pytest.mark.slow
def test_a_process_killed_in_the_middle_of_a_round_resumes_to_the_same_bits(whole: Result, tmp_path: Path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "KILL": "1"}
    killed = subprocess.run([sys.executable, "-c", SCRIPT.format(here=str(HERE)), str(tmp_path)], env=env, timeout=120)
    assert killed.returncode == 9
    r = md.run(Toy(trouble=Kill()), federation(), 6, resume=tmp_path, checkpoint_every=2)
    same(r, whole)


def test_a_finished_run_goes_on_with_more_rounds(whole: Result, tmp_path: Path):
    md.run(Toy(), federation(), 4, checkpoint=tmp_path, checkpoint_every=100)
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)
    # That went on writing to the same folder, and asking for no more changes nothing.
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)
    with pytest.raises(md.RecipeError, match="has done 6 rounds, more than rounds=2") as e:
        md.run(Toy(), federation(), 2, resume=tmp_path)
    assert e.value.key == "rounds"


def test_resume_into_another_folder_leaves_the_first_as_it_was(whole: Result, tmp_path: Path):
    md.run(Toy(), federation(), 2, checkpoint=tmp_path / "a")
    before = (tmp_path / "a" / checkpoint.FILE).read_bytes()
    same(md.run(Toy(), federation(), 6, resume=tmp_path / "a", checkpoint=tmp_path / "b"), whole)
    assert (tmp_path / "a" / checkpoint.FILE).read_bytes() == before
    same(md.run(Toy(), federation(), 6, resume=tmp_path / "b"), whole)


def test_what_was_changed_is_named_when_a_checkpoint_is_of_another_run(tmp_path: Path):
    md.run(Toy(), federation(), 1, checkpoint=tmp_path)
    with pytest.raises(md.WireError, match=r"method\.lr was 1\.0 there and is 0\.5 here"):
        md.run(Toy(lr=0.5), federation(), 2, resume=tmp_path)
    with pytest.raises(md.WireError, match="seed was 0 there and is 3 here"):
        md.run(Toy(), federation(), 2, resume=tmp_path, seed=3)
    with pytest.raises(md.WireError, match=r"pace\.lr was 0\.05 there and is 0\.01 here"):
        md.run(Toy(), federation(pace=md.scenarios.Pace(lr=0.01)), 2, resume=tmp_path)
    with pytest.raises(md.WireError, match="data was"):
        md.run(Toy(), federation(4), 2, resume=tmp_path)
    with pytest.raises(md.WireError, match="method was 'Toy' there and is 'FedAvg' here"):
        md.run(md.FedAvg(), federation(), 2, resume=tmp_path)


def test_a_schedule_that_is_a_function_does_not_keep_a_run_from_resuming(tmp_path: Path):
    def fed() -> md.Federation:
        return federation(pace=md.scenarios.Pace(lr=lambda t: 0.1 / t, schedule=lambda t: 0.5))

    md.run(Toy(), fed(), 2, checkpoint=tmp_path)
    assert torch.equal(md.run(Toy(), fed(), 4, resume=tmp_path).x, md.run(Toy(), fed(), 4).x)


def test_no_rounds_is_an_evaluation_of_x0():
    r = md.run(Toy(), federation(), 0)
    assert [row["round"] for row in r.history] == [0]
    assert torch.equal(r.x, torch.zeros(3, dtype=torch.float64))
    assert r.status.outcome == "finished"
    assert len(r.ledger) == 0


@pytest.mark.parametrize("setting", [{"rounds": -1}, {"eval_every": 0}, {"checkpoint_every": 0}])
def test_settings_of_the_loop_that_make_no_sense(setting: dict[str, Any]):
    (key,) = setting
    with pytest.raises(md.RecipeError, match=rf"run\({key}=.*must be a whole number, at least") as caught:
        md.run(Toy(), federation(), **{"rounds": 1, **setting})
    assert caught.value.key == key


def test_targets_end_a_run_at_the_first_row_that_reaches_them(whole: Result):
    goal = whole["loss"][3]
    r = md.run(Toy(), federation(), 6, target={"loss": goal})
    assert r.status.outcome == "target"
    assert "loss" in r.status.message
    assert "in round 3" in r.status.message
    assert figures(r) == figures(whole)[:4]
    assert md.run(Toy(), federation(), 6, target={"loss": -1.0}).status.outcome == "finished"
    assert md.run(Toy(), federation(), 6, target={"loss": goal}, eval_every=2).history[-1]["round"] == 4
    last = md.run(Toy(), federation(), 3, target={"loss": goal})
    assert last.status.outcome == "target"
    assert md.run(Toy(), federation(), 6, target={"loss": 1e9}).history[-1]["round"] == 0


def test_a_run_that_reached_its_target_left_a_checkpoint(whole: Result, tmp_path: Path):
    md.run(Toy(), federation(), 6, target={"loss": whole["loss"][3]}, checkpoint=tmp_path)
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)


@pytest.mark.slow
def test_targets_on_the_gradient_the_gap_and_the_accuracy():
    syn = md.problems.synthetic_quadratics(clients=3, d=4, seed=1)
    fed = md.Federation(
        syn.problem, clients=syn.clients, f_star=syn.f_star, pace=md.scenarios.Pace(lr=0.1, batch=None, epochs=1)
    )
    r = md.run(md.FedAvg(), fed, 500, target={"grad_norm": 1e-3})
    assert r.status.outcome == "target"
    assert r["grad_norm"][-1] <= 1e-3 < r["grad_norm"][-2]
    r = md.run(md.FedAvg(), fed, 500, target={"gap": 1e-6})
    assert r["gap"][-1] <= 1e-6 < r["gap"][-2]
    assert r["gap"][0] == r["loss"][0] - syn.f_star
    lone = md.Federation(md.problems.Softmax(), data=md.datasets.digits(), partition=md.partitions.IID(4))
    r = md.run(md.FedAvg(), lone, 20, target={"accuracy": 0.85})
    assert r["accuracy"][-1] >= 0.85 > r["accuracy"][-2]


def test_targets_that_cannot_be_measured_are_refused():
    with pytest.raises(md.RecipeError, match="Did you mean 'accuracy'"):
        md.run(Toy(), federation(), 1, target={"acuracy": 0.9})
    with pytest.raises(md.RecipeError, match=r"give Federation\(f_star=...\)"):
        md.run(Toy(), federation(), 1, target={"gap": 0.1})
    for name in ("accuracy", "test_loss"):
        with pytest.raises(md.RecipeError, match=r"there is no test set to measure that on"):
            md.run(Toy(), federation(), 1, target={name: 0.1})
    with pytest.raises(md.RecipeError, match=r"run\(metrics=...\): there is no test set"):
        md.run(Toy(), federation(), 1, metrics={"f": lambda z, y: 0.0})
    regression = federation(test=(torch.ones(2, 3), torch.ones(2)))
    with pytest.raises(md.RecipeError, match=r"run\(target=...\): this run's history has no 'accuracy'.*test_loss"):
        md.run(Toy(), regression, 1, target={"accuracy": 0.1})


fast = md.scenarios.Pace(lr=1e3, epochs=40, batch=None)


def test_a_diverging_run_names_round_and_client_and_loses_nothing(tmp_path: Path):
    with pytest.raises(md.Diverged, match=r"the loss is inf after round 2: the run diverges; try a smaller lr"):
        md.run(Toy(), federation(pace=fast), 20)
    with pytest.raises(
        md.Diverged, match=r"client 0 sent .* not finite \('v' of Toy.train, round 3\).*smaller lr"
    ) as caught:
        md.run(Toy(), federation(pace=fast), 20, checkpoint=tmp_path, eval_every=20)
    result = caught.value.result
    assert result.status.outcome == "diverged"
    assert str(caught.value) == result.status.message
    assert result.history[0]["round"] == 0
    assert torch.isfinite(result.x).all()
    assert (tmp_path / checkpoint.FILE).exists()
    quiet = md.run(Toy(), federation(pace=fast), 20, throw=False, eval_every=20)
    assert quiet.status.outcome == "diverged"
    assert figures(quiet) == figures(result)
    assert quiet.history[-1]["round"] < 20


def test_a_loss_that_overflows_between_evaluations_still_gives_a_result():
    # The model is finite for a while after the loss is not.
    pace = md.scenarios.Pace(lr=1e12, epochs=1, batch=None)
    r = md.run(Toy(), federation(pace=pace), 60, eval_every=60, throw=False)
    assert r.status.outcome == "diverged"
    assert torch.isfinite(r.x).all()
    assert [row["round"] for row in r.history] == [0]
    assert len(r.ledger) > 0


def test_rounds_in_which_nobody_takes_part_pass():
    fed = federation(participation=md.participation.Fixed([[0, 1], [], [2]]))
    r = md.run(Toy(), fed, 3)
    assert [row["round"] for row in r.history] == [0, 1, 2, 3]
    assert [row["exchanges"] for row in r.history] == [0, 2, 2, 4]
    assert r["loss"][1] == r["loss"][2]
    assert {e.client for e in r.ledger} == {0, 1, 2}


class NoFigures:
    own_tests = False

    def by_client(self, x: torch.Tensor, buffers: Any, round: int) -> list[dict[str, float]]:
        return []

    """Measures nothing."""

    def evaluate(self, x: torch.Tensor, buffers: Any, round: int) -> dict[str, float]:
        return {}

    def remedy(self, advice: str) -> str:
        return advice

    def accuracies(self, x: torch.Tensor, buffers: Any, round: int) -> list[float]:
        return []


def test_all_that_a_checkpoint_holds_comes_back_on_the_device_of_the_run(tmp_path: Path):
    fed = federation()
    sim, x = fed.draw(0), torch.zeros(3, dtype=torch.float64)
    loop = Loop(
        Toy(),
        InProcessConnection(host(fed, Toy())),
        x,
        (x, x.long()),
        sim,
        NoFigures(),
        RunOptions(1, checkpoint=tmp_path),
    )
    loop()
    loop.x0 = x.to("meta")
    live = loop.resume(tmp_path)
    there = [
        live.s.x,
        *(live.bookkeeping.buffers or ()),
        *(m.c for m in loop.connection.save(live.bookkeeping.acked).values()),
    ]
    assert [t.device.type for t in there] == ["meta"] * 8


@pytest.mark.slow
def test_lost_and_late_replies_of_rounds_without_a_row_are_counted_in_the_next(tmp_path: Path):
    def go(rounds: int, every: int, **options: Any) -> Result:
        policy = md.ReplyPolicy(deadline=4.0)
        lossy = md.transports.Lossy(loss=0.2, late=0.3)
        return md.run(
            md.FedAvg(), federation(8), rounds, eval_every=every, transport=lossy, reply_policy=policy, **options
        )

    each, thirds = go(9, 1), go(9, 3)
    for name in ("lost", "late"):
        counts = each[name][1:]
        assert sum(counts) > 3
        assert thirds[name][1:] == [sum(counts[k : k + 3]) for k in (0, 3, 6)]
        assert "lost" not in thirds.history[0]
    assert [row["loss"] for row in thirds.history] == [each["loss"][t] for t in (0, 3, 6, 9)]
    parts = [go(t, 9, checkpoint=tmp_path / "a") if t == 4 else go(t, 9, resume=tmp_path / "a") for t in (4, 9)]
    same(parts[1], go(9, 9))
    assert parts[1]["lost"][-1] == sum(each["lost"][1:])


@pytest.mark.parametrize(
    ("replies", "cohorts", "warns"),
    [
        (3, [[0, 1, 2]], True),
        (5, [[0, 1, 2]], True),
        (2, [[0, 1, 2]], False),
        (0.9, [[0, 1, 2]], True),
        (2, [[0, 1], [0, 1, 2]], False),
    ],
)
def test_late_replies_are_told_by_the_clients_that_a_round_asks(
    replies: float, cohorts: list[list[int]], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of five clients; 0.9 of three are all three."""
    fed = federation(participation=md.participation.Fixed(cohorts), devices=md.devices.Devices())
    r = md.run(md.FedBuff(), fed, 2, reply_policy=md.ReplyPolicy(replies=replies), progress=False)
    assert ("waits for every reply" in caplog.text) == warns == ("waits as" in r.settings)


@pytest.mark.parametrize("every", quick(1, [2, 3, 5, 7]))
def test_a_finished_run_with_an_extra_last_row_goes_on_to_the_same_bits(every: int, tmp_path: Path):
    """A row of round 5 is there because it is the last; a run of 7 rounds has none."""
    whole = md.run(Toy(), federation(), 7, eval_every=every)
    first = md.run(Toy(), federation(), 5, eval_every=every, checkpoint=tmp_path, checkpoint_every=2)
    assert first["round"][-1] == 5
    again = md.run(Toy(), federation(), 5, eval_every=every, resume=tmp_path)
    same(again, first)
    assert Result.load(tmp_path).digest == first.digest
    assert "drift" in again.history[-1]
    same(md.run(Toy(), federation(), 7, eval_every=every, resume=tmp_path), whole)


def test_a_folder_from_before_that_holds_the_extra_row_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as old:
        old.setattr(RunState, "open_ended", lambda self, rounds, eval_every: self)
        first = md.run(Toy(), federation(), 5, eval_every=3, checkpoint=tmp_path)
    same(md.run(Toy(), federation(), 5, eval_every=3, resume=tmp_path), first)


def test_on_round_gets_a_row_of_its_own(tmp_path: Path, whole: Result):
    def log(row: dict[str, float]) -> None:
        row["mine"] = 0.1

    first = md.run(Toy(), federation(), 3, checkpoint=tmp_path, on_round=log)
    assert not any("mine" in row for row in first.history)
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)


class Stop:
    """Ctrl-C or a full disk at one of the values that clients' memories are stored as; afterwards all is well."""

    def __init__(self, call: int, error: BaseException) -> None:
        self.left, self.error = call, error

    def nbytes(self, value: Any) -> int:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return pytree.nbytes(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(pytree, name)


@pytest.mark.parametrize("call", quick(2, [1, 7, 18, 29]))
def test_ctrl_c_while_a_memory_is_stored_loses_none(
    call: int, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as stopped:
        stopped.setattr(spill, "pytree", Stop(call, KeyboardInterrupt()))
        assert md.run(Toy(), federation(), 6, checkpoint=tmp_path).status.outcome == "interrupted"
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)


@pytest.mark.parametrize("writes", quick(1, [30, 47]))
def test_a_disk_that_is_full_for_a_moment_loses_no_memory(
    writes: int, whole: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, writes

        def write(self, raw: bytes) -> int:
            self.left -= 1
            if self.left < 0:
                raise OSError(28, "No space left on device")
            return self.file.write(raw)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    monkeypatch.setattr(spill, "BUDGET", 30)
    with monkeypatch.context() as full:
        real = spill.tempfile.TemporaryFile
        full.setattr(spill.tempfile, "TemporaryFile", lambda **options: Full(real(**options)))
        with pytest.raises(md.MedleyError, match="set TMPDIR"):
            md.run(Toy(), federation(), 6, checkpoint=tmp_path, checkpoint_every=1)
    same(md.run(Toy(), federation(), 6, resume=tmp_path), whole)


def slow_clients(**options: Any) -> md.Federation:
    speed = [1000, 900, 800, 300, 200, 150]
    return federation(6, devices=md.devices.Devices(speed=speed, latency=0.01), **options)


def test_a_late_reply_counts_in_the_round_that_asked_for_it(tmp_path: Path):
    for method in (md.FedAvg(), md.FedBuff()):
        fed, policy = slow_clients(), md.ReplyPolicy(replies=3)
        r = md.run(method, fed, 6, reply_policy=policy, checkpoint=tmp_path / method.name)
        told = [e["late"] for e in events.read(tmp_path / method.name) if e["event"] == "round"]
        assert r["late"][1:] == told
        assert sum(told) >= 3


def test_clients_at_work_keep_the_memories_that_they_began_with(tmp_path: Path):
    """Their models of their own are those of the memory before the late reply, after a resume too."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(9, 4, generator=g), torch.randint(3, (9,), generator=g)) for _ in range(6)]
    fed = md.Federation(
        md.problems.Network(md.models.mlp(4, 3, (5,)), shared="body"),
        clients=clients,
        pace=md.scenarios.Pace(lr=0.3, batch=None),
        devices=md.devices.Devices(speed=[1000, 900, 800, 300, 200, 150], latency=0.01),
    )
    options: dict[str, Any] = {"reply_policy": md.ReplyPolicy(replies=3), "clients_every": 1, "progress": False}
    whole = md.run(md.FedBuff(), fed, 5, **options)
    first = md.run(md.FedBuff(), fed, 3, checkpoint=tmp_path, **options)
    again = md.run(md.FedBuff(), fed, 3, resume=tmp_path, **options)
    assert first.personal.keys() == again.personal.keys()
    for i, mine in first.personal.items():
        assert all(torch.equal(again.personal[i][name], t) for name, t in mine.items())
    resumed = md.run(md.FedBuff(), fed, 5, resume=tmp_path, **options)
    assert resumed.digest == whole.digest
    assert resumed.clients == whole.clients


@pytest.mark.parametrize(("name", "rounds"), [("lost", 0), ("drift", 1)])
def test_a_metric_with_the_name_of_another_column_is_refused(name: str, rounds: int) -> None:
    """Counts of replies at once, a method's own after its first round."""
    clients = [(torch.randn(6, 2), torch.arange(6) % 2)] * 3
    fed = md.Federation(md.problems.Logistic(mu=0.1), clients=clients, test=clients[0])
    with pytest.raises(md.RecipeError, match=f"metrics=.*'{name}' is a column .*already; choose another name"):
        md.run(md.FedDC(), fed, rounds, metrics={name: lambda outputs, y: 1.0})
