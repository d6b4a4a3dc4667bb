"""FedECADO against an oracle written from its card: Kirchhoff's sum, the fixed point, stability, SCAFFOLD within it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import medley as md
from medley.algorithms.fedecado import Memory, Net, Node
from medley.algorithms.fedecado.descent import same_draws
from medley.algorithms.fedecado.late import Lasting
from medley.algorithms.fedecado.messages import Request
from medley.numerics.circuit.norton import (
    FORGET,
    Branch,
    Reach,
    Sizes,
    Times,
    advance,
    extension,
    inertia,
    noise_bound,
    steadiness,
)
from medley.problems import LeastSquares, Synthetic
from medley.storage import checkpoint
from medley.storage import pytree as tree
from support.circuits import COHORTS, EIGHT, LR, STEPS, TOY, UNEQUAL, WHERE, N
from support.oracles import error, federation, quadratic_parts, run, unchecked, walk
from support.rig import Rig
from support.toys import LossyTransport


def method(flows: Any = "server", **settings: Any) -> md.FedECADO:
    return md.FedECADO(form="norton", flows=flows, **settings)


def flows(rig: Rig) -> dict[int, torch.Tensor]:
    if rig.method.flows == "server":
        return dict(rig.s.J)
    return {i: m.J for i, m in rig.memories().items() if m.J is not None}


def kirchhoff(rig: Rig) -> torch.Tensor:
    """Σ over all clients of p_i J_i."""
    return sum((rig.sim.p[i] * J for i, J in flows(rig).items()), torch.zeros_like(rig.s.x))


def card(toy: Synthetic, x, cohorts, lr, steps, q=0.5, reach=1.0, inertia=True, steady=True) -> list[torch.Tensor]:
    """x after every round, as the card has it, where no reply is late."""
    H, b, p = quadratic_parts(toy)
    J, xs, n, e = torch.zeros(len(H), len(x), dtype=x.dtype), [x], len(H), 0.0
    v, t, seen = torch.zeros_like(x), -1.0, torch.zeros(3, dtype=x.dtype)
    known: set[int] = set()
    rho = 1.0
    for A in cohorts:
        S, T = p @ J, [lr[i] * steps[i] for i in A]
        nets = {i: (J[i] - S) * (rho if i in known else 1.0) for i in A}
        D = [walk(H[i], b[i], x, lr[i], steps[i], shift=-nets[i]) for i in A]
        after = J.clone()
        for i, D_i, T_i in zip(A, D, T, strict=True):
            after[i] = nets[i] - D_i / T_i
        known |= {*A}
        new, share = p @ after, sum(p[i] for i in A)
        common = float((seen[0] / seen[2]) ** 3 * seen[0] / seen[1]) ** 0.5 if q == 0.5 else float(seen[1] / seen[0])
        mean = sum(p[i] * t * t for i, t in zip(A, T, strict=True)) / sum(p[i] * t for i, t in zip(A, T, strict=True))
        w = {i: mean ** (1 - q) * t**q for i, t in zip(A, T, strict=True)}
        ahead = sum(p[i] * w[i] / t for i, t in zip(A, T, strict=True)) / share
        w = {i: w_i / max(1.0, ahead / 1.25) for i, w_i in w.items()}
        u = {
            i: rho * w_i + (1 - rho) * w_i / t**q * common if rho < 1 else w_i
            for (i, w_i), t in zip(w.items(), T, strict=True)
        }
        if steady:
            changed, size = (sum(p[i] * float(v[i].norm() ** 2) for i in A) for v in (after - J, after))
            rho = max(0.0, 1 - changed / size / 2)
        Te = sum(p[i] * w[i] for i in A) / share
        f = len(A) / n
        longer = (1 + e) * f * float(new.norm() / (new - S).norm()) - 1
        e = min(reach, max(min(1.0, 1 / f - 1), longer, 0.0))
        seen = 0.9 * seen + sum(
            p[i] * torch.tensor([1, t**q, t ** (q - 1)], dtype=x.dtype) for i, t in zip(A, T, strict=True)
        )
        if q == 0.5:
            harmonic = float((seen[0] / seen[2]) ** 3 * seen[0] / seen[1])
            e = min(e, max(3 * harmonic / Te - 1, 0.0))
        cos = float(new @ v / (new.norm() * v.norm())) if t >= 0 else 0.0
        t = (t + 1) * (1 - max(0.0, cos))
        noise = float((new - S).norm()) ** 2 / (2 * f) / float(new.norm()) ** 2
        v = v * (min(f * t / (t + 3), 1 - min(1.0, noise) / 2) if inertia else 0.0)
        v = v - sum(p[i] * (u[i] * after[i] - w[i] * nets[i]) for i in A) / share - e * Te * new
        x, J = x + v, after
        xs.append(x)
    return xs


@pytest.mark.parametrize("where", WHERE)
@given(
    q=st.just(0.5) | st.floats(0, 1),
    reach=st.floats(0, 4),
    lr=st.lists(st.floats(0.005, 0.15), min_size=N, max_size=N),
    steps=st.lists(st.integers(1, 6), min_size=N, max_size=N),
    inertia=st.booleans(),
    steady=st.booleans(),
)
@settings(max_examples=6)
def test_rounds_are_those_of_the_card(where, q, reach, lr, steps, inertia, steady):
    rig = Rig(method(where, q=q, reach=reach, inertia=inertia, steady=steady), TOY, lr=lr, epochs=steps)
    xs = card(TOY, rig.s.x, COHORTS, lr, steps, q, reach, inertia, steady)
    scale = max(float(x.norm()) for x in xs)
    for ids, x in zip(COHORTS, xs[1:], strict=True):
        assert float((rig(ids).x - x).norm()) <= 1e-11 * scale


# Kirchhoff's sum

LOSSES = st.dictionaries(
    st.tuples(st.integers(1, len(COHORTS)), st.just(0), st.integers(0, N - 1)),
    st.sampled_from(["request", "reply"]),
    max_size=6,
)


@pytest.mark.parametrize("where", WHERE)
@given(cohorts=st.lists(st.just(tuple(range(N))), min_size=3, max_size=6), lost=LOSSES)
@settings(max_examples=6)
def test_S_is_the_sum_of_all_flows_whatever_is_lost(where, cohorts, lost):
    lost = {k: v for k, v in lost.items() if k[2] != 0}  # somebody answers
    rig = Rig(method(where), TOY, lr=LR, epochs=STEPS, lost=lost)
    for ids in cohorts:
        s = rig(ids)
        size = max((float(J.norm()) for J in flows(rig).values()), default=0.0)
        assert float((s.S - kirchhoff(rig)).norm()) <= 1e-13 * max(1.0, size)


def test_flows_at_the_clients_give_the_same_trajectory_and_leave_the_server_without_any():
    lost = {(2, 0, 1): "reply", (3, 0, 2): "request", (5, 0, 0): "reply"}
    a, b = (Rig(method(k), TOY, lost=lost, lr=LR, epochs=STEPS) for k in WHERE)
    for ids in COHORTS:
        assert float((a(ids).x - b(ids).x).norm()) <= 1e-12
        assert float((a.s.S - b.s.S).norm()) <= 1e-12
    assert all(torch.allclose(J, flows(b)[i], rtol=0, atol=1e-12) for i, J in flows(a).items())
    assert not b.s.J


def test_when_nobody_answers_nothing_changes():
    rig = Rig(method(), TOY, lost={(2, 0, 1): "reply", (2, 0, 3): "request"}, lr=LR, epochs=STEPS)
    rig()
    x, S, J = rig.s.x, rig.s.S, flows(rig)
    rig((1, 3))
    assert torch.equal(rig.s.x, x)
    assert torch.equal(rig.s.S, S)
    assert all(torch.equal(J[i], J_i) for i, J_i in flows(rig).items())
    sums = Rig(method("client"), TOY, lost={(1, 0, 1): "reply"}, lr=LR, epochs=STEPS)
    with pytest.raises(md.MedleyError, match="nobody"):
        sums((1,))


# The fixed point


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("where", WHERE)
@given(
    lr=st.lists(st.floats(1e-4, 0.3), min_size=N, max_size=N),
    steps=st.lists(st.integers(1, 8), min_size=N, max_size=N),
    ids=st.sets(st.integers(0, N - 1), min_size=1),
)
@settings(max_examples=5)
def test_at_rest_nothing_moves(where, momentum, lr, steps, ids):
    rig = Rig(method(where), TOY, TOY.x_star, lr=lr, epochs=steps, momentum=momentum)
    J = {i: rig.grad(i, TOY.x_star) for i in rig.all}
    if where == "server":
        rig.s.J = J
    else:
        rig.remember({i: Memory(J=J_i) for i, J_i in J.items()})
    rig(ids)
    tiny = 1e-13 * max(1.0, 1 / min(a * b for a, b in zip(lr, steps, strict=True)))
    assert float((rig.s.x - TOY.x_star).norm()) <= 1e-12
    assert all(float((J_i - J[i]).norm()) <= tiny for i, J_i in flows(rig).items())


SEEDS = [s if s < 2 else pytest.param(s, marks=pytest.mark.slow) for s in range(10)]


@pytest.mark.parametrize("participation", [None, 0.4])
@pytest.mark.parametrize("seed", SEEDS)
def test_unequal_quadratics_are_solved_where_fedavg_is_not(seed, participation):
    toy = md.problems.quadratics(clients=10, d=20, seed=seed)
    fed = federation(toy, participation, **UNEQUAL)
    result = run(method(), fed, 300, seed=seed, eval_every=10, target={"grad_norm": 2e-9})
    assert result.status.outcome == "target"
    assert error(result, toy.x_star) < 1e-8
    assert error(run(md.FedAvg(), fed, 60, seed=seed, eval_every=60), toy.x_star) > 0.1


@pytest.mark.parametrize("scale", [1.0, pytest.param(0.1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", SEEDS)
def test_unequal_logistic_regressions_are_solved_at_any_scale_of_the_learning_rates(seed, scale):
    toy = md.problems.logistic(clients=10, d=10, mu=0.01, seed=seed)
    pace = {"lr": md.scenarios.Uniform(0.2 * scale, 2.0 * scale), "epochs": md.scenarios.Integers(1, 10)}
    rounds = int(500 / scale)
    result = run(method(), federation(toy, 0.4, **pace), rounds, seed=seed, eval_every=20, target={"grad_norm": 1e-10})
    assert result.status.outcome == "target"
    assert error(result, toy.x_star) < 1e-8


@pytest.mark.parametrize("where", WHERE)
def test_momentum_and_lost_messages_leave_the_optimum_where_it_is(where):
    lost = {(t, 0, (3 * t) % 8): "reply" for t in range(1, 500) if t % 3 == 0}
    fed = federation(EIGHT, 0.5, momentum=0.5, **UNEQUAL)
    goal = {"grad_norm": 2e-9}
    result = run(method(where), fed, 500, eval_every=10, target=goal, transport=LossyTransport(lost))
    assert error(result, EIGHT.x_star) < 1e-8
    assert any(e.up == 0 for e in result.ledger)


def test_one_client_alone():
    H, b, _ = quadratic_parts(TOY)
    alone = Synthetic(LeastSquares(), TOY.clients[:1], torch.linalg.solve(H[0], b[0]), 0.0)
    result = run(method(), federation(alone, lr=0.1, epochs=5), 200, eval_every=200)
    assert error(result, alone.x_star) < 1e-12


# Late replies

SLOW = md.scenarios.Devices(speed=[1000.0] * 5 + [20.0], down=1e9, up=1e9, latency=0.01)


def late(rounds: int, replies: int = 3, **options: Any) -> tuple[Synthetic, md.Result]:
    toy = md.problems.quadratics(clients=6)
    pace = md.scenarios.Pace(lr=md.scenarios.Uniform(0.02, 0.1), epochs=md.scenarios.Integers(1, 6), batch=None)
    fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, devices=SLOW, pace=pace)
    policy = md.ReplyPolicy(replies=replies)
    return toy, run(method(), fed, rounds, reply_policy=policy, eval_every=rounds, **options)


def test_conductances_are_forgotten_once_no_reply_is_late_or_due():
    """One late reply kept a second vector for every client to the end of the run."""
    rig, plain = (Rig(md.FedECADO(), TOY, lr=LR, epochs=STEPS) for _ in range(2))
    for r in (rig, plain):
        r(range(N))
    rig.s.late, rig.s.G, rig.s.GX = FORGET / 2, 1.0, torch.ones_like(rig.s.x)
    rig.s.branches = {i: Branch(rig.s.x, 1.0, 1.0, 1.0, 1.0) for i in range(N)}
    rig.s.asked = {0: Request(rig.s.x, rig.s.J[0])}
    rig(range(N))
    assert len(rig.s.branches) == N
    assert not rig.s.asked
    plain(range(N))
    rig.s.x, rig.s.S, rig.s.J, rig.s.v = plain.s.x, plain.s.S, dict(plain.s.J), plain.s.v
    rig.s.extended, rig.s.age, rig.s.read, rig.s.steady = plain.s.extended, plain.s.age, plain.s.read, plain.s.steady
    assert torch.equal(rig(range(N)).x, plain(range(N)).x)
    assert (rig.s.late, rig.s.G, rig.s.GX, rig.s.branches) == (0.0, 0.0, None, {})


@pytest.mark.parametrize(("late", "share"), [(0.0, 0.3), (0.01, 0.302), (0.5, 0.4), (1.0, 0.5), (3.0, 0.5)])
def test_the_share_that_lasts_does_not_jump_when_replies_begin_to_be_late(late, share):
    """ρ = .3 while none is late, √(Σ p|ε|²/Σ p|J|²) = ½ by the late replies; it went to 1 with the first of them."""
    rig = Rig(md.FedECADO(), TOY)
    zero = rig.s.x
    J = torch.ones_like(zero)
    rig.s.J, rig.s.steady, rig.s.late = {0: J}, 0.3, late
    rig.s.branches = {0: Branch(zero, flow=4.0, error=2.0)} if late else {}
    got = rig.method.nets(rig.s, zero, rig.cohort([0, 1]))
    torch.testing.assert_close(got[0].flow, share * J)
    assert not got[1].flow.any()
    of_reply = Lasting.of(rig.s, rig.cohort([0, 1]).p).node
    assert of_reply == pytest.approx(0.3 + min(1.0, late) * (0.875 - 0.3))  # 1 − σ/2 of σ = ¼


def test_a_round_of_late_replies_is_as_the_card_has_it():
    rig = Rig(md.FedECADO(), TOY, lr=LR, epochs=STEPS)
    for cohort in (range(N), [0, 2], range(N)):
        rig(cohort)
    A, s, p, rho = [1, 2, 3], rig.s, rig.sim.p, float(rig.s.steady)
    s.late, x, S, J, v, age, e, times = 0.5, s.x, s.S, dict(s.J), s.v, s.age, s.extended, s.times
    s.met[2] = 1  # silent for three rounds, the others for one
    s.branches = {i: Branch(x, flow=4.0, error=2.0) for i in range(N)}  # σ = ¼; no conductance yet
    rig(A)
    late = 0.5 * (1 - 1 / s.times.rounds)  # these replies are of this round
    assert s.late == pytest.approx(late)
    T = {i: LR[i] * STEPS[i] for i in A}
    H, b, _ = quadratic_parts(TOY)
    asked, taken = (share * rho + (1 - share) * lasts for share, lasts in ((0.5, 0.5), (1 - late, 0.875)))
    nets = {i: asked * (J[i] - S) for i in A}
    met = {i: nets[i] - walk(H[i], b[i], x, LR[i], STEPS[i], shift=-nets[i]) / T[i] for i in A}
    reach = Reach.of(torch.tensor([*T.values()], dtype=torch.float64), [p[i] for i in A], 0.5)
    common = reach.scale * math.sqrt(times.harmonic)
    mean_share = s.times.share / s.times.rounds
    ahead, S1, h, m = reach.Te * S * reach.share, S.clone(), 0.0, 2 * 0.5
    for i, w in zip(A, reach.w, strict=True):
        at = x + walk(H[i], b[i], x, LR[i], STEPS[i], shift=-nets[i]) / 4
        dJ, dx = met[i] - J[i], at - x
        h_i = max(0.0, float(dJ @ dx) / float(dx @ dx))
        h, change = h + p[i] * h_i, dJ + m * h_i * (x - at)
        g = 3 if i == 2 else 1
        assert g * mean_share < 3
        S1 += p[i] * change
        ahead += p[i] * (w * change + (1 - taken) * g * reach.share * common * (J[i] - S))
    f, sizes = len(A) / N, Sizes.of(S, S1, v)
    e = extension(f, sizes, e, min(1.0, s.times.reach(0.5, reach.Te)))
    b, _ = inertia(f, sizes, age)
    want = advance(x, reach.Te, S1, ahead / reach.share, e, m * h) + min(b, noise_bound(f, sizes)) * v
    torch.testing.assert_close(s.x, want, rtol=1e-10, atol=1e-12)


def test_late_rounds_go_on_measuring_the_share_that_lasts():
    rig = Rig(md.FedECADO(), TOY, lr=LR, epochs=STEPS)
    rig(range(N))
    rig.s.late, before = 0.5, {i: J.clone() for i, J in rig.s.J.items()}
    rig([0, 2, 3])
    p, J, change = rig.sim.p, rig.s.J, {i: rig.s.J[i] - before[i] for i in (0, 2, 3)}  # first secants: no conductance
    changed, size = (sum(p[i] * float(v[i] @ v[i]) for i in change) for v in (change, J))
    assert 0 < float(rig.s.steady) < 1
    assert float(rig.s.steady) == pytest.approx(1 - changed / size / 2, rel=1e-5)


@pytest.mark.parametrize(("replies", "rounds"), [(3, 400), pytest.param(1, 1500, marks=pytest.mark.slow)])
def test_the_fixed_point_is_everybodys_where_one_is_fifty_times_slower(replies, rounds):
    toy, result = late(rounds, replies)
    assert result.summary["lateness"] > 0.1
    assert error(result, toy.x_star) < 1e-7


@pytest.mark.slow
def test_the_fixed_point_with_late_and_lost_replies():
    lost = {(t, 0, t % 6): "reply" for t in range(1, 2000) if t % 5 == 0}
    toy, result = late(2000, 3, transport=LossyTransport(lost))
    assert error(result, toy.x_star) < 1e-8


def test_the_sums_are_those_of_the_branches_and_survive_a_checkpoint(tmp_path: Path):
    toy, whole = late(60)
    late(37, checkpoint=tmp_path)
    _, again = late(60, resume=tmp_path)
    assert torch.equal(whole.x, again.x)
    late(60, checkpoint=tmp_path / "s")
    m = method()
    s = checkpoint.load(tmp_path / "s", tree.dataclasses_in(type(m.start(whole.x)), m.memory))["server"]
    rows = [len(X) for X, _ in toy.clients]
    p = [n / sum(rows) for n in rows]
    assert len(s.branches) == 6
    assert s.asked
    assert any(b.h > 0 for b in s.branches.values())
    assert float((s.S - sum(p[i] * J for i, J in s.J.items())).norm()) < 1e-12
    assert float((s.GX - sum(p[i] * b.h * b.at for i, b in s.branches.items())).norm()) < 1e-12
    assert abs(s.G - sum(p[i] * b.h for i, b in s.branches.items())) < 1e-12


def test_a_branch_measures_its_conductance_and_predicts_its_gradient():
    h, c = 0.7, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    points = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    branch = Branch(points[0])
    assert branch.h == 0
    for a, b in pairwise(points):
        branch = branch.moved(b, h * (b - c) - h * (a - c))
    assert branch.h == pytest.approx(h, rel=1e-12)
    x = torch.ones(3, dtype=torch.float64)
    assert torch.allclose(h * (points[-1] - c) + branch.h * (x - branch.at), h * (x - c), rtol=0, atol=1e-12)


# Stability


def mean_round(eta: float, f: float, e: float, beta: float = 0.0) -> np.ndarray:
    """(x, T·S, v) after a mean round of alike clients of curvature h: η = hφT, with φT the time that counts."""
    x = np.array([1 - eta * (1 + e * f), -e * (1 - f), beta])
    return np.array([x, [f * eta, 1 - f, 0], x - [1, 0, 0]])


@pytest.mark.parametrize("f", [0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 1.0])
def test_the_mean_round_is_stable_for_every_curvature_that_a_descent_bears(f: float):
    """A descent that does not diverge has η ≤ 1: it cannot go further than its own minimum.

    The error of S may ask for any e below 1, and inertia is below f.
    """
    for eta in np.linspace(1e-2, 1, 30):
        for e in np.linspace(0, 0.999, 10):
            assert abs(np.linalg.det(mean_round(eta, f, e)[:2, :2])) == pytest.approx((1 - f) * (1 - eta), abs=1e-12)
            for beta in np.linspace(0, 0.999 * f, 8):
                assert max(abs(np.linalg.eigvals(mean_round(eta, f, e, beta)))) < 1
    assert f < 0.5 or max(abs(np.linalg.eigvals(mean_round(1.0, f, 1 / f - 1)))) < 1e-5  # deadbeat


def test_alike_clients_take_the_mean_round():
    alike = Synthetic(LeastSquares(), TOY.clients[:1] * 4, TOY.x_star, 0.0)
    H, b, _ = quadratic_parts(alike)
    lam, U = torch.linalg.eigh(H[0])
    star = torch.linalg.solve(H[0], b[0])
    rig, T = Rig(method(), alike, lr=0.05, epochs=3), 0.15
    S = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    rig.s.J, rig.s.S, rig.s.x = dict.fromkeys(range(4), S), S, star + 1.0
    x0 = rig.s.x
    rig((1,))
    e = rig.bookkeeping.notes["extended"]
    assert e == 1.0
    for k in range(3):
        eta = float(1 - (1 - 0.05 * lam[k]) ** 3)
        M = mean_round(eta, 0.25, e)
        before = np.array([float(U[:, k] @ (x0 - star)), T * float(U[:, k] @ S), 0])
        after = np.array([float(U[:, k] @ y) for y in (rig.s.x - star, T * rig.s.S, rig.s.x - x0)])
        assert M @ before == pytest.approx(after, abs=1e-12)


@given(h=st.floats(0.01, 1e4), T=st.floats(1e-3, 10), e=st.floats(0, 1))
@settings(max_examples=50)
def test_with_a_conductance_the_step_never_overshoots(h, T, e):
    """Backward Euler with m = 2: x moves by at most half of the way to where Kirchhoff's sum is 0, however stiff."""
    x = torch.ones(1, dtype=torch.float64)
    S = h * x
    moved = advance(x, T, S, T * S, e, 2 * h)
    assert 0.5 - 1e-12 <= float(moved) < 1


