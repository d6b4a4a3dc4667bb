"""Training loops of the user's own: `Network(module, train=function)`."""

from __future__ import annotations

import copy
import functools
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import medley as md
from medley import loops
from medley import recipe as recipes
from medley.contract.errors import ClientFailed
from medley.engines.set_back import ALL_HOOKS
from support.methods import METHODS

F = nn.functional
DATA = md.datasets.digits().take(240, 60)
Pace = md.scenarios.Pace


def net(norm: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 6), norm or nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def federation(
    train: Callable[..., object] | None, pace: Pace | None = None, norm: nn.Module | None = None
) -> md.Federation:
    problem = md.problems.Network(net(norm), train=train)
    return md.Federation(
        problem, data=DATA, partition=md.partitions.Dirichlet(4, 0.5), pace=pace or Pace(batch=16), weights="uniform"
    )


def plain(make: Callable[..., Any], module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
    """A loop as everybody writes it."""
    del seed
    optimizer = make(module.parameters(), lr=pace.lr)
    for X, y in rows.batches():
        optimizer.zero_grad()
        F.cross_entropy(module(X), y).backward()  # type: ignore[no-untyped-call]
        if pace.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), pace.clip)
        optimizer.step()


sgd = partial(plain, torch.optim.SGD)


def kept(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int, state: dict[str, Any]) -> None:
    """A loop whose optimizer goes on where it was."""
    del seed
    optimizer = torch.optim.Adam(module.parameters(), lr=pace.lr)
    loops.restore(optimizer, state)
    for X, y in rows.batches():
        optimizer.zero_grad()
        F.cross_entropy(module(X), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    loops.save(optimizer, state)


def run(
    train: Callable[..., object] | None,
    pace: Pace | None = None,
    method: Any = None,
    norm: nn.Module | None = None,
    **kw: Any,
) -> md.Result:
    return md.run(method or md.FedAvg(), federation(train, pace, norm), rounds=2, progress=False, **kw)


PACES: dict[str, tuple[Pace, Callable[..., object]]] = {
    "momentum": (Pace(batch=16, epochs=2, momentum=0.9), partial(plain, partial(torch.optim.SGD, momentum=0.9))),
    "decay": (Pace(batch=16, weight_decay=0.1), partial(plain, partial(torch.optim.SGD, weight_decay=0.1))),
    "clip": (Pace(batch=16, clip=0.5), sgd),
    "steps": (Pace(batch=7, steps=5), sgd),
    "all rows": (Pace(batch=None, steps=3), sgd),
    "AdamW": (
        Pace(batch=16, lr=0.01, optimizer=partial(torch.optim.AdamW, weight_decay=0.1)),
        partial(plain, partial(torch.optim.AdamW, weight_decay=0.1)),
    ),
    "schedule": (Pace(batch=16, schedule=lambda t: 1 / t), sgd),
}


@pytest.mark.parametrize("name", PACES)
def test_a_plain_loop_computes_what_the_pace_does(name: str) -> None:
    pace, loop = PACES[name]
    expected = run(None, pace)
    result = run(loop, pace)
    assert torch.allclose(result.x, expected.x, atol=1e-6)
    assert result.buffers is not None
    assert expected.buffers is not None
    assert torch.allclose(result.buffers[0], expected.buffers[0], atol=1e-6)
    assert result.summary["seconds"] == expected.summary["seconds"]
    assert result.settings["engine"] == "own loop"


def test_an_optimizers_state_is_kept_and_resumed_to_the_bit(tmp_path: Path) -> None:
    pace = Pace(batch=16, lr=0.01, optimizer=torch.optim.Adam, optimizer_state="kept")
    mine = federation(kept, Pace(batch=16, lr=0.01))
    result = md.run(md.FedAvg(), mine, rounds=3, progress=False)
    fresh = partial(plain, torch.optim.Adam)
    assert torch.allclose(result.x, md.run(md.FedAvg(), federation(None, pace), rounds=3, progress=False).x, atol=1e-6)
    other = md.run(md.FedAvg(), federation(fresh, Pace(batch=16, lr=0.01)), rounds=3, progress=False)
    assert not torch.allclose(result.x, other.x, atol=1e-4)
    md.run(md.FedAvg(), mine, rounds=1, progress=False, checkpoint=tmp_path / "run")
    resumed = md.run(md.FedAvg(), mine, rounds=3, progress=False, resume=tmp_path / "run")
    assert torch.equal(resumed.x, result.x)


def test_two_optimizers_and_values_of_ones_own_share_a_state() -> None:
    counts = []

    def two(module: Any, rows: loops.LoopRows, pace: Any, seed: int, state: dict[str, Any]) -> None:
        del pace, seed
        optimizers = {
            "body": torch.optim.Adam(module[0].parameters()),
            "head": torch.optim.Adam(module[3].parameters()),
        }
        for name, optimizer in optimizers.items():
            loops.restore(optimizer, state, name)
        F.cross_entropy(module(rows.X), rows.y).backward()  # type: ignore[no-untyped-call]
        for name, optimizer in optimizers.items():
            optimizer.step()
            loops.save(optimizer, state, name)
        state["rounds"] = state.get("rounds", 0) + 1
        moments = optimizers["head"].state[module[3].weight]
        counts.append((state["rounds"], int(moments["step"]), moments["exp_avg"].shape))

    run(two)
    assert counts == [(1, 1, (10, 6))] * 4 + [(2, 2, (10, 6))] * 4


def test_what_a_loop_draws_depends_on_seed_client_and_round() -> None:
    seeds = []

    def noisy(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        seeds.append((rows.client, seed))
        sgd(module, rows, pace, seed)
        with torch.no_grad():
            for p in module.parameters():
                p += 0.01 * torch.randn_like(p)

    first = run(noisy)
    assert len({seed for _, seed in seeds}) == 8
    assert torch.equal(run(noisy).x, first.x)
    assert not torch.equal(run(noisy, seed=1).x, first.x)
    assert seeds[:8] == seeds[8:16]


def test_rows_are_those_of_the_client() -> None:
    shown: dict[str, Any] = {}

    def look(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        del module, pace, seed
        X, y = rows[-1]
        assert torch.equal(X, rows.X[-1])
        assert y == rows.y[-1]
        assert len(torch.utils.data.DataLoader(rows, batch_size=5)) == -(-len(rows) // 5)
        shown[rows.name] = (rows.X.shape, sum(len(y) for _, y in rows.batches()), len(rows))
        with pytest.raises(IndexError, match=r"client .* has \d+ rows; there is no row"):
            rows[len(rows)]

    md.run(md.FedAvg(), federation(look), rounds=1, progress=False)
    assert sum(n for _, _, n in shown.values()) == 240
    assert all(shape == (n, 64) and n == seen for shape, seen, n in shown.values())


def test_a_loop_writes_into_its_own_copy_of_rows_and_state() -> None:
    sums = []

    def writes(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int, state: dict[str, Any]) -> None:
        sums.append((rows.client, float(rows.X.sum()), int(rows.y.sum())))  # type: ignore[union-attr]
        sgd(module, rows, pace, seed)
        rows.X.numpy()[:] *= 2  # type: ignore[union-attr]
        rows.y.data.zero_()
        state.setdefault("count", torch.zeros(1)).add_(1)

    result = run(writes)
    assert sums[:4] == sums[4:]
    assert torch.equal(result.x, run(sgd).x)


def hooked(module: nn.Module, *_: object) -> None:
    module[0].register_forward_hook(lambda *_: None)  # type: ignore[index]


def halved(module: nn.Module, *_: object) -> None:
    module.half()


def reshaped(module: nn.Module, *_: object) -> None:
    module[3] = nn.Linear(6, 11)  # type: ignore[operator]


def renamed(module: nn.Module, *_: object) -> None:
    del module[0]  # type: ignore[operator]


def returns(module: nn.Module, *_: object) -> nn.Module:
    return module


def without_gradients(*_: object) -> None:
    torch.set_grad_enabled(False)


def other_dtype(*_: object) -> None:
    torch.set_default_dtype(torch.float64)


def global_hook(*_: object) -> None:
    handles.append(nn.modules.module.register_module_forward_hook(lambda *_: None))


def listed(module: nn.Module, rows: object, pace: object, seed: int, state: dict[str, Any]) -> None:
    state["moments"] = [1.0]


def optimizer_hook(*_: object) -> None:
    handles.append(register_optimizer_step_pre_hook(lambda *_: None))


def autocast(*_: object) -> None:
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()


def device(*_: object) -> None:
    torch.device("meta").__enter__()


def default_device(*_: object) -> None:
    torch.set_default_device("meta")


def widened(module: nn.Module, *_: object) -> None:
    module.register_parameter("scale", nn.Parameter(torch.ones(1)))


def counting(module: nn.Module, *_: object) -> None:
    module.register_buffer("count", torch.zeros(1))


def moved(module: nn.Module, *_: object) -> None:
    module.to("meta")


handles: list[Any] = []
ERRORS = {
    optimizer_hook: r"left a hook on every optimizer; remove it",
    autocast: r"left autocast on for cpu; use torch.autocast\(\) as a context",
    device: r"left torch's default device at meta; use torch.device\(\) as a context",
    default_device: r"left torch's default device at meta",
    widened: r"added scale to the module, which would not travel",
    counting: r"added count to the module, which would not travel",
    moved: r"changed the device of 0.weight from cpu to meta",
    hooked: r"hooked\): the function left a hook on 0; remove it",
    halved: r"changed the dtype of 0\.weight from torch.float32 to torch.float16",
    reshaped: r"changed the shape of 3\.weight from \[10, 6\] to \[11, 6\]",
    renamed: r"changed the shape of 0\.weight|took .* out of the module",
    returns: r"returned a Sequential; train the given module in place",
    without_gradients: r"left gradients off",
    other_dtype: r"left torch's default dtype at torch.float64",
    global_hook: r"left torch in a mode that other clients would meet: a global hook",
    listed: r"put 'moments', a list, into its state",
}


@pytest.mark.parametrize("loop", ERRORS, ids=lambda f: f.__name__)
def test_what_a_loop_may_not_leave_behind_is_named_with_the_client(loop: Callable[..., object]) -> None:
    fed = md.Federation(md.problems.Network(net(), train=loop), data=DATA, partition=md.partitions.IID(2))
    before = process()
    with pytest.raises(md.RecipeError, match=r"client 0: Network\(train=.*" + ERRORS[loop]):
        md.run(md.FedAvg(), fed, rounds=1, progress=False)
    assert process() == before
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_default_device().type == "cpu"


def process() -> list[Any]:
    """What a loop may change of the process."""
    return [
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch._C._get_mkldnn_enabled(),
        str(np.geterr()),
        os.getcwd(),
        signal.getsignal(signal.SIGINT),
        [len(by_number) for by_number in ALL_HOOKS],
    ]


def swaps(module: Any, rows: loops.LoopRows) -> None:
    module[3].weight = nn.Parameter(module[3].weight.detach().clone())


def assigns(module: Any, rows: loops.LoopRows) -> None:
    module.load_state_dict(copy.deepcopy(module).state_dict(), assign=True)


def seeds_everything(module: Any, rows: loops.LoopRows) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def zeroes_what_it_has(module: Any, rows: loops.LoopRows) -> None:
    for other, their in remembered:
        for t in (*other.parameters(), *other.buffers(), their.X, their.y):
            t.data.zero_()
    remembered.append((module, rows))


def forks(module: Any, rows: loops.LoopRows) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer versions of Python warn of threads
        process = os.fork()
    if process:
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1


remembered: list[Any] = []
LEFT: dict[str, Callable[[Any, Any], object]] = {
    "threads": lambda module, rows: torch.set_num_threads(3),
    "deterministic": lambda module, rows: torch.use_deterministic_algorithms(True),
    "precision": lambda module, rows: torch.set_float32_matmul_precision("medium"),
    "oneDNN": lambda module, rows: torch._C._set_mkldnn_enabled(False),
    "anomalies": lambda module, rows: torch.autograd.set_detect_anomaly(True),
    "numpy": lambda module, rows: np.seterr(all="raise"),
    "folder": lambda module, rows: os.chdir("/"),
    "Ctrl-C": lambda module, rows: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "eval": lambda module, rows: module.eval(),
    "frozen": lambda module, rows: module.requires_grad_(False),
    "double and back": lambda module, rows: module.double().float(),
    "compiled": lambda module, rows: module.compile(backend="eager"),
    "shared memory": lambda module, rows: module.share_memory(),
    "batches": lambda module, rows: [list(rows.batches()), next(iter(rows.batches()))],
    "swaps": swaps,
    "assigns": assigns,
    "seeds": seeds_everything,
    "remembers": zeroes_what_it_has,
    **({"forks": forks} if hasattr(os, "fork") else {}),
}


@pytest.mark.parametrize("name", [pytest.param(k, marks=[pytest.mark.slow] * (k == "compiled")) for k in LEFT])
def test_what_one_client_does_to_the_process_reaches_no_other(name: str) -> None:
    def loop(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        sgd(module, rows, pace, seed)
        if rows.client == 1:
            LEFT[name](module, rows)

    before = process()
    remembered.clear()
    assert torch.equal(run(loop).x, plainly())
    assert process() == before


@functools.cache
def plainly() -> torch.Tensor:
    return run(sgd).x


@pytest.mark.parametrize("how", ["in place", "past the version", "thawed"])
def test_frozen_parameters_are_shared_and_stay_as_they_are(how: str) -> None:
    def loop(module: Any, *_: object) -> None:
        with torch.no_grad():
            if how == "in place":
                module[0].weight += 1
            elif how == "past the version":
                module[0].weight.data += 1
            else:
                module[0].weight.requires_grad_(True)

    module = net()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    fed = md.Federation(md.problems.Network(module, train=loop), data=DATA, partition=md.partitions.IID(2))
    with pytest.raises(md.RecipeError, match=r"client 0: .* (changed the frozen|thawed) 0\.weight"):
        md.run(md.FedAvg(), fed, rounds=1, progress=False)
    assert not module[0].weight.requires_grad  # type: ignore[index]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.last.weight = self.first.weight

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(X)))  # type: ignore[no-any-return]


def test_a_parameter_that_two_parts_share_stays_one() -> None:
    def apart(module: Any, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        module.last.weight = nn.Parameter(module.last.weight.detach().clone())
        sgd(module, rows, pace, seed)

    results = []
    for train in (None, sgd, apart):
        net = md.problems.Network(Tied(), train=train)
        fed = md.Federation(net, data=DATA, partition=md.partitions.IID(2), weights="uniform")
        if train is apart:
            with pytest.raises(md.RecipeError, match=r"client 0: .*trained last.weight apart from the part .* shares"):
                md.run(md.FedAvg(), fed, rounds=1, progress=False)
        else:
            results.append(md.run(md.FedAvg(), fed, rounds=1, progress=False).x)
    assert torch.allclose(*results, atol=1e-6)


def test_a_function_that_trains_nothing_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    def trains_a_copy(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        sgd(copy.deepcopy(module), rows, pace, seed)

    run(trains_a_copy)
    assert [r.getMessage() for r in caplog.records] == [
        "client 0: Network(train=trains_a_copy) trained nothing: all parameters are as they were. It must train the "
        "module that it gets, not a copy"
    ]


@pytest.mark.parametrize("what", ["0.weight", "1.running_mean"])
def test_numbers_that_are_not_finite_are_the_clients(what: str) -> None:
    def diverges(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        if rows.client == 2:
            module.state_dict()[what].fill_(torch.nan)

    with pytest.raises(md.Diverged, match=r"client 2.* not finite.*try a smaller lr"):
        run(diverges)


def test_a_loop_that_exits_fails_and_one_that_ends_by_ctrl_c_interrupts_the_run() -> None:
    def exits(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        if rows.client == 2:
            sys.exit(3)

    def as_lightning(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    with pytest.raises(ClientFailed, match=r"client 2 failed.*Network\(train=exits\) called sys.exit\(3\)") as error:
        run(exits)
    assert "in exits" in error.value.traceback
    assert "Ctrl-C" in str(run(as_lightning).status)


def test_a_client_whose_loop_raises_is_named_with_its_traceback() -> None:
    def fails(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        if rows.client == 2:
            raise KeyError("scan_0042")

    with pytest.raises(ClientFailed, match="client 2") as error:
        run(fails)
    assert "scan_0042" in error.value.traceback
    assert "in fails" in error.value.traceback


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_each_method_takes_a_loop_or_says_so_before_round_1(method: Any) -> None:
    trained = []

    def counted(*arguments: Any) -> None:
        trained.append(1)
        sgd(*arguments)

    fed = federation(counted)
    if not method.any_loop:
        with pytest.raises(md.Unsupported, match=r"Network\(train=...\)|needs"):
            md.run(method, fed, rounds=1, progress=False)
        assert not trained
        return
    try:
        result = md.run(method, fed, rounds=2, progress=False)
    except md.Unsupported:  # it needs what this federation lacks, such as a stream
        assert not trained
        return
    assert trained
    expected = md.run(method, federation(None), rounds=2, progress=False, engine="seq")
    assert torch.allclose(result.x, expected.x, atol=1e-5)


def test_personal_parts_codecs_secure_sums_and_privacy_by_client_take_a_loop() -> None:
    expected = md.run(md.FedPer(), federation(None), rounds=2, progress=False)
    result = md.run(md.FedPer(), federation(sgd), rounds=2, progress=False)
    assert torch.allclose(result.x, expected.x, atol=1e-6)
    assert result.personal[0].keys() == expected.personal[0].keys()
    for i, model in result.personal.items():
        assert torch.allclose(model["3.weight"], expected.personal[i]["3.weight"], atol=1e-6)
    more: dict[str, Any]
    for method, more in (
        (md.FedAvg(), {"codec": md.codecs.Quantise(8)}),
        (md.FedAvg(), {"secure": md.SecureSum()}),
        (md.Private(md.FedAvg(), noise=0.5, clip=1.0), {}),
    ):
        more["norm"] = nn.GroupNorm(2, 6)
        assert torch.allclose(run(sgd, method=method, **more).x, run(None, method=method, **more).x, atol=1e-5)
    with pytest.raises(md.Unsupported, match="DP-FedAvg takes steps of its own"):
        run(sgd, method=md.Private(md.FedAvg(), noise=1.0, clip=1.0, unit="row"))


def test_a_method_that_claims_to_take_any_loop_is_refused_as_it_shifts() -> None:
    class Claims(md.SCAFFOLD):
        any_loop = True

    with pytest.raises(md.Unsupported, match="the method shifts gradients, and a training loop takes its own steps"):
        run(sgd, method=Claims())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": "loop"}, r"must be a function such as train\(module, rows, pace, seed\), or None"),
        ({"train": net()}, r"give a function \(module, rows, pace, seed\)"),
        ({"train": lambda module: None}, r"is called with \(module, rows, pace, seed\): too many positional"),
        ({"train": sgd, "class_weights": [1.0] * 10}, "a loop of your own has its own loss; weigh classes there"),
        ({"train": sgd, "transform": lambda rows, rng: rows}, "a loop of your own makes its batches"),
    ],
)
def test_a_loop_is_a_function_of_four_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(md.RecipeError, match=message):
        md.problems.Network(net(), **settings)


def test_an_engine_by_name_does_not_run_a_loop() -> None:
    with pytest.raises(md.RecipeError, match=r"run\(engine='fused'\): clients train by Network\(train=...\)"):
        run(sgd, engine="fused")


def test_a_recipe_names_the_function(tmp_path: Path) -> None:
    (tmp_path / "loop_of_a_recipe.py").write_text(
        "import torch\n\ndef loop(module, rows, pace, seed):\n"
        "    optimizer = torch.optim.SGD(module.parameters(), lr=pace.lr)\n"
        "    for X, y in rows.batches():\n        optimizer.zero_grad()\n"
        "        torch.nn.functional.cross_entropy(module(X), y).backward()\n        optimizer.step()\n"
    )
    text = (
        '[data]\nname = "digits"\n[partition]\nkind = "IID"\nclients = 4\n[[methods]]\nkind = "FedAvg"\n'
        '[problem]\nkind = "Network"\nmodel = "mlp"\nhidden = [6]\n'
    )
    results = []
    for k, train in enumerate(('train = "loop_of_a_recipe:loop"\n', "")):
        (tmp_path / f"{k}.toml").write_text(text + train)
        recipe = recipes.load(tmp_path / f"{k}.toml")
        results.append(md.run(recipe.methods()[0], recipe.federation(), rounds=2, progress=False))
    assert results[0].settings["engine"] == "own loop"
    assert torch.allclose(results[0].x, results[1].x, atol=1e-6)


@pytest.mark.slow
def test_workers_have_the_same_bits() -> None:
    alone = run(sgd, transport=md.transports.Processes(1)).x
    assert torch.equal(run(sgd, transport=md.transports.Processes(2)).x, alone)
