from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import medley as md
from medley.clients.host import ClientHost
from medley.clients.memories import Memories
from medley.contract import errors, pytree
from medley.engines.seq import Seq
from medley.runtime.tricks import ALIGNED
from medley.transports import InProcess, Processes
from medley.transports.arena import Arena
from medley.transports.failures import describe, revive
from medley.wire.exchange import Exchange
from support.pairs import quick
from support.scripted import Assassin, Script, assert_same, federation, train


@pytest.mark.parametrize("workers", quick(1, [2, 1, 3, 9]))
def test_same_bits_whatever_the_number_of_workers(workers: int) -> None:
    a = train(Script(), InProcess())
    assert_same(a, train(Script(), Processes(workers)))
    assert len({e.client for e in a.ledger}) == 6
    assert a["loss"][-1] < a["loss"][0]


@pytest.mark.parametrize("workers", [0, -1, 1025, 10**30])
def test_a_number_of_workers_that_no_machine_bears_is_refused(workers: int) -> None:
    with pytest.raises(md.RecipeError, match=rf"Processes\(workers={workers}\): must be .* in \[1, 1024\]") as caught:
        Processes(workers)
    assert caught.value.key == "workers"


@pytest.mark.slow
def test_buffers_and_dropout_have_the_same_bits() -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
    data = md.datasets.gaussian_classes(n=120, features=8, classes=3, test=30)
    fed = md.Federation(md.problems.Network(net), data=data, partition=md.partitions.IID(6))
    a, b = train(Script(), InProcess(), fed), train(Script(), Processes(2), fed)
    assert_same(a, b)
    assert a.model is not None
    assert b.model is not None
    for (name, one), other in zip(a.model.named_buffers(), b.model.buffers(), strict=True):
        assert torch.equal(one, other), name
    assert float(a.model.get_buffer("1.running_mean").abs().max()) > 0


@pytest.mark.slow
def test_slow_clients_do_not_matter() -> None:
    def slow(client: int, round: int) -> None:
        time.sleep(0.05 * (client == (0, 3)[round % 2]))

    assert_same(train(Script(), InProcess()), train(Script(slow), Processes(2)))


def test_resume_in_workers_what_began_in_one_process(tmp_path: Path) -> None:
    whole = train(Script(), InProcess(), rounds=4)
    train(Script(), InProcess(), rounds=2, checkpoint=tmp_path)
    rest = train(Script(), Processes(2), rounds=4, resume=tmp_path)
    assert_same(whole, rest)


# Errors


def divide(client: int, round: int) -> None:
    if client in (2, 4) and round == 2:
        time.sleep(0.2 * (client == 2))
        1 / 0  # noqa: B018


def test_the_first_block_that_fails_is_reported_as_in_one_process() -> None:
    found = []
    for transport in (InProcess(), Processes(2)):
        with pytest.raises(md.ClientFailed) as e:
            train(Script(divide), transport)
        found.append((e.value.client, e.value.round, e.value.method))
        assert "ZeroDivisionError" in e.value.traceback
        assert "in divide" in e.value.traceback
        assert str(e.value).startswith("client 2 failed in round 2 in train(): ZeroDivisionError")
    assert found == [(2, 2, "train")] * 2


def refuse(client: int, round: int) -> None:
    raise md.BadData("row 7 is odd", client=client, row=7, column=3)


def test_our_errors_keep_class_and_attributes() -> None:
    with pytest.raises(md.BadData, match="row 7 is odd") as e:
        train(Script(refuse), Processes(2))
    assert (e.value.client, e.value.row, e.value.column) == (0, 7, 3)


def test_divergence_is_a_status() -> None:
    fed = federation()
    fed.pace = md.scenarios.Pace(lr=1e200)
    a, b = (train(Script(), t, fed, throw=False) for t in (InProcess(), Processes(2)))
    assert a.status == b.status
    assert a.status.outcome == "diverged"