def test_the_extension_follows_the_share_and_the_truncation_error():
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.25])
    assert extension(0.1, Sizes.of(a, b)) == 1.0  # the share's lead
    assert extension(0.8, Sizes.of(a, -a)) == pytest.approx(0.25)
    assert extension(1.0, Sizes.of(a, -a)) == 0.0  # S changed by twice its size
    assert extension(1.0, Sizes.of(a / 4, a / 2), last=0.5, most=9.0) == pytest.approx(2.0)  # and here by half of it
    assert extension(1.0, Sizes.of(a / 4, a / 2), last=0.5) == 1.0  # at most
    assert extension(1.0, Sizes.of(a, a)) == 1.0  # no change at all
    assert extension(1.0, Sizes.of(a, 0.75 * a), last=0.2) == 1.0
    assert extension(1.0, Sizes.of(2 * a, a), last=0.2) == pytest.approx(0.2)  # S halved in 1.2 windows: another 1.2
    assert extension(0.5, Sizes.of(2 * a, a), last=1.0, most=9.0) == 1.0  # half answered: all change twice
    assert extension(1.0, Sizes.of(a, 0 * a)) == 0.0
    assert extension(0.1, Sizes.of(a, b), due=0.7) == pytest.approx(0.25)
    assert extension(0.1, Sizes.of(a, -a), due=0.9) == 0.0


