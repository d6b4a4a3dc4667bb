"""FedECADO(gamma=...): steps by local truncation error, of the node and of the clients, and critical damping."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.algorithms.fedecado import Memory
from medley.numerics.circuit.norton import Sizes, controlled, critical, extension
from medley.problems import LeastSquares, Synthetic
from support.circuits import COHORTS, EIGHT, LR, STEPS, TOY, UNEQUAL, WHERE
from support.oracles import error, federation, run, unchecked
from support.rig import Rig
from support.toys import LossyTransport

GOAL = {"grad_norm": 2e-9}


def method(flows: Any = "server", gamma: float = 0.1) -> md.FedECADO:
    return md.FedECADO(flows=flows, gamma=gamma)


# The node


def test_the_nodes_step_follows_its_truncation_error():
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    of = Sizes.of
    assert controlled(1.0, of(a, 0.75 * a), 0.0, 0.25) == (
        pytest.approx(0.5),
        1.0,
    )  # an error of 1/6
    assert controlled(1.0, of(2 * a, a), 0.0, 0.25) == (0.0, 0.5)  # an error of 1/2: half as long
    assert controlled(1.0, of(2 * a, a), -0.5, 0.25) == (0.0, 0.25)
    assert controlled(1.0, of(9 * a, a), -0.875, 0.25) == (0.0, 0.125)  # at least
    assert controlled(1.0, of(a, a), -0.5, 0.1) == (0.0, 1.0)  # no error: at most twice as long
    assert controlled(1.0, of(a, a), 1.0, 0.1) == (1.0, 1.0)
    assert controlled(0.25, of(2 * a, a), 0.0, 0.25) == (
        1.0,
        0.5,
    )  # the lead is cut with the rest
    assert controlled(1.0, of(a, 0 * a), 0.0, 0.25) == (0.0, 0.5)


@pytest.mark.parametrize("last", [0.0, 0.4])
def test_a_tolerance_of_a_half_is_the_default_rule_between_one_window_and_two(last: float):
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for after in np.linspace(0.55, 0.95, 9):
        sizes = Sizes.of(a, float(after) * a)
        e, share = controlled(1.0, sizes, last, 0.5)
        assert (e, share) == (pytest.approx(extension(1.0, sizes, last), abs=1e-12), 1.0)


def test_the_damping_is_critical():
    """v⁺ = βv − τhx, x⁺ = x + v⁺ has the double root 1 − √(τh), the smallest radius that any β gives."""
    for z in (0.01, 0.2, 0.7):
        radius = {}
        for beta in (0.5 * critical(1.0, 1.0, z), critical(1.0, 1.0, z), 1 - 0.5 * (1 - critical(1.0, 1.0, z))):
            radius[beta] = max(abs(np.linalg.eigvals(np.array([[1 - z, beta], [-z, beta]]))))
        assert radius[critical(1.0, 1.0, z)] == pytest.approx(1 - z**0.5, abs=1e-6)
        assert min(radius.values()) == radius[critical(1.0, 1.0, z)]
    assert critical(0.5, 2.0, 0.0) == critical(0.5, 2.0, -1e-17) == 0.5
    assert critical(1.0, 3.0, 1.0) == 0.0


@pytest.mark.parametrize("f", [0.01, 0.1, 0.5, 0.8, 1.0])
def test_a_cut_mean_round_is_stable_for_every_curvature_that_a_descent_bears(f: float):
    for eta in np.linspace(0.01, 1, 12):
        for e in np.linspace(0, 0.999, 5):
            for share in (0.125, 0.3, 0.7):
                for beta in np.linspace(0, 0.999 * f, 5):
                    row = np.array([-share * eta * (1 + e * f), -share * e * (1 - f), beta])
                    M = np.array([row, [f * eta, 1 - f, 0], row])
                    M[0, 0] += 1
                    assert max(abs(np.linalg.eigvals(M))) < 1


# The clients


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("h", [0.5, 10.0, 0.01, 100.0])
def test_a_clients_step_errs_by_gamma_or_is_a_decade_off_its_pace(h: float, momentum: float):
    """Curvature h alone: lr h/2 = γ, so that the factor is 2γ(1 − ρ)/(lr h), between 0.1 and 10."""
    X = torch.eye(3, dtype=torch.float64) * (3 * h) ** 0.5
    toy = Synthetic(LeastSquares(), [(X, X @ torch.ones(3, dtype=torch.float64))] * 2, torch.ones(3), 0.0)
    plain, rig = (Rig(m, toy, lr=0.05, epochs=1, momentum=momentum) for m in (md.FedECADO(), method(gamma=0.05)))
    plain()
    rig()
    wanted = min(max(2 * 0.05 * (1 - momentum) / (0.05 * h), 0.1), 10.0)
    assert rig.bookkeeping.notes["Te"] == pytest.approx(wanted * plain.bookkeeping.notes["Te"], rel=1e-12)


# The fixed point


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("gamma", [1e-4, 0.25])
def test_at_rest_nothing_moves(where: str, gamma: float):
    rig = Rig(method(where, gamma), TOY, TOY.x_star, lr=LR, epochs=STEPS, momentum=0.5)
    J = {i: rig.grad(i, TOY.x_star) for i in rig.all}
    if where == "server":
        rig.s.J = J
    else:
        rig.remember({i: Memory(J=J_i) for i, J_i in J.items()})
    for ids in COHORTS:
        rig(ids)
    assert float((rig.s.x - TOY.x_star).norm()) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("participation", [None, 0.4])
@pytest.mark.parametrize(("gamma", "rates"), [(0.05, (0.01, 0.1)), (0.05, (0.1, 1.0)), (0.2, (0.002, 0.02))])
def test_unequal_quadratics_are_solved_at_learning_rates_of_two_decades(gamma, rates, participation):
    toy = md.problems.quadratics(clients=10, d=5, seed=1)
    pace = {"lr": md.scenarios.Uniform(*rates), "epochs": md.scenarios.Integers(1, 10)}
    fed = federation(toy, participation, **pace)
    result = run(method(gamma=gamma), fed, 400, eval_every=10, target=GOAL)
    assert error(result, toy.x_star) < 1e-8
    if rates[1] == 1.0:
        assert run(md.FedECADO(shorten=False), fed, 400, throw=False).status.outcome == "diverged"


@pytest.mark.parametrize("where", WHERE)
def test_momentum_and_lost_messages_leave_the_optimum_where_it_is(where: str):
    lost = {(t, 0, (3 * t) % 8): "reply" for t in range(1, 500) if t % 3 == 0}
    fed = federation(EIGHT, 0.5, momentum=0.5, **UNEQUAL)
    result = run(method(where), fed, 500, eval_every=10, target=GOAL, transport=LossyTransport(lost))
    assert error(result, EIGHT.x_star) < 1e-8
    assert any(e.up == 0 for e in result.ledger)


def test_flows_at_the_clients_give_the_same_trajectory():
    lost = {(2, 0, 1): "reply", (3, 0, 2): "request", (5, 0, 0): "reply"}
    a, b = (Rig(method(k), TOY, lost=lost, lr=LR, epochs=STEPS) for k in WHERE)
    for ids in COHORTS:
        assert float((a(ids).x - b(ids).x).norm()) <= 1e-12
        assert float((a.s.S - b.s.S).norm()) <= 1e-12


@pytest.mark.parametrize(("rounds", "gap"), [(60, 0.2), pytest.param(500, 1e-7, marks=pytest.mark.slow)])
def test_late_replies_reach_the_optimum_and_go_on_from_a_checkpoint(rounds: int, gap: float, tmp_path: Path):
    toy = md.problems.quadratics(clients=6)
    pace = md.scenarios.Pace(lr=md.scenarios.Uniform(0.02, 0.1), epochs=md.scenarios.Integers(1, 6), batch=None)
    slow = md.scenarios.Devices(speed=[1000.0] * 5 + [20.0], down=1e9, up=1e9, latency=0.01)
    fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, devices=slow, pace=pace)
    options: dict[str, Any] = {"reply_policy": md.ReplyPolicy(replies=3), "eval_every": rounds}
    whole = run(method(), fed, rounds, **options)
    run(method(), fed, 37, **options, checkpoint=tmp_path)
    again = run(method(), fed, rounds, **options, resume=tmp_path)
    assert torch.equal(whole.x, again.x)
    assert whole.summary["lateness"] > 0.1
    assert error(whole, toy.x_star) < gap


def test_a_checkpoint_has_the_conductance_of_the_star(tmp_path: Path):
    fed = federation(EIGHT, **UNEQUAL)
    whole = run(method(), fed, 20)
    run(method(), fed, 9, checkpoint=tmp_path)
    assert torch.equal(whole.x, run(method(), fed, 20, resume=tmp_path).x)
    rig = Rig(method(), EIGHT, lr=0.05, epochs=2)
    for _ in range(12):
        rig()
    assert 0.1 < rig.s.star.h < 20  # eigenvalues are 0.5 to 5, and a window's mean gradient has less of them


def test_settings():
    with unchecked(), pytest.raises(md.RecipeError, match=r"in \(0, 0.25\]"):
        md.FedECADO(gamma=0.5)
    with pytest.raises(md.RecipeError, match="has no gamma"):
        replace(method(), form="J")
