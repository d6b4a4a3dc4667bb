"""Clients in this process or in workers, chosen while a run goes on: the same bits, and an honest record."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import threading
import time
from typing import Any

import pytest
import torch

import medley as md
from medley.runtime.cores import cores, one_thread
from medley.transports import Auto, InProcess, Processes, auto
from medley.transports.auto import AutoConnection, LongConnection, Unchosen, forks
from medley.transports.inprocess import InProcessConnection
from support.pairs import quick
from support.scripted import Script, assert_same, federation, train


def digits(clients: int = 80, buffers: bool = False, lr: float = 0.1) -> md.Federation:
    """Clients in four blocks of 20, where there are 80."""
    between = [torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2)] if buffers else [torch.nn.ReLU()]
    net = torch.nn.Sequential(torch.nn.Linear(64, 16), *between, torch.nn.Linear(16, 10))
    data, pace = md.datasets.digits().flatten(), md.scenarios.Pace(lr=lr, epochs=3)
    return md.Federation(md.problems.Network(net), data=data, partition=md.partitions.IID(clients), pace=pace)


def run(transport: Any, method: Any = None, fed: md.Federation | None = None) -> md.Result:
    return md.run(method or md.SCAFFOLD(), fed or digits(), 3, transport=transport, progress=False)


@pytest.mark.parametrize(("spent", "place"), quick(1, [(0.0, "2 processes from round 1 on"), (1e9, "this process: ")]))
@pytest.mark.parametrize("method", quick(1, [md.SCAFFOLD(), md.FedNorton()]), ids=lambda m: m.name)
def test_bits_are_the_same_here_and_there(
    spent: float, place: str, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "SPENT", spent)
    monkeypatch.setattr(auto, "LEAST", 0.0)
    here, there = run(InProcess(), method), run(Auto(2), method)
    assert here.digest == there.digest
    assert there.environment["place"].startswith(place)
    assert "place" not in here.environment


@pytest.mark.slow
def test_workers_take_over_in_the_middle_of_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = digits(40, buffers=True)
    monkeypatch.setattr(auto, "LEAST", 0.0)
    served: list[int] = []
    before = AutoConnection.serve_from

    def counted(self: AutoConnection, exchange: Any, first: int = 0) -> Any:
        served.append(first)
        return before(self, exchange, first)

    monkeypatch.setattr(AutoConnection, "serve_from", counted)
    monkeypatch.setattr(auto, "SPENT", 1e-9)  # the first block is served here, the second in a worker
    assert run(Auto(2), md.FedAvg(), fed).digest == run(InProcess(), md.FedAvg(), fed).digest
    assert served == [0, 0]  # of the first round's two blocks one is left, which a worker would not serve sooner
    served.clear()

    fed = digits(80, buffers=True)
    assert run(Auto(2), md.FedAvg(), fed).digest == run(InProcess(), md.FedAvg(), fed).digest
    assert served == [1, 0, 0]


@pytest.mark.slow
def test_a_small_run_stays_here() -> None:
    there = run(Auto(2), md.FedAvg(), digits(10))
    assert there.environment["place"].startswith("this process: 0 s of work here")
    assert there.digest == run(InProcess(), md.FedAvg(), digits(10)).digest


@pytest.mark.slow
def test_an_error_of_a_client_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SPENT", 0.0)
    monkeypatch.setattr(auto, "LEAST", 0.0)
    assert_same(train(Script(), InProcess(), federation()), train(Script(), Auto(3), federation()))
    told = []
    for transport in (InProcess(), Auto(2)):
        with pytest.raises(md.MedleyError) as caught:
            run(transport, md.FedAvg(), digits(lr=1e30))
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "client" in told[0]


@pytest.mark.slow
def test_one_thread_asked_for_is_one_process_and_more_are_as_many() -> None:
    host = _host()
    assert torch.get_num_threads() == 1
    assert type(Auto().open(host)) is InProcessConnection
    assert type(Unchosen().open(host)) is InProcessConnection
    assert type(Auto(1).open(host)) is InProcessConnection
    torch.set_num_threads(2)
    try:
        connection = Auto().open(host)
        assert type(connection) is (AutoConnection if cores() > 1 else InProcessConnection)
        if isinstance(connection, AutoConnection):
            assert len(connection.workers) == 2
        connection.close()
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        two = run(Auto(2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert two.digest == run(InProcess()).digest == run(Processes(2)).digest


def test_nothing_is_forked_where_that_is_not_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forks("cpu")
    assert not forks("cuda")
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(forks("cpu")))
    thread.start()
    thread.join()
    assert found == [False]
    monkeypatch.setattr("sys.platform", "darwin")
    assert not forks("cpu")
    assert type(Auto(2).open(_host())) is InProcessConnection
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert not forks("cpu")


def test_a_number_of_workers_is_checked() -> None:
    with pytest.raises(md.RecipeError, match=r"workers=0\): must be a whole number"):
        Auto(0)


def test_a_long_run_in_one_process_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto, "LONG", 0.0)
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) * 1e-6)  # a busy machine would take a second
    monkeypatch.setattr(Unchosen, "open", lambda self, host: LongConnection(host, 4))
    with caplog.at_level(logging.WARNING, "medley"):
        result = md.run(md.SCAFFOLD(), digits(), 3, progress=False)
    assert [r.message for r in caplog.records] == [
        "clients have taken 0 s in this process; run(transport=medley.transports.Auto()) serves them in 4 processes, "
        "each with one thread"
    ]
    assert result.digest == run(InProcess()).digest


def _host() -> Any:
    hosts: list[Any] = []

    class Keeps:
        def open(self, host: Any) -> Any:
            hosts.append(host)
            return InProcess().open(host)

    md.run(md.FedAvg(), digits(2), 0, transport=Keeps(), progress=False)
    return hosts[0]