def test_the_age_of_the_motion_is_set_back_where_it_runs_against_kirchhoffs_sum():
    S, v = torch.tensor([1.0, 0.0]), torch.tensor([-2.0, 0.0])
    assert inertia(1.0, Sizes.of(S, S, v), 0.0) == (0.25, 1.0)
    assert inertia(0.5, Sizes.of(S, S, v), 5.0) == (0.5 * 6 / 9, 6.0)
    assert inertia(1.0, Sizes.of(S, S, -v), 5.0) == (0.0, 0.0)  # quite against it: at rest
    assert inertia(1.0, Sizes.of(S, S, torch.tensor([0.0, 1.0])), 5.0)[1] == 6.0  # across
    assert inertia(1.0, Sizes.of(S, S, torch.tensor([0.6, 0.8])), 4.0)[1] == pytest.approx(2.0)
    assert inertia(1.0, Sizes.of(0 * S, 0 * S, v), 2.0)[1] == 3.0


def test_noise_shortens_the_motion_and_half_of_it_always_goes_on():
    S, v = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert noise_bound(1.0, Sizes.of(S, S)) == 1.0  # no change: no noise
    assert noise_bound(1.0, Sizes.of(S, v)) == pytest.approx(0.5)  # S drawn anew
    assert noise_bound(1.0, Sizes.of(S, S + v / 2)) == pytest.approx(1 - 0.5 * 0.125 / 1.25)
    assert noise_bound(0.8, Sizes.of(S, S + v / 2)) == pytest.approx(1 - 0.5 * 0.25 / 1.6 / 1.25)
    assert noise_bound(0.5, Sizes.of(S, -3 * S)) >= 0.5  # never below the largest share of half of the clients
    assert noise_bound(1.0, Sizes.of(S, 0 * S)) == noise_bound(1.0, Sizes.of(0 * S, 0 * S)) == 0.5
    assert noise_bound(1.0, Sizes(1e200, 1e200)) == noise_bound(1.0, Sizes(1e-200, 1e-200)) == 0.5  # beyond floats


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("ids", "rounds"), [(range(N), 3), (range(N - 1), 5)], ids=["all", "four of five"])
def test_the_bound_holds_for_the_motion_and_not_for_the_read_out(where, ids, rounds):
    """Two nodes in one circuit with one last move, an old one and one at rest: x differs by β v, the read-out by b."""
    old, rest = (Rig(method(where), TOY, lr=LR, epochs=STEPS) for _ in range(2))
    for rig, age in ((old, 400.0), (rest, -1.0)):
        for _ in range(rounds):
            rig(ids)
        rig.s.v, rig.s.age = torch.linspace(-0.01, 0.02, len(rig.s.x), dtype=torch.float64), age
    v, S, read, f = old.s.v, old.s.S, old.method.model(old.s), len(ids) / N
    x, at_rest = old(ids).x, rest(ids).x
    assert torch.equal(old.s.S, rest.s.S)
    b = f * old.s.age / (old.s.age + 3)
    noise = float((old.s.S - S).square().sum() / old.s.S.square().sum()) / (2 * f)
    beta = 1 - min(1.0, noise) / 2
    assert beta < b - 0.01
    assert float((x - at_rest - beta * v).norm()) < 1e-12 * float(v.norm() + x.norm())
    assert torch.allclose(old.method.model(old.s), read + math.sqrt(f * (1 - b)) * (x - read), rtol=0, atol=1e-13)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("participation", [None, 0.5])
