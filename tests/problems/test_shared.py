"""Networks whose clients share some parameters: names, order, the view of one part, descents of one part."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley import engines
from medley.contract.client import Client
from medley.contract.errors import MedleyError, Unsupported
from medley.contract.pace import Pace
from medley.problems.network.shared import PartObjective, SharedNetwork

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def ready(shared: Any, module: nn.Module | None = None) -> Any:
    return md.problems.Network(module or net(), shared=shared).ready(X, Y, 3, torch.float64, "cpu")


def test_names_choose_the_shared_parameters():
    sizes = {"0.weight": 20, "0.bias": 5, "1.weight": 5, "1.bias": 5, "3.weight": 15, "3.bias": 3}
    for shared, gone in (
        ("body", ("3.weight", "3.bias")),
        ("all but norms", ("1.weight", "1.bias")),
        (["0.*", "1.*"], ("3.weight", "3.bias")),
        ("!3.*", ("3.weight", "3.bias")),
        (["*", "!*.bias"], ("0.bias", "1.bias", "3.bias")),
    ):
        p = ready(shared)
        assert p.d == sum(sizes.values()) - sum(sizes[name] for name in gone)
        assert p.e == sum(sizes[name] for name in gone)
    assert not isinstance(ready("*"), SharedNetwork)


def test_a_name_that_fits_nothing_is_refused_with_the_nearest():
    with pytest.raises(md.RecipeError, match=r"no '3.wieght'. Did you mean '3.weight'"):
        md.problems.Network(net(), shared="3.wieght")
    with pytest.raises(md.RecipeError, match="no parameter is left"):
        md.problems.Network(net(), shared=["0.*", "!0.*"])
    with pytest.raises(md.RecipeError, match="no normalisation layers"):
        md.problems.Network(nn.Linear(4, 3), shared="all but norms")
    for wrong in ((), 3, [3]):
        with pytest.raises((md.RecipeError, TypeError)):
            md.problems.Network(net(), shared=wrong)  # type: ignore[arg-type]


@pytest.mark.shapes
def test_the_view_is_a_part_of_the_joint_objective():
    p = ready("body")
    x = p.initial(torch.Generator().manual_seed(1))
    f = p.bind(X, Y)
    whole = p.full(x)
    assert torch.equal(f.grad(x), f.joint.grad(whole)[: p.d])
    assert torch.equal(f.others(x).grad(p.part.x), f.joint.grad(whole)[p.d :])
    assert f.loss(x) == f.joint.loss(whole)
    v = torch.randn(p.d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    eps = 1e-6
    p.joint.module.eval()
    numeric = (f.losses_along(x, v, torch.tensor([-eps, eps], dtype=torch.float64)) / (2 * eps)).diff().neg()
    assert float(numeric) == pytest.approx(float(autograd(p, x) @ v), rel=1e-6)
    assert torch.allclose(f.hessian(x) @ v, f.hvp(x, v), atol=1e-12)
    with pytest.raises(Unsupported):
        f.last()
    assert md.contract.needs.Need.FEATURES not in p.gives


def autograd(p: SharedNetwork, x: Tensor) -> Tensor:
    """∇f of the shared part in evaluation mode, by torch alone."""
    leaf = x.clone().requires_grad_()
    p.joint.mode(False)
    loss = nn.functional.cross_entropy(p.joint.call(torch.cat([leaf, p.part.x]), X), Y)
    (g,) = torch.autograd.grad(loss, leaf)
    return g


def client(p: Any, engine: str = "auto", **pace: Any) -> Client[Any]:
    settings = {"lr": 0.1, "epochs": 2, "batch": 4, **pace}
    return Client(0, 1.0, p.bind(X, Y), Pace(**settings), engines.choose(engine, p, "cpu"))


PACES: list[dict[str, Any]] = [{}, {"momentum": 0.9}, {"weight_decay": 0.1, "clip": 0.5}, {"optimizer": "adam"}]


@pytest.mark.parametrize("pace", PACES, ids=str)
def test_a_descent_on_both_parts_is_that_of_the_whole_network(pace: dict[str, Any]):
    shared, plain = ready("body"), ready(None)
    x = shared.initial(torch.Generator().manual_seed(1))
    y = plain.initial(torch.Generator().manual_seed(1))
    assert torch.equal(shared.full(x), y)  # the head is last in the module, too
    step, whole = client(shared, **pace).descend(x).step, client(plain, **pace).descend(y).step
    assert torch.allclose(step, whole[: shared.d], atol=1e-14, rtol=0)
    assert torch.allclose(shared.part.x - y[shared.d :], whole[shared.d :], atol=1e-14, rtol=0)


@pytest.mark.shapes
def test_a_pull_a_shift_and_a_correction_leave_the_own_part_alone():
    p = ready("body")
    x = p.initial(torch.Generator().manual_seed(1))
    g = p.bind(X, Y).joint.grad(p.full(x))
    anchor, shift = torch.ones_like(x), torch.full_like(x, 2.0)
    me = client(p, epochs=1, batch=None)
    before = p.part.x
    update = me.descend(x, scale=3.0, pull=(0.5, anchor), shift=shift, correct=lambda w, u, rows: 2 * u)
    assert torch.allclose(update.step, -0.1 * (6 * g[: p.d] + 0.5 * (x - anchor) + shift), atol=1e-14, rtol=0)
    assert torch.allclose(p.part.x - before, -0.1 * 3 * g[p.d :], atol=1e-14, rtol=0)
    assert pytest.approx(0.1) == update.T
    pulled = client(p, momentum=0.5).descend(x, pull=(0.3, anchor)).T
    assert (
        pulled
        == client(ready(None), momentum=0.5)
        .descend(torch.zeros(p.joint.d).double(), pull=(0.3, torch.zeros(p.joint.d).double()))
        .T
    )


def test_a_descent_of_one_part_leaves_the_other():
    p = ready("body")
    x = p.initial(torch.Generator().manual_seed(1))
    me, first = client(p, weight_decay=0.1), p.part.x
    assert torch.equal(
        me.descend(x, train="shared").step.abs() > 0,
        torch.ones(p.d, dtype=torch.bool) & (me.descend(x, train="shared").step != 0),
    )
    assert torch.equal(p.part.x, first)
    update = me.at(epochs=5).descend(x, train="own")
    assert torch.equal(update.step, torch.zeros_like(x))
    assert update.steps == 15
    assert bool((p.part.x != first).all())
    with pytest.raises(MedleyError, match="leave them out"):
        me.descend(x, train="own", shift=x)


@pytest.mark.shapes
def test_phases_keep_states_of_an_optimizer_apart():
    p = ready("body")
    x = p.initial(torch.Generator().manual_seed(1))
    me = client(p, optimizer=torch.optim.Adam, optimizer_state="kept")
    me.descend(x, train="own")
    head = dict(me.optimizer_state or {})
    assert head
    assert all(name.startswith("own/") for name in head)
    me.descend(x, train="shared")
    me.at("another model").descend(x)
    assert me.optimizer_state is not None
    assert {name.partition("/")[0] for name in me.optimizer_state} == {"own", "shared", "another model"}
    assert all(me.optimizer_state[name] is head[name] for name in head)


def test_own_buffers_are_those_of_layers_with_own_parameters():
    p = ready("all but norms")
    assert p.buffers() is None
    assert len(p.own()["floats"]) == 10
    assert len(p.own()["ints"]) == 1
    body = ready("body")
    assert body.buffers() is not None
    assert len(body.own()["floats"]) == 0
    client(p).descend(p.initial(torch.Generator().manual_seed(1)))
    mine = p.own()
    assert int(mine["ints"]) == 6
    p.load_own(None)
    assert int(p.own()["ints"]) == 0
    assert not torch.equal(p.own()["x"], mine["x"])
    p.load_own(mine)
    assert all(torch.equal(t, mine[name]) for name, t in p.own().items())


@pytest.mark.shapes
def test_a_copy_in_another_process_begins_alike():
    p = ready("all but norms")
    x = p.initial(torch.Generator().manual_seed(1))
    client(p).descend(x)
    q = pickle.loads(pickle.dumps(p))
    p.load_own(None)
    assert torch.equal(q.outputs(x, X), p.outputs(x, X))
    assert isinstance(q.bind(X, Y), PartObjective)
    assert q.gives == p.gives


def test_the_stacked_engine_is_refused():
    with pytest.raises(md.RecipeError, match="own parameters"):
        engines.choose("stacked", ready("body"), "cpu")
    relu = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    assert engines.choose("auto", ready("body", relu), "cpu").name == "fused"
    assert engines.choose("auto", ready("2.*", relu), "cpu").name == "seq"