@pytest.mark.parametrize(
    "e",
    [
        errors.MedleyError("a"),
        errors.RecipeError("b", "key"),
        errors.BadData("c", client=1, row=2, column=None),
        errors.Unsupported("d", method="m", need="n"),
        errors.WireError("e"),
        errors.ClientFailed(client=1, round=2, method="m", traceback="T\nValueError: ä"),
        errors.TooFewReplies("f"),
        errors.Diverged("g", None),
    ],
    ids=lambda e: type(e).__name__,
)
def test_every_error_survives_the_pipe(e: errors.MedleyError) -> None:
    back = revive(json.loads(json.dumps(describe(e))))
    assert type(back) is type(e)
    assert str(back) == str(e)
    assert vars(back) == vars(e)


class Mine(errors.WireError):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__("mine")
        self.tensor, self.code = tensor, 5


def test_errors_of_others_arrive_as_the_nearest_of_ours() -> None:
    back = revive(describe(Mine(torch.zeros(2))))
    assert type(back) is errors.WireError
    assert str(back) == "mine"
    assert vars(back) == {"code": 5}
    try:
        raise AttributeError("no pack")
    except AttributeError as e:
        back = revive(describe(e))
    assert type(back) is errors.MedleyError
    assert "AttributeError: no pack" in str(back)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(md.RecipeError, match=r"a whole number in \[1, ") as e:
        Processes(0)
    assert e.value.key == "workers"
    sim = federation().draw(0)
    host = ClientHost(Script(), sim.problem, lambda i, t: sim.client(i, t, Seq()))
    host.device = "cuda"
    with pytest.raises(md.RecipeError, match="run is on cuda"):
        Processes().open(host)


# Death


@pytest.mark.parametrize("workers", quick(1, [1, 2]))
def test_a_dead_worker_is_replaced_and_nothing_is_lost(tmp_path: Path, workers: int) -> None:
    assert_same(train(Script(), InProcess()), train(Script(Assassin(str(tmp_path), 2)), Processes(workers)))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_block_that_kills_every_worker_names_its_clients(tmp_path: Path) -> None:
    with pytest.raises(md.MedleyError, match=r"3 workers died .* clients \[3\] in round 2 \(train\).* -9"):
        train(Script(Assassin(str(tmp_path), 100)), Processes(2))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_workers_killed_while_idle() -> None:
    killed = []

    def kill(row: dict[str, float]) -> None:
        for p in multiprocessing.active_children()[: int(row["round"])]:
            assert p.pid is not None
            os.kill(p.pid, signal.SIGKILL)
            killed.append(p.pid)

    assert_same(train(Script(), InProcess()), train(Script(), Processes(2), on_round=kill))
    assert len(set(killed)) == 5  # after rounds 1, 2 and 3


@pytest.mark.slow
def test_an_exchange_given_up_leaves_nothing_behind() -> None:
    fed = federation()
    sim = fed.draw(0)
    found = []
    for transport in (InProcess(), Processes(2)):
        host = ClientHost(Script(), sim.problem, lambda i, t: sim.client(i, t, Seq()), memories=Memories())
        with closing(transport.open(host)) as connection:

            def ask(round: int, connection: Any = connection, acked: Any = None) -> Any:
                x = torch.ones(sim.problem.d, dtype=torch.float64)
                blocks, p = tuple((i,) for i in range(6)), dict.fromkeys(range(6), 1.0)
                return connection.exchange(Exchange(round, 0, "train", blocks, {"x": x}, {}, acked or {}, p, None))

            abandoned = ask(1)
            next(abandoned)
            abandoned.close()
            first = {r.block: r.replies for r in ask(2)}
            second = {r.block: r.replies for r in ask(3, acked=dict.fromkeys(range(6), (2, 0)))}
            found.append((first, second, dict(connection.save(dict.fromkeys(range(6), (3, 0))).items())))
    for local, other in zip(found[0], found[1], strict=True):
        assert sorted(local) == sorted(other) == list(range(6))
    flat = [dict(pytree.tensors(f)) for f in found]
    assert flat[0].keys() == flat[1].keys()
    assert len(flat[0]) == 18
    assert all(torch.equal(flat[0][k], flat[1][k]) for k in flat[0])