def test_a_run_away_in_one_dimension_is_diverged_and_no_error(where, participation):
    toy = md.problems.quadratics(clients=4, d=1, seed=1)
    pace = md.scenarios.Pace(lr=30, epochs=5, batch=None)
    fed = md.Federation(toy.problem, clients=toy.clients, pace=pace, participation=participation)
    ended = md.run(method(where, shorten=False), fed, 200, eval_every=200, throw=False, progress=False)
    assert ended.status.outcome == "diverged"


# Descents that overshoot


@given(h=st.floats(0.01, 60), steps=st.integers(2, 12), net=st.floats(-5, 5))
@example(h=19.999, steps=2, net=0.0)
@example(h=20.001, steps=2, net=0.0)
@settings(max_examples=60)
def test_a_passive_descent_counts_to_the_bit_and_one_that_runs_away_is_made_again(h, steps, net):
    """On h/2 x² an error of the flow grows by |1 − s|, s = (1 − (1 − lr h)^K)/(K lr h): by less than 1 if lr h < 2."""
    root = torch.tensor([[h**0.5]], dtype=torch.float64)
    fed = md.Federation(
        LeastSquares(),
        clients=[(root, torch.zeros(1, dtype=torch.float64))] * 2,
        pace=md.scenarios.Pace(lr=0.1, steps=steps, batch=None),
    )
    seen = []
    for shorten in (True, False):

        class Once(md.FedECADO):
            def round(self, s, clients):
                s.x = torch.ones_like(s.x)
                flow = torch.tensor([net], dtype=torch.float64)
                seen.append(clients.ask(self.simulate_net, Node(s.x), {0: Net(flow), 1: Net(flow)}).each()[1])

        md.run(Once(shorten=shorten), fed, 1, progress=False)
    kept, plain = seen
    grows = lambda a: abs(1 - (1 - (1 - a * 0.1 * h) ** steps) / (steps * a * 0.1 * h))
    if abs(net - h) < 1e-6 or any(abs(grows(4.0**-i) - 1) < 1e-9 for i in range(6)):
        return  # no force, or a growth of 1 but for rounding: both attempts are right
    assert grows(1) < 1 or 0.1 * h > 2
    a = 1.0
    while grows(a) > 1:
        a /= 4
    assert float(kept.T) == a * float(plain.T)
    assert torch.equal(kept.delta, plain.delta) == (a == 1)


