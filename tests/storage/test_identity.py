"""Fingerprints, and folders that hand back a run only to a call with the same identity."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.contract.errors import RecipeError, WireError
from medley.experiments.compare import compare
from medley.storage.identity import fingerprint, identity
from support import changes
from support.pairs import quick

NAMES = sorted(changes.pairs(Path()))


def compared(call: changes.Call, folder: Path) -> Any:
    return compare([call.method], call.federation(), 1, seeds=1, jobs=1, save=folder, progress=False, **call.options)


def ran(call: changes.Call, rounds: int, **options: Any) -> Any:
    return md.run(call.method, call.federation(), rounds, progress=False, **call.options, **options)


@pytest.mark.parametrize("name", quick(6, NAMES))
def test_a_changed_comparison_is_refused_and_the_same_one_accepted(tmp_path: Path, name: str):
    same, changed = changes.pairs(tmp_path)[name]
    first = compared(same(), tmp_path / "a").results[0]
    before = {p: p.read_bytes() for p in sorted((tmp_path / "a").rglob("*")) if p.is_file() and p.name[0] != "."}
    assert compared(same(), tmp_path / "a").results[0].digest == first.digest
    with pytest.raises(WireError, match="holds another run"):
        compared(changed(), tmp_path / "a")
    after = {p: p.read_bytes() for p in sorted((tmp_path / "a").rglob("*")) if p.is_file() and p.name[0] != "."}
    assert after == before


@pytest.mark.parametrize("name", quick(6, NAMES))
def test_a_changed_run_is_not_resumed_and_the_same_one_is(tmp_path: Path, name: str):
    same, changed = changes.pairs(tmp_path)[name]
    folder = tmp_path / "a"
    ran(same(), 1, checkpoint=folder)
    with pytest.raises(WireError, match="is from another run"):
        ran(changed(), 2, resume=folder)
    assert ran(same(), 2, resume=folder).digest == ran(same(), 2).digest


@pytest.mark.slow
def test_another_process_and_hash_seed_compute_the_same(tmp_path: Path):
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = "import sys, json, pathlib; from support import changes\n"
    script += "print(json.dumps(changes.identities(pathlib.Path(sys.argv[1]))))"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=env, capture_output=True, check=True)
    remote = json.loads(done.stdout)
    local = changes.identities(tmp_path)
    assert remote == local
    assert len(local) == 13
    assert {len(parts) for parts in local.values()} == {13}


def code_of(text: str) -> Callable[..., Any]:
    """The function that ``text`` defines last, as another file and place would have it."""
    space: dict[str, Any] = {"__name__": "their_module", "K": 3}
    exec(compile(text, f"/elsewhere/{hash(text)}.py", "exec"), space)
    return next(f for f in reversed(space.values()) if isinstance(f, types.FunctionType))


def test_a_function_counts_by_its_code_and_not_by_its_place():
    base = code_of("def f(x, a=1):\n    return x + a * K")
    assert fingerprint(base) == fingerprint(code_of("\n\n\ndef g(x, a=1):\n    return x + a * K"))
    others = [
        code_of("def f(x, a=1):\n    return x - a * K"),
        code_of("def f(x, a=2):\n    return x + a * K"),
        code_of("def f(x, *, a=1):\n    return x + a * K"),
        code_of("K = 4\ndef f(x, a=1):\n    return x + a * K"),
        code_of("def f(x, a=1):\n    return (lambda z: z + a * K)(x)"),
        code_of("def f(x, a=1):\n    return (lambda z: z + a * K + 0)(x)"),
        functools.partial(base, a=1),
        functools.partial(base, a=2),
    ]
    assert len({fingerprint(f) for f in [base, *others]}) == 9


def test_helpers_and_closures_are_part_of_a_function():
    def made(k: Any) -> Callable[[], Any]:
        return lambda: k

    helped = [code_of(f"def h(x):\n    return x {op} 1\ndef f(x):\n    return h(x)") for op in "+-"]
    assert fingerprint(helped[0]) != fingerprint(helped[1])
    assert fingerprint(made(torch.zeros(3))) == fingerprint(made(torch.zeros(3)))
    different = [
        made(0),
        made(0.0),
        made(torch.zeros(3)),
        made(torch.zeros(1, 3)),
        made(np.zeros(3)),
        made([0]),
        made(()),
    ]
    assert len({fingerprint(f) for f in different}) == len(different)
    assert fingerprint({"b", "a", 3}) == fingerprint({3, "a", "b"})
    recursive = [code_of(f"def f(n):\n    return {k} if n == 0 else f(n - 1)") for k in (1, 1, 2)]
    first, again, other = map(fingerprint, recursive)
    assert first == again != other


def test_a_module_counts_by_weights_buffers_sharing_hooks_and_attributes():
    def module(change: Callable[[Any], object] = lambda m: None) -> nn.Module:
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        with torch.no_grad():
            m[2].weight.copy_(m[0].weight)
        change(m)
        return m

    def hooked(m: Any) -> None:
        m[0].register_forward_hook(lambda m, a, out: 2 * out)

    changed = [
        lambda m: None,
        lambda m: m[0].weight.data.mul_(1.1),
        lambda m: m[1].running_mean.add_(1e-3),
        lambda m: setattr(m[2], "weight", m[0].weight),
        lambda m: setattr(m[1], "momentum", 0.2),
        lambda m: m[0].weight.requires_grad_(False),
        hooked,
    ]
    assert len({fingerprint(module(c)) for c in changed}) == len(changed)
    assert fingerprint(module()) == fingerprint(module().eval())


def test_weights_that_the_seed_draws_do_not_count():
    def family(start: str) -> Any:
        return md.problems.Network(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), start=start)

    before = family("draw").module[1].running_mean.clone()
    assert fingerprint(family("draw")) == fingerprint(family("draw"))
    assert fingerprint(family("module")) != fingerprint(family("module"))
    frozen = [family("draw") for _ in range(2)]
    frozen[1].module[1].running_mean.add_(1.0)
    assert fingerprint(frozen[0]) != fingerprint(frozen[1])
    assert torch.equal(frozen[0].module[1].running_mean, before)


@dataclass(frozen=True)
class Lazy:
    where: str
    fingerprint: str


class Counting:
    def __init__(self) -> None:
        self.numbers = (i for i in range(3))

    def draw(self, round: int, sizes: Any, seed: int) -> np.ndarray:
        return np.array([0])


def test_a_declared_fingerprint_takes_the_place_of_the_fields():
    assert fingerprint(Lazy("a", "1")) == fingerprint(Lazy("b", "1")) != fingerprint(Lazy("a", "2"))


@pytest.mark.parametrize(
    "value", [(i for i in range(3)), torch.Generator(), np.random.default_rng(0), sys.stderr, iter([1])]
)
def test_states_that_cannot_be_compared_are_refused(value: Any):
    with pytest.raises(RecipeError, match="keeps a state that cannot be compared") as caught:
        identity({"metrics": {"x": lambda z, y: value}})
    assert "metrics: value of _closure" not in str(caught.value)
    assert caught.value.key == "metrics"
    assert "a function of a module or a frozen dataclass" in str(caught.value)


def test_they_are_refused_for_folders_only(tmp_path: Path):
    call = changes.Call(md.FedAvg(), {"participation": Counting()}, {})
    assert ran(call, 1).status.ok
    for refused in (lambda: ran(call, 1, checkpoint=tmp_path / "a"), lambda: compared(call, tmp_path / "b")):
        with pytest.raises(RecipeError, match=r"^participation: numbers of Counting, a generator keeps a state"):
            refused()
    assert not [p for p in tmp_path.rglob("*") if p.name[0] != "." and p.is_file()]


def test_nothing_is_digested_without_a_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(md.Federation, "identity", lambda self: pytest.fail("no folder wants it"))
    call = changes.pairs(Path())["loss"][0]()
    assert not [key for key in ran(call, 1).settings if key.startswith("identity.")]


RECURRENT = {"lstm": md.models.lstm, "gru": md.models.gru}


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_keep_references_to_their_weights(kind: str, tmp_path: Path):
    def federation() -> md.Federation:
        data = md.datasets.Dataset(torch.arange(60).reshape(20, 3) % 30, torch.arange(20) % 2, classes=2)
        module = RECURRENT[kind](30, 2, 4, 5)
        return md.Federation(md.problems.Network(module), data=data, partition=md.partitions.IID(2))

    fed = federation()
    before = fed.identity()
    uninterrupted = md.run(md.FedAvg(), fed, 4, checkpoint=tmp_path / "whole", progress=False)
    assert fed.identity() == before
    assert federation().identity() == before
    md.run(md.FedAvg(), federation(), 2, checkpoint=tmp_path / "half", progress=False)
    assert torch.equal(
        md.run(md.FedAvg(), federation(), 4, resume=tmp_path / "half", progress=False).x, uninterrupted.x
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_module_is_the_module():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert fingerprint(torch.compile(module)) == fingerprint(module)
    with pytest.raises(RecipeError, match="ScriptModule keeps a state that cannot be compared"):
        fingerprint(torch.jit.script(nn.Linear(2, 2)))


def wrapped_by(factor: float) -> Any:
    @functools.wraps(torch.nn.functional.cross_entropy)
    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return factor * torch.nn.functional.cross_entropy(z, y)

    return loss


def test_a_wrapper_is_not_what_it_wraps() -> None:
    """functools.wraps gives it the module and the name of torch's own loss."""
    plain = torch.nn.functional.cross_entropy
    marks = {fingerprint(f) for f in (plain, wrapped_by(1.0), wrapped_by(2.0))}
    assert len(marks) == 3
    assert fingerprint(wrapped_by(2.0)) == fingerprint(wrapped_by(2.0))

    class Linear(torch.nn.Linear):
        slope = 0.01

    class Other(torch.nn.Linear):
        slope = 9.01

    for cls in (Linear, Other):
        cls.__module__ = torch.nn.Linear.__module__
        cls.__qualname__ = "Linear"
    assert len({fingerprint(cls) for cls in (torch.nn.Linear, Linear, Other)}) == 3