# Nothing stays


def children() -> set[str]:
    return {c for t in Path("/proc/self/task").iterdir() for c in (t / "children").read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_process_file_or_memory_is_left(tmp_path: Path) -> None:
    train(Script(), Processes(1))  # whatever is opened once
    before = children(), len(list(Path("/proc/self/fd").iterdir())), sorted(os.listdir("/dev/shm"))
    for k in range(2):
        train(Script(Assassin(str(tmp_path), k + 1)), Processes(2))
        with pytest.raises(md.BadData):
            train(Script(refuse), Processes(2))
    sim = federation().draw(0)
    connection = Processes(2).open(ClientHost(Script(), sim.problem, lambda i, t: sim.client(i, t, Seq())))
    assert len(children() - before[0]) == 2
    connection.close()
    connection.close()
    after = children(), len(list(Path("/proc/self/fd").iterdir())), sorted(os.listdir("/dev/shm"))
    assert after == before


PROGRAM = """
import multiprocessing, time, torch, medley as md
from medley.transports import Processes
torch.set_num_threads(1)
q = md.problems.synthetic_quadratics(clients=6, d=5)
fed = md.Federation(q.problem, clients=q.clients)
def tell(row):
    if row["round"] == 2:
        print(*[p.pid for p in multiprocessing.active_children()], flush=True)
r = md.run(md.FedAvg(), fed, 10**7, transport=Processes(2), on_round=tell, progress=False)
print(r.status.outcome, len(multiprocessing.active_children()), flush=True)
"""


@contextmanager
def program() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A long run in a session of its own, as in a terminal; and the ids of its workers."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, **pipes) as p:
        try:
            assert p.stdout is not None
            workers = [int(k) for k in p.stdout.readline().split()]
            assert len(workers) == 2, p.stderr and p.stderr.read()
            assert all(map(alive, workers))
            yield p, workers
        finally:
            p.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ctrl_c_reaches_everybody_and_only_the_parent_answers() -> None:
    with program() as (p, workers):
        os.killpg(p.pid, signal.SIGINT)
        out, err = p.communicate(timeout=60)
        assert out.split() == ["interrupted", "0"]
        assert "KeyboardInterrupt" not in err
        assert not any(map(alive, workers))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_when_the_parent_is_killed() -> None:
    with program() as (p, workers):
        p.kill()
        while any(map(alive, workers)):  # as long as a test may take
            time.sleep(0.05)


# Shared memory


@dataclass
class Leaf:
    t: Tensor | None
    n: float | int | str | bool | None


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16]
DTYPES += [torch.int32, torch.int64, torch.bool]
SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)


@st.composite
def tensor(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    t = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    t = t.to(draw(st.sampled_from(DTYPES)))
    return t.T if draw(st.booleans()) and t.ndim == 2 else t


PYTREES = st.recursive(
    tensor() | SCALARS | st.builds(Leaf, st.none() | tensor(), SCALARS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif dataclasses.is_dataclass(a):
        assert_equal(vars(a), vars(b))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_equal(list(a.values()), list(b.values()))
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b


@given(st.lists(PYTREES, min_size=1, max_size=3))
def test_pytrees_pass_through_shared_memory(pytrees: list[Any]) -> None:
    with closing(Arena()) as writer:
        reader = Arena.__new__(Arena)
        reader.fd, reader.map = writer.fd, None
        for t in pytrees:
            layout = json.loads(json.dumps(writer.write(t)))
            got = reader.read(layout, {"Leaf": Leaf})
            assert_equal(t, got)
            for _, view in pytree.tensors(got):
                assert view.numel() == 0 or view.data_ptr() % ALIGNED == 0
            del got


def test_old_views_outlive_growth() -> None:
    with closing(Arena()) as arena:
        small = arena.read(arena.write([torch.arange(5.0)]), {})
        big = arena.read(arena.write([torch.arange(5.0), torch.ones(1 << 20)]), {})
        assert torch.equal(small[0], big[0])
        assert float(big[1].sum()) == 1 << 20
        small[0][0] = 7
        assert big[0][0] == 7