@pytest.mark.parametrize(("steps", "stiff"), [(2, 4), (3, 4), (5, 4), (2, 2.3), (3, 3.89), (5, 3.04), (20, 2.19)])
@pytest.mark.parametrize("where", WHERE)
def test_a_client_that_is_unstable_by_itself_does_not_take_the_others_along(where, steps, stiff):
    """Ran away: lr h above 2 in a client of one row among 401. FedAvg bears some of them; SCAFFOLD does not."""
    g = torch.Generator().manual_seed(0)
    rows = [torch.randn(40, 4, generator=g, dtype=torch.float64) for _ in range(10)]
    clients = [(X, X.sum(1) + 0.5 * torch.randn(40, generator=g, dtype=torch.float64)) for X in rows]
    row = torch.full((1, 4), (10 * stiff / 4) ** 0.5, dtype=torch.float64)
    pace = md.scenarios.Pace(lr=0.1, epochs=steps, batch=None)
    clients.append((row, 3 * row.sum(1)))
    fed = md.Federation(LeastSquares(), clients=clients, pace=pace)
    A, b = (torch.cat(v) for v in zip(*clients, strict=True))
    best = float(((A @ torch.linalg.lstsq(A, b[:, None]).solution)[:, 0] - b).pow(2).mean() / 2)
    ended = md.run(md.FedECADO(flows=where), fed, 200, progress=False)
    assert ended.history[-1]["loss"] == pytest.approx(best, rel=1e-6)
    for m in (md.FedECADO(flows=where, shorten=False, steady=False), md.SCAFFOLD()):
        assert md.run(m, fed, 150, progress=False, throw=False).status.outcome == "diverged"


