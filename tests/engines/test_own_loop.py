"""Training loops of the user's own: `Network(module, train=function)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley import loops
from medley import recipe as recipes
from medley.contract.errors import ClientFailed
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


handles: list[Any] = []
ERRORS = {
    hooked: r"Network\(train=hooked\): the function left a hook on 0; remove it",
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
def test_what_a_loop_may_not_leave_behind_is_named(loop: Callable[..., object]) -> None:
    fed = md.Federation(md.problems.Network(net(), train=loop), data=DATA, partition=md.partitions.IID(2))
    try:
        with pytest.raises(md.RecipeError, match=ERRORS[loop]):
            md.run(md.FedAvg(), fed, rounds=1, progress=False)
    finally:
        for handle in handles:
            handle.remove()
        handles.clear()
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_frozen_parameters_are_shared_and_may_not_be_written() -> None:
    def thaws(module: Any, *_: object) -> None:
        with torch.no_grad():
            module[0].weight += 1

    module = net()
    module[0].weight.requires_grad_(False)  # type: ignore[index]
    fed = md.Federation(md.problems.Network(module, train=thaws), data=DATA, partition=md.partitions.IID(2))
    with pytest.raises(md.RecipeError, match=r"changed the frozen 0\.weight in place"):
        md.run(md.FedAvg(), fed, rounds=1, progress=False)


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
        ({"train": "loop"}, r"give a function \(module, rows, pace, seed\)"),
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