def test_a_descent_that_is_made_again_leaves_the_statistics_of_the_one_that_counts():
    """Ran away in BatchNorm's running statistics: those of the rejected descent went to the server."""
    g = torch.Generator().manual_seed(0)
    rows = [(torch.randn(32, 4, generator=g), torch.randint(2, (32,), generator=g)) for _ in range(3)]
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    pace = md.scenarios.Pace(lr=20.0, steps=8, batch=None)
    fed = md.Federation(md.problems.Network(net), clients=rows, classes=2, pace=pace)
    on, off = (
        float(md.run(md.FedECADO(shorten=shorten), fed, 1, progress=False).buffers[0].norm())
        for shorten in (True, False)
    )
    assert on < 100
    assert off > 1e4


def test_a_descent_that_is_made_again_has_the_masks_and_the_augmentation_of_the_first():
    """It had others, so that its force was compared with the first step of another network."""
    g = torch.Generator().manual_seed(0)
    rows = [(torch.randn(8, 4, generator=g), torch.randint(2, (8,), generator=g)) for _ in range(2)]
    net = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    noisy = md.problems.Network(net, transform=lambda X, rng: X + torch.randn(X.shape, generator=rng))
    fed = md.Federation(noisy, clients=rows, classes=2, pace=md.scenarios.Pace(lr=0.1, steps=3, batch=4))
    off = []

    class Twice(md.FedECADO):
        def descend(self, me, x, net):
            with same_draws(me.members, x):
                first = me.descend(x)
            again, other = me.descend(x), me.descend(x)
            off.append((float((again.step - first.step).norm()), float((other.step - first.step).norm())))
            return again

    md.run(Twice(), fed, 1, progress=False)
    assert len(off) == 2
    assert all(same == 0 and differs > 0.01 for same, differs in off)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("steps", [1, 4])
def test_rare_large_gradients_count_as_often_as_they_come(where, steps):
    """A bound of the flows in the place of shorter steps forgot them: the mean came out at a third."""
    g = torch.Generator().manual_seed(0)
    rows = [torch.randn(200, 2, generator=g, dtype=torch.float64) for _ in range(10)]
    rare = [(torch.rand(200, generator=g) < 0.03).double() for _ in rows]
    clients = [
        (torch.cat([X, torch.ones(200, 1, dtype=torch.float64)], 1), 10 * r) for X, r in zip(rows, rare, strict=True)
    ]
    pace = md.scenarios.Pace(lr=0.1, steps=steps, batch=8)
    fed = md.Federation(LeastSquares(), clients=clients, pace=pace)
    mean = float(md.run(md.FedECADO(flows=where), fed, 150, progress=False).x[2])
    true = float(torch.cat([y for _, y in clients]).mean())
    assert abs(mean - true) < 0.25 * true


def test_a_node_in_noise_stays_nearer_to_the_minimiser(monkeypatch):
    """Mini-batches of four rows, all clients, from x* on: mean square distances over 40 rounds."""

    def distance() -> float:
        g = torch.Generator().manual_seed(0)
        X = torch.randn(6, 40, 100, generator=g, dtype=torch.float64)
        y = X.sum(-1) + torch.randn(6, 40, generator=g, dtype=torch.float64)
        best = torch.linalg.lstsq(X.flatten(0, 1), y.flatten()[:, None]).solution[:, 0]
        toy = replace(TOY, problem=LeastSquares(mu=0.0), clients=list(zip(X, y, strict=True)))
        rig = Rig(method(), toy, x=best, lr=0.005, steps=3, batch=4)
        return sum(float((rig().x - best).square().sum()) for _ in range(40))

    damped = distance()
    monkeypatch.setattr("medley.algorithms.fedecado.noise_bound", lambda f, sizes: 1.0)
    assert damped < 0.65 * distance()


def test_inertia_pays_on_a_valley_where_everybody_takes_part():
    """Eigenvalues of two decades, exact gradients: a tenth of the error that there is without it, after 60 rounds."""
    valley = md.problems.quadratics(clients=4, d=8, low=0.05, high=5.0, seed=3)
    fed = federation(valley, lr=0.05, epochs=1)
    last = {on: error(run(method(inertia=on), fed, 60), valley.x_star) for on in (True, False)}
    assert last[True] < 0.1 * last[False]


def test_the_reach_of_a_reply_is_between_its_own_time_and_the_mean():
    T, p = torch.tensor([2.0, 4.0], dtype=torch.float64), [0.5, 0.5]
    own, common = Reach.of(T, p, 1.0), Reach.of(T, p, 0.0)
    assert own.w == pytest.approx([2.0, 4.0])
    assert common.w == pytest.approx([10 / 3] * 2)
    apart = Reach.of(torch.tensor([0.1, 5.0], dtype=torch.float64), p, 0.5)
    assert (apart.w[0] / 0.1 + apart.w[1] / 5.0) / 2 == pytest.approx(1.25)
    assert apart.w[1] / apart.w[0] == pytest.approx(math.sqrt(50))
    assert apart.Te == pytest.approx(sum(apart.w) / 2)
    assert Reach.of(T, p, 0.5).w == pytest.approx([math.sqrt(a * b) for a, b in zip(own.w, common.w, strict=True)])
    with pytest.raises(md.RecipeError, match="simulated time 0"):
        Reach.of(0 * T, p, 0.5)


# Special cases and symmetries


def test_the_harmonic_mean_of_times_is_exact_for_equal_ones_and_near_for_log_normal_ones():
    times = Times()
    for _ in range(3):
        times = times.then(0.4, 0.4 * math.sqrt(0.3), 0.4 / math.sqrt(0.3))
    assert times.harmonic == pytest.approx(0.3)
    assert times.reach(0.5, 0.3) == pytest.approx(2.0)
    assert times.reach(0.5, 3.0) == 0.0
    assert times.reach(0.4, 3.0) == math.inf
    T = np.exp(np.random.default_rng(0).normal(-1.0, 0.7, 200_000))
    times = Times().then(1.0, float(np.sqrt(T).mean()), float((1 / np.sqrt(T)).mean()))
    assert times.harmonic == pytest.approx(1 / (1 / T).mean(), rel=0.03)
    for T in (np.array([0.9] * 9 + [9.0]), np.array([1.0] * 3 + [100.0] * 7)):
        times = Times().then(1.0, float(np.sqrt(T).mean()), float((1 / np.sqrt(T)).mean()))
        assert 0.8 < times.harmonic * (1 / T).mean() <= 1.0


def test_clipped_sums_of_times_do_not_overrate_their_harmonic_mean():
    """A private run's clipped sums, a tenth of what they ought to be, gave T_h ten thousand times over."""
    T, p = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64)
    whole, clipped = (
        Times().then(1.0, float(k * (p * T**0.5).sum()), float(k * (p * T**-0.5).sum())) for k in (1.0, 0.1)
    )
    assert whole.harmonic < clipped.harmonic == pytest.approx(1.0)


@pytest.mark.parametrize("where", WHERE)
def test_long_and_short_descents_together_settle(where):
    """Ran away: a long window along Kirchhoff's sum overshoots the flows of clients with short times."""
    toy = md.problems.quadratics(clients=6, d=5, seed=1)
    pace = md.scenarios.Pace(lr=0.05, epochs=[50, 1, 50, 1, 50, 1], batch=None)
    fed = md.Federation(toy.problem, clients=toy.clients, pace=pace, participation=0.5)
    result = md.run(method(where), fed, rounds=60, progress=False, throw=False)
    assert result.status.outcome == "finished"
    assert float((result.x - toy.x_star).norm()) < 0.05 * float(toy.x_star.norm())


APART = [
    ([10] + [1] * 9, 0.9, 0.0),
    ([50] + [1] * 9, 0.5, 0.0),
    ([*range(1, 11)], 0.5, 0.9),
    ([50] * 5 + [1] * 5, 0.9, 0.0),
]


@pytest.mark.parametrize(("epochs", "lr", "momentum"), APART)
@pytest.mark.parametrize("where", WHERE)
def test_alike_clients_whose_times_are_far_apart_do_not_run_away(where, epochs, lr, momentum):
    """Ran away, or took long: a descent that had reached its minimum was extrapolated by more than twice its way."""
    one = (torch.ones(2, 1, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    pace = md.scenarios.Pace(lr=lr, epochs=epochs, momentum=momentum, batch=None)
    fed = md.Federation(LeastSquares(), clients=[one] * 10, pace=pace)
    assert abs(float(run(method(where), fed, 60).x) - 1) < 1e-4


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_the_mean_round_is_stable_for_times_of_any_law(rho):
    """Eigenvalues of a round of clients of one curvature that all take part, as (J_1 .. J_n, x) maps, at lr h ≤ 1."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        n = int(rng.integers(2, 9))
        p, K = (
            rng.dirichlet(np.full(n, rng.choice([0.3, 1.0, 5.0]))),
            1 + np.exp(rng.uniform(0, rng.uniform(0, 6), n)).astype(int),
        )
        lr = np.exp(rng.uniform(-rng.uniform(0, 3), 0, n))
        h, T = rng.choice([0.01, 0.1, 0.5, 1.0]) / lr.max(), K * lr
        s = (1 - (1 - lr * h) ** K) / (T * h)
        w = np.array(Reach.of(torch.tensor(T), p.tolist(), 0.5).w)
        J, x = np.eye(n, n + 1), np.eye(1, n + 1, n)
        net = rho * (J - p @ J)
        after = (1 - s)[:, None] * net + s[:, None] * h * x
        T_h = Times().then(1.0, float(p @ np.sqrt(T)), float(p @ T**-0.5)).harmonic
        u = rho * w + (1 - rho) * (w / np.sqrt(T)) * math.sqrt(T_h)
        assert abs(np.linalg.eigvals(np.vstack([after, x - (p * u) @ after + (p * w) @ net]))).max() < 1


@pytest.mark.parametrize("where", WHERE)
def test_drawn_batches_and_unequal_times_leave_the_minimum_where_it_is(where):
    """Was off by a fifth of the minimiser's norm where what does not last of a flow counted by w_i; FedAvg by .79."""
    g = torch.Generator().manual_seed(1)
    rows = [torch.randn(64, 4, dtype=torch.float64, generator=g) for _ in range(6)]
    targets = [X @ (1 + torch.randn(4, dtype=torch.float64, generator=g)) for X in rows]
    clients = [
        (X, y + 10 * torch.randn(64, dtype=torch.float64, generator=g)) for X, y in zip(rows, targets, strict=True)
    ]
    best = torch.linalg.lstsq(torch.cat(rows), torch.cat([y for _, y in clients])[:, None]).solution[:, 0]
    fed = md.Federation(
        LeastSquares(), clients=clients, pace=md.scenarios.Pace(lr=0.01, steps=[1, 2, 4, 8, 16, 32], batch=4)
    )
    ends = torch.stack([run(method(where), fed, 300, seed=seed).x for seed in range(8)])
    spread = float((ends.std(0) / 8**0.5).norm())
    assert float((ends.mean(0) - best).norm()) < 2 * spread < 0.15 * float(best.norm())


def test_clients_that_reply_more_often_do_not_draw_the_node_to_their_minima():
    """By the norm of the minimiser CA2FL ends .78 off, FedECADO .10."""
    g = torch.Generator().manual_seed(3)
    rows = [torch.randn(64, 8, dtype=torch.float64, generator=g) for _ in range(6)]
    draw = [[torch.randn(k, dtype=torch.float64, generator=g) for k in (8, 64)] for _ in rows]
    clients = [(X, X @ w + 2 * noise) for X, (w, noise) in zip(rows, draw, strict=True)]
    best = torch.linalg.lstsq(torch.cat(rows), torch.cat([y for _, y in clients])[:, None]).solution[:, 0]
    devices = md.scenarios.Devices(speed=[250.0, 500.0, 500.0, 1000.0, 4000.0, 500.0], down=1e9, up=1e9, latency=0.001)
    pace = md.scenarios.Pace(lr=0.005, steps=[1, 2, 4, 8, 16, 32], batch=4)
    fed = md.Federation(LeastSquares(), clients=clients, pace=pace, devices=devices)

    def off(method: Any) -> float:
        policy = md.ReplyPolicy(replies=2)
        ends = [run(method, fed, 500, seed=seed, reply_policy=policy, eval_every=500).x for seed in range(4)]
        return float((torch.stack(ends).mean(0) - best).norm() / best.norm())

    assert off(method()) < 0.2
    assert off(md.CA2FL()) > 0.6


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("still", [[], [0], [0, 2, 4]])
def test_clients_that_are_at_rest_at_the_minimum_do_not_move_it(where, still):
    """Their flow goes to 0, and of it nothing lasts; a mean of each client's share of its own left the node .15 off."""
    g = torch.Generator().manual_seed(2)
    X = torch.randn(6, 64, 4, dtype=torch.float64, generator=g)
    y = (X @ torch.randn(6, 4, 1, dtype=torch.float64, generator=g))[..., 0]
    others = [i for i in range(6) if i not in still]
    best = torch.linalg.lstsq(X[others].flatten(0, 1), y[others].flatten()[:, None]).solution[:, 0]
    y[still] = X[still] @ best
    pace = md.scenarios.Pace(lr=0.05, steps=[1, 2, 4, 8, 16, 32], batch=None)
    fed = md.Federation(LeastSquares(), clients=[*zip(X, y, strict=True)], pace=pace)
    assert error(run(method(where), fed, 200, eval_every=200), best) < 1e-11


def test_the_share_of_flows_that_lasts():
    rng = torch.Generator().manual_seed(0)
    fixed, drawn = (torch.randn(k, 20_000, generator=rng) for k in (1, 2))
    for noise in (0.0, 0.5, 1.0, 3.0):
        before, after = fixed + noise * drawn
        rho = steadiness((after - before).square().sum(), after.square().sum())
        assert float(rho) == pytest.approx(1 / (1 + noise**2), abs=0.03)
    z, one = torch.zeros(1), torch.ones(1)
    assert [float(steadiness(a, b)) for a, b in ((one, one), (4 * one, one), (one, z), (z, z))] == [0.5, 0.0, 0.0, 1.0]
    huge = torch.tensor([math.inf])
    assert [float(steadiness(a, b)) for a, b in ((huge, huge), (huge, one), (one, huge))] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("where", WHERE)
def test_without_reach_and_inertia_and_with_full_distrust_it_is_scaffold(where):
    ours = Rig(method(where, q=1.0, reach=0.0, inertia=False, steady=False), TOY, lr=LR, epochs=STEPS)
    theirs = Rig(md.SCAFFOLD(), TOY, lr=LR, epochs=STEPS)
    for ids in COHORTS * 2:
        assert torch.allclose(ours(ids).x, theirs(ids).x, rtol=0, atol=1e-12)
        assert torch.allclose(ours.s.S, theirs.s.c, rtol=0, atol=1e-12)


@pytest.mark.parametrize("where", WHERE)
def test_names_of_clients_and_the_origin_do_not_matter(where):
    c = torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)
    turned = Synthetic(TOY.problem, TOY.clients[::-1], TOY.x_star, TOY.f_star)
    moved = Synthetic(TOY.problem, [(X, y + X @ c) for X, y in TOY.clients], TOY.x_star + c, TOY.f_star)
    a = Rig(method(where), TOY, lr=LR, epochs=STEPS)
    b = Rig(method(where), turned, lr=LR[::-1], epochs=STEPS[::-1])
    e = Rig(method(where), moved, c, lr=LR, epochs=STEPS)
    for ids in COHORTS:
        x = a(ids).x
        assert float((b(N - 1 - i for i in ids).x - x).norm()) <= 1e-12
        assert float((e(ids).x - c - x).norm()) <= 1e-11


@pytest.mark.parametrize("where", WHERE)
def test_float32(where):
    a = Rig(method(where), TOY, lr=LR, epochs=STEPS)
    b = Rig(method(where), TOY, lr=LR, epochs=STEPS, dtype=torch.float32)
    for ids in COHORTS * 3:
        a(ids)
        b(ids)
    assert {t.dtype for t in (b.s.x, b.s.S, b.s.read, *flows(b).values())} == {torch.float32}
    assert torch.allclose(b.s.x.double(), a.s.x, rtol=0, atol=1e-4)
    assert torch.allclose(b.s.S, kirchhoff(b), rtol=0, atol=2e-5)


def test_the_read_out_is_a_moving_average_of_the_node():
    rig = Rig(method(), TOY, lr=LR, epochs=STEPS)
    x0 = rig.s.x
    x1 = rig((0, 1)).x
    read = x0 + math.sqrt(0.4) * (x1 - x0)
    assert torch.allclose(rig.method.model(rig.s), read, rtol=0, atol=1e-14)
    for ids in ((2,), range(N)):  # f = 0.2 and 1; b by the motion's age
        x, f = rig(ids).x, len(ids) / N
        read = read + math.sqrt(f * (1 - f * rig.s.age / (rig.s.age + 3))) * (x - read)
        assert torch.allclose(rig.method.model(rig.s), read, rtol=0, atol=1e-14)
    plain = Rig(method(inertia=False), TOY, lr=LR, epochs=STEPS)
    assert plain.method.model(plain()) is plain.s.x


# Settings


def test_adam_at_the_clients_is_refused_with_a_remedy():
    with pytest.raises(md.MedleyError, match=r"optimizer='adam'.*momentum is fine"):
        Rig(method(), TOY, lr=0.05, epochs=2, optimizer="adam")()
    Rig(replace(method(), form="J"), TOY, lr=0.05, epochs=2, optimizer="adam")()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lam": 1.0}, "add form='J'"),
        ({"kappa": None}, "no kappa"),
        ({"sensitivity": "scalar"}, "add form='J'"),
        ({"reach": -0.5}, "at least 0"),
        ({"q": 5.0}, r"a number in \[0, 1\]"),
        ({"reach": 0.5, "form": "J"}, "has no reach"),
        ({"flows": "client", "form": "I"}, "default form or the J form"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(setting, words):
    with unchecked(), pytest.raises(md.RecipeError, match=words) as e:
        md.FedECADO(**{"form": "norton"} | setting)
    assert e.value.key == next(iter(setting))
