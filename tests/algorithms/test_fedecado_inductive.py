"""FedECADO's inductive forms against a dense solve of their circuit, their fixed point, and rivals as special cases."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import medley as md
from medley.algorithms.fedecado import Center, Memory
from medley.problems import LeastSquares, Synthetic
from support.circuits import COHORTS, EIGHT, LR, STEPS, TOY, UNEQUAL, N
from support.oracles import digits, error, federation, quadratic_parts, run, unchecked, walk
from support.rig import Rig
from support.toys import LossyTransport

inductive = partial(md.FedECADO, form="J")


FORMS = {
    "J": inductive(),
    "J, all elements": inductive(lam=2.0, C_c=0.3, q=1.0, kappa=1.0),
    "J, flows at clients": inductive(lam=1.0, kappa=1.0, q=0.5, flows="client"),
    "J, sub-steps": inductive(lam=1.0, delta=1e-3),
    "J, scalar curvature": inductive(sensitivity="scalar"),
    "J, diagonal curvature": inductive(lam=0.5, sensitivity="diagonal"),
    "J, diagonal curvature, flows at clients": inductive(lam=0.5, sensitivity="diagonal", flows="client"),
    "I": md.FedECADO(form="I"),
    "I, limiter and curvature": md.FedECADO(form="I", kappa=1.0, sensitivity="scalar"),
    "I, weights p": md.FedECADO(form="I", weights="p"),
    "I, weights uniform": md.FedECADO(form="I", weights="uniform", sensitivity="diagonal"),
    "paper": md.FedECADO(form="paper", sensitivity="scalar"),
}


def flows(rig: Rig) -> dict[int, torch.Tensor]:
    if rig.method.flows == "server":
        return rig.s.J
    return {i: m.J for i, m in rig.memories().items() if m.J is not None}


def kirchhoff(rig: Rig) -> torch.Tensor:
    """Σ over all clients of p_i J_i; of I_i in the paper's variables."""
    total = torch.zeros_like(rig.s.x)
    for i, J in flows(rig).items():
        total = total + (rig.sim.p[i] if rig.method.form == "J" else 1.0) * J
    return total


def w(rig: Rig, i: int) -> float:
    """What a client's loss is weighed with inside its own descent."""
    unit = rig.method.unit(N)
    return 1.0 if unit is None else unit * rig.sim.p[i]


def optimum(toy: Synthetic, weights: torch.Tensor, decay: float = 0.0) -> torch.Tensor:
    H, b, _ = quadratic_parts(toy)
    A = sum(float(v) * (Hi + decay * torch.eye(len(Hi), dtype=Hi.dtype)) for v, Hi in zip(weights, H, strict=True))
    return torch.linalg.solve(A, sum(float(v) * bi for v, bi in zip(weights, b, strict=True)))


def at_rest(method: md.FedECADO, decay: float = 0.0, **pace) -> Rig:
    """x_c = x*, flows w_i∇f_i(x*), wherever they are kept."""
    uniform = method.form == "paper" or method.weights == "uniform"
    x = optimum(TOY, torch.full((N,), 1 / N) if uniform else TOY.p, decay)
    rig = Rig(method, TOY, x, weight_decay=decay, **pace)
    J = {i: w(rig, i) * (rig.grad(i, x) + decay * x) for i in rig.all}
    if method.flows == "server":
        rig.s.J = J
    else:
        rig.remember({i: Memory(J=J_i) for i, J_i in J.items()})
    return rig


# The circuit itself


def dense(
    toy: Synthetic, x, cohorts, lr, steps, lam=0.0, C_c=0.0, q=0.0, kappa=None, client=1.0, row=1.0
) -> list[torch.Tensor]:
    """The J form by a dense solve in (u, K_i) every round; ``client`` and ``row`` turn its signs round."""
    H, b, p = quadratic_parts(toy)
    J, xs = torch.zeros(len(H), len(x), dtype=x.dtype), [x]
    for A in cohorts:
        T = {i: lr[i] * steps[i] for i in A}
        Tw = max(T.values())
        if kappa is not None:
            for i in A:
                J[i] = min(1.0, kappa * float((H[i] @ x - b[i]).norm()) / (float(J[i].norm()) or 1e-300)) * J[i]
        D = [walk(H[i], b[i], x, lr[i], steps[i], shift=-client * J[i]) for i in A]
        M, r = torch.zeros(len(A) + 1, len(A) + 1, dtype=x.dtype), torch.zeros(len(A) + 1, len(x), dtype=x.dtype)
        M[0, 0], r[0] = C_c / Tw, -row * (p[:, None] * J).sum(0)
        for k, i in enumerate(A, 1):
            rho = Tw / T[i]
            M[0, k] = row * p[i]  # (31)
            M[k, 0], M[k, k], r[k] = -1.0, lam * Tw + Tw * rho**q, -rho * D[k - 1]  # (32)
        solved = torch.linalg.solve(M, r)
        x, J = x + solved[0], J.clone()
        for k, i in enumerate(A, 1):
            J[i] += solved[k]
        xs.append(x)
    return xs


@pytest.mark.parametrize("where", ["server", "client"])
@given(
    lam=st.floats(0, 5),
    C_c=st.floats(0, 1),
    q=st.floats(0, 1),
    kappa=st.sampled_from([None, 1.0, 1.5]),
    lr=st.lists(st.floats(0.005, 0.15), min_size=N, max_size=N),
    steps=st.lists(st.integers(1, 6), min_size=N, max_size=N),
)
@settings(max_examples=6)
def test_rounds_are_a_dense_solve_of_the_circuit(where, lam, C_c, q, kappa, lr, steps):
    rig = Rig(inductive(lam, C_c, q, kappa, flows=where), TOY, lr=lr, epochs=steps)
    xs = dense(TOY, rig.s.x, COHORTS, lr, steps, lam, C_c, q, kappa)
    scale = max(float(x.norm()) for x in xs)
    for ids, x in zip(COHORTS, xs[1:], strict=True):
        assert float((rig(ids).x - x).norm()) <= 1e-11 * scale


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("signs", [{"client": -1.0}, {"row": -1.0}, {"client": -1.0, "row": -1.0}])
def test_with_a_sign_turned_round_it_diverges(lam, signs):
    x = torch.zeros(3, dtype=torch.float64)
    right = dense(TOY, x, COHORTS * 60, LR, STEPS, lam, 0.3)[-1]
    assert float((right - TOY.x_star).norm()) < 1e-10
    wrong = dense(TOY, x, COHORTS * 60, LR, STEPS, lam, 0.3, **signs)
    assert any(not float(y.norm()) < 1e6 for y in wrong)


LOSSES = st.dictionaries(
    st.tuples(st.integers(1, len(COHORTS)), st.integers(0, 1), st.integers(0, N - 1)),
    st.sampled_from(["request", "reply"]),
    max_size=12,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@given(cohorts=st.lists(st.sets(st.integers(0, N - 1), min_size=1), min_size=3, max_size=6), lost=LOSSES)
@settings(max_examples=4)
def test_S_is_the_sum_of_all_flows_whoever_takes_part_and_whatever_is_lost(name, cohorts, lost):
    rig = Rig(FORMS[name], TOY, lr=LR, epochs=STEPS, lost=lost)
    for ids in cohorts:
        s = rig(ids)
        size = max((float(J.norm()) for J in flows(rig).values()), default=0.0)
        assert float((s.S - kirchhoff(rig)).norm()) <= 1e-13 * max(1.0, size)


LIMITED = inductive(lam=0.0, C_c=0.2, q=0.0, kappa=1.0)


@pytest.mark.parametrize(
    "method", [LIMITED, replace(LIMITED, flows="client"), replace(LIMITED, form="I", lam=0.3)], ids=["J", "client", "I"]
)
def test_the_limiter_bites_and_its_cut_leaves_the_sum(method):
    rig, limited = Rig(method, TOY, lr=LR, epochs=STEPS), 0.0
    for ids in COHORTS * 3:
        rig(ids)
        limited += rig.bookkeeping.notes["limited"]
        assert torch.allclose(rig.s.S, kirchhoff(rig), rtol=0, atol=1e-12)
    assert limited > 1


def test_flows_at_the_clients_give_the_same_trajectory():
    lost = {(2, 0, 1): "reply", (3, 0, 2): "request", (5, 0, 0): "reply"}
    for method in (inductive(lam=1.0, q=0.5, kappa=1.0), inductive(lam=0.5, C_c=0.4)):
        a, b = (Rig(replace(method, flows=k), TOY, lost=lost, lr=LR, epochs=STEPS) for k in ("server", "client"))
        for ids in COHORTS:
            assert float((a(ids).x - b(ids).x).norm()) <= 1e-12
            assert float((a.s.S - b.s.S).norm()) <= 1e-12
        assert all(torch.allclose(J, flows(b)[i], rtol=0, atol=1e-12) for i, J in flows(a).items())
        assert not b.s.J  # O(d) at the server


# The fixed point


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", FORMS)
@given(
    lr=st.lists(st.floats(1e-4, 0.3), min_size=N, max_size=N),
    steps=st.lists(st.integers(1, 8), min_size=N, max_size=N),
    ids=st.sets(st.integers(0, N - 1), min_size=1),
)
@settings(max_examples=4)
def test_at_rest_nothing_moves(name, momentum, lr, steps, ids):
    rig = at_rest(FORMS[name], lr=lr, epochs=steps, momentum=momentum)
    x, J = rig.s.x, dict(flows(rig))
    rig(ids)
    assert float((rig.s.x - x).norm()) <= 1e-13
    for i, J_i in flows(rig).items():
        assert float((J_i - J[i]).norm()) <= 1e-13 * max(1.0, 1 / min(a * b for a, b in zip(lr, steps, strict=True)))


@pytest.mark.parametrize("where", ["server", "client"])
def test_at_rest_under_weight_decay(where):
    # Without the decay in what the limiter compares with, clients whose gradient it nearly cancels would be cut.
    method = inductive(lam=1.0, kappa=1.0, flows=where)
    rig = at_rest(method, decay=2.0, lr=LR, epochs=STEPS)
    assert any(float(rig.grad(i, rig.s.x).norm()) < 0.9 * float(J.norm()) for i, J in flows(rig).items())
    x = rig.s.x
    rig((0, 2, 3))
    assert float((rig.s.x - x).norm()) <= 1e-13
    assert float(rig.s.S.norm()) <= 1e-13


@pytest.mark.parametrize("name", ["J", "J, all elements", "J, sub-steps", "I"])
def test_leaving_the_inactive_flows_out_loses_the_fixed_point(name):
    rig, ids = at_rest(FORMS[name], lr=LR, epochs=STEPS), (1, 3)
    x, weight = rig.s.x, rig.sim.p if rig.method.form == "J" else dict.fromkeys(rig.all, 1.0)
    rig.s.S = sum(weight[i] * rig.s.J[i] for i in ids)
    assert float((rig(ids).x - x).norm()) > 1e-2


SEEDS = [s if s < 2 else pytest.param(s, marks=pytest.mark.slow) for s in range(10)]


@pytest.mark.parametrize("seed", SEEDS)
def test_unequal_quadratics_are_solved_where_fedavg_is_not(seed):
    toy = md.problems.quadratics(clients=10, d=20, seed=seed)
    fed = federation(toy, 0.4, **UNEQUAL)
    goal = {"grad_norm": 2e-9}  # eigenvalues >= 0.5, ||x*|| > 1: an error of 4e-9
    result = run(inductive(), fed, 500, seed=seed, eval_every=10, target=goal)
    assert result.status.outcome == "target"
    assert error(result, toy.x_star) < 1e-8
    assert error(run(md.FedAvg(), fed, 60, seed=seed, eval_every=60), toy.x_star) > 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_unequal_logistic_regressions_are_solved(seed):
    toy = md.problems.logistic(clients=10, d=10, mu=0.01, seed=seed)
    pace = {"lr": md.scenarios.Uniform(0.2, 2.0), "epochs": md.scenarios.Integers(1, 10)}
    goal = {"grad_norm": 1e-10}
    result = run(inductive(), federation(toy, 0.4, **pace), 500, seed=seed, eval_every=20, target=goal)
    assert result.status.outcome == "target"
    assert error(result, toy.x_star) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_any_scale_of_the_learning_rates(seed):
    toy = md.problems.quadratics(clients=10, d=20, seed=seed)
    pace = {"lr": md.scenarios.Uniform(0.002, 0.01), "epochs": md.scenarios.Integers(1, 10)}
    assert error(run(inductive(), federation(toy, 0.4, **pace), 500, seed=seed, eval_every=500), toy.x_star) < 1e-8


@pytest.mark.parametrize(
    "method",
    [
        inductive(lam=1.0, kappa=1.0),
        inductive(lam=0.5, q=0.5, kappa=1.0, flows="client"),
        inductive(lam=1.0, delta=0.1),
        inductive(sensitivity="scalar"),
        inductive(sensitivity="diagonal", refresh=20, flows="client"),
        md.FedECADO(form="I", delta=0.1),
        pytest.param(md.FedECADO(form="I", weights="p", lam=2.0), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_every_variant_gets_there(method):
    slow = {"lr": md.scenarios.Uniform(0.16, 0.8)} if method.weights == "p" else {}
    result = run(method, federation(EIGHT, 0.5, **UNEQUAL | slow), 500, eval_every=20, target={"grad_norm": 2e-9})
    assert error(result, EIGHT.x_star) < 1e-8


def test_momentum_and_lost_messages_leave_the_optimum_where_it_is():
    lost = {(t, e, (3 * t + 5 * e) % 8): "reply" for t in range(1, 500) for e in (0, 1) if t % 3 == 0}
    for where in ("server", "client"):
        fed = federation(EIGHT, 0.5, momentum=0.5, **UNEQUAL)
        method, goal = inductive(kappa=1.0, flows=where), {"grad_norm": 2e-9}
        result = run(method, fed, 500, eval_every=10, target=goal, transport=LossyTransport(lost))
        assert error(result, EIGHT.x_star) < 1e-8
        assert any(e.up == 0 for e in result.ledger if e.method == "simulate")


def test_uniform_weights_solve_another_problem():
    result = run(md.FedECADO(form="I", weights="uniform"), federation(EIGHT, **UNEQUAL), 120, eval_every=120)
    assert error(result, optimum(EIGHT, torch.full((8,), 1 / 8))) < 1e-10
    assert error(result, EIGHT.x_star) > 1e-2


def test_weights_p_at_n_times_the_rate_are_weights_np():
    cohorts = [(0, 2, 5, 7), (1, 3, 4), (0, 1, 6, 7), tuple(range(8))] * 3
    lr, steps = [0.01 * (1 + i) for i in range(8)], [1 + i % 4 for i in range(8)]
    a = Rig(md.FedECADO(form="I"), EIGHT, lr=lr, epochs=steps)
    b = Rig(md.FedECADO(form="I", weights="p"), EIGHT, lr=[8 * v for v in lr], epochs=steps)
    for ids in cohorts:
        assert float((a(ids).x - b(ids).x).norm()) <= 1e-10
    assert all(torch.allclose(a.s.J[i], 8 * b.s.J[i], rtol=1e-10, atol=1e-12) for i in range(8))


# Symmetries and small cohorts


@pytest.mark.slow
@pytest.mark.parametrize("name", [k for k, m in FORMS.items() if m.sensitivity == "off"])
def test_names_of_clients_and_the_origin_do_not_matter(name):
    c = torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)
    turned = Synthetic(TOY.problem, TOY.clients[::-1], TOY.x_star, TOY.f_star)
    moved = Synthetic(TOY.problem, [(X, y + X @ c) for X, y in TOY.clients], TOY.x_star + c, TOY.f_star)
    a = Rig(FORMS[name], TOY, lr=LR, epochs=STEPS)
    b = Rig(FORMS[name], turned, lr=LR[::-1], epochs=STEPS[::-1])
    e = Rig(FORMS[name], moved, c, lr=LR, epochs=STEPS)
    for ids in COHORTS:
        x = a(ids).x
        assert float((b(N - 1 - i for i in ids).x - x).norm()) <= 1e-12
        assert float((e(ids).x - c - x).norm()) <= 1e-11


@pytest.mark.parametrize("where", ["server", "client"])
def test_when_nobody_answers_nothing_changes(where):
    lost = {(2, 0, 1): "reply", (2, 0, 3): "request"}
    rig = Rig(inductive(lam=1.0, kappa=1.0, flows=where), TOY, lost=lost, lr=LR, epochs=STEPS)
    rig()
    x, S, J = rig.s.x, rig.s.S, flows(rig)
    rig((1, 3))
    assert torch.equal(rig.s.x, x)
    assert torch.equal(rig.s.S, S)
    assert all(torch.equal(J[i], J_i) for i, J_i in flows(rig).items())


def test_one_client_alone():
    alone = Synthetic(LeastSquares(), TOY.clients[:1], optimum(TOY, torch.tensor([1.0, 0, 0, 0, 0])), 0.0)
    result = run(inductive(), federation(alone, lr=0.1, epochs=5), 200, eval_every=200)
    assert error(result, alone.x_star) < 1e-12


# Special cases


def test_with_no_elements_and_no_flows_it_is_fednova_over_the_longest_time():
    toy, ids = TOY, [(0, 1, 2, 3, 4), (1, 4), (0, 2, 3)]
    ours = Rig(inductive(lam=0.0, C_c=0.0, q=0.0), toy, lr=LR, epochs=STEPS)
    nova = Rig(md.FedNova(lr_aware=True), toy, lr=LR, epochs=STEPS)
    T = [a * b for a, b in zip(LR, STEPS, strict=True)]
    for A in ids:
        x = ours.s.x
        nova.s.x, ours.s.J, ours.s.S = x, {}, torch.zeros_like(x)
        share = sum(ours.sim.p[i] for i in A)
        tau = sum(ours.sim.p[i] / share * T[i] for i in A)
        step, theirs = ours(A).x - x, nova(A).x - x
        assert torch.allclose(step / max(T[i] for i in A), theirs / tau, rtol=1e-12, atol=1e-14)


def test_with_no_elements_and_everybody_it_is_scaffold_by_simulated_time():
    """J_i = c_i − c, x moves by max T times the weighed mean of D_i/T_i, c_i the mean gradient along the way."""
    H, b, p = quadratic_parts(TOY)
    T = [a * k for a, k in zip(LR, STEPS, strict=True)]
    rig = Rig(inductive(lam=0.0, C_c=0.0, q=0.0), TOY, lr=LR, epochs=STEPS)
    x, c = rig.s.x, torch.zeros(N, 3, dtype=torch.float64)
    for _ in range(5):
        J = c - p @ c
        D = [walk(H[i], b[i], x, LR[i], STEPS[i], shift=-J[i]) for i in range(N)]
        c = torch.stack([J[i] - D[i] / T[i] for i in range(N)])
        x = x + max(T) * sum(p[i] * D[i] / T[i] for i in range(N))
        rig()
        assert torch.allclose(rig.s.x, x, rtol=0, atol=1e-12)
        assert all(torch.allclose(rig.s.J[i], c[i] - p @ c, rtol=0, atol=1e-12) for i in range(N))


def test_with_no_elements_and_equal_clients_it_is_scaffold():
    ours = Rig(inductive(lam=0.0, C_c=0.0, q=0.0), TOY, lr=0.05, epochs=4)
    theirs = Rig(md.SCAFFOLD(), TOY, lr=0.05, epochs=4)
    for _ in range(8):
        assert torch.allclose(ours().x, theirs().x, rtol=0, atol=1e-12)


# Sensitivity and sub-steps


@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
def test_hutchinson_finds_the_curvature(kind):
    probes = 400
    rig = Rig(inductive(sensitivity=kind, probes=probes), TOY)
    got = rig.cohort(rig.all).ask(rig.method.curvature, Center(TOY.x_star)).each()
    for i, H in enumerate(quadratic_parts(TOY)[0]):
        off = H - H.diagonal().diag()
        sigma = off.square().sum(1).sqrt() / math.sqrt(probes)
        if kind == "diagonal":
            assert bool(((got[i].h - H.diagonal()).abs() <= 4 * sigma).all())
        else:
            sigma_trace = math.sqrt(2 * float(off.square().sum()) / probes)
            assert abs(got[i].h - float(H.trace()) / 3) <= 4 * sigma_trace / 3
    assert len({str(r.h) for r in got.values()}) == N


@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
def test_curvature_is_asked_for_when_new_or_due_and_again_when_it_was_lost(kind):
    toy = md.problems.logistic(clients=N, d=1, mu=0.1, seed=1)  # for d = 1 a single probe is exact
    lost = {(1, 0, 2): "reply"}
    rig = Rig(inductive(sensitivity=kind, refresh=3, probes=1), toy, lost=lost, lr=1.0, epochs=5)
    asked = {1: {0, 1, 2}, 2: {2, 3}, 3: set(), 4: {0, 1, 4}, 5: {2, 3}}
    for t, ids in enumerate([(0, 1, 2), (0, 2, 3), (0, 1, 2), (0, 1, 4), (0, 2, 3)], 1):
        x = rig.s.x
        rig(ids)
        assert {e.client for e in rig.bookkeeping.ledger if (e.round, e.method) == (t, "curvature")} == asked[t]
        for i in asked[t] - ({2} if t == 1 else set()):
            exact = float(rig.client(i, t).problem.hessian(x))
            assert abs(float(rig.s.h[i]) - exact) <= 1e-13
    once = Rig(inductive(sensitivity=kind), toy, lr=1.0)
    for _ in range(4):
        once()
    assert {e.round for e in once.bookkeeping.ledger if e.method == "curvature"} == {1}


LONG = {"lr": 0.1, "epochs": md.scenarios.Integers(20, 50)}  # stiff directions end where they are going
WIDE = {"lr": md.scenarios.Uniform(0.01, 0.1), "epochs": md.scenarios.Integers(1, 50)}  # T in ratios of hundreds


@pytest.mark.parametrize("participation", [None, 0.4])
@pytest.mark.parametrize("pace", [LONG, WIDE], ids=["long", "wide"])
@pytest.mark.parametrize(
    ("clients", "d"), [pytest.param(2, 5, marks=pytest.mark.slow), (3, 5), pytest.param(10, 20, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"q": 2.0},
        *(pytest.param(s, marks=pytest.mark.slow) for s in ({"C_c": 0.0}, {"flows": "client"}, {"delta": 0.1})),
    ],
    ids=str,
)
def test_sensitivities_are_safe_for_few_clients_unequal_times_and_any_q(settings, clients, d, pace, participation):
    toy = md.problems.quadratics(clients=clients, d=d, seed=1)
    kinds: tuple[Any, ...] = ("scalar", "diagonal")
    for kind in kinds:
        result = run(inductive(sensitivity=kind, **settings), federation(toy, participation, **pace), 60, eval_every=60)
        gaps = [row["loss"] - toy.f_star for row in result.history]
        assert gaps[-1] < 0.05 * gaps[0]


@pytest.mark.parametrize("pace", [LONG, WIDE], ids=["long", "wide"])
def test_without_the_bounds_such_a_run_diverges_and_is_said_to(pace, monkeypatch):
    toy = md.problems.quadratics(clients=10, d=20, seed=1)
    fed, method = federation(toy, **pace), inductive(sensitivity="scalar")
    bounded = run(method, fed, 40)
    monkeypatch.setattr("medley.algorithms.fedecado.inductive.passive", lambda T, h, trace: (h, math.inf))
    loose = run(method, fed, 40, throw=False)
    assert loose.status.outcome == "diverged"
    assert "the loss ends at" in loose.status.message
    assert loose.history[-1]["loss"] > 1e6 * loose.history[0]["loss"] > 1e6 * bounded.history[-1]["loss"]


@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
def test_bounded_sensitivities_give_the_same_trajectory_at_the_clients(kind):
    lr, steps = [0.02, 0.1, 0.05, 0.08, 0.03], [1, 40, 2, 30, 7]
    a, b = (Rig(inductive(sensitivity=kind, flows=k), TOY, lr=lr, epochs=steps) for k in ("server", "client"))
    for ids in COHORTS:
        assert float((a(ids).x - b(ids).x).norm()) <= 1e-12
        assert float((b.s.S - kirchhoff(b)).norm()) <= 1e-12


def test_absent_branches_with_a_conductance_are_a_least_capacitance():
    rig = Rig(inductive(sensitivity="scalar", C_c=0.0), TOY, lr=LR, epochs=STEPS)
    rig()
    x = rig.s.x
    rig((1, 3))
    least = 2 * sum(rig.sim.p[i] * rig.s.h[i] for i in (0, 2, 4))
    assert torch.allclose(rig.s.S, -least * (rig.s.x - x), rtol=1e-12, atol=1e-14)


def test_negative_curvature_counts_as_none():
    fed = digits(clients=3)
    result = run(inductive(sensitivity="scalar", probes=1), fed, 8)
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_a_tolerance_means_sub_steps_that_warm_start():
    result = run(inductive(lam=1.0, C_c=0.5, delta=1e-3), federation(EIGHT, 0.5, **UNEQUAL), 30)
    assert all(row["substeps"] >= 2 for row in result.history[1:])
    rig = Rig(inductive(lam=1.0, C_c=0.5, delta=1e9), TOY, lr=LR, epochs=STEPS)
    counts = []
    for _ in range(4):
        rig()
        counts.append(rig.bookkeeping.notes["substeps"])
    assert counts[0] > counts[-1] == counts[-2] <= 2  # any error is allowed, so steps grow until they cannot


# Settings


def test_auto_chooses_by_the_problem():
    convex, network = inductive().suited(frozenset({"convex", "hessian"})), inductive().suited(frozenset())
    assert (convex.lam, convex.q, convex.kappa) == (0.0, 0.0, None)
    assert (network.lam, network.q, network.kappa) == (1.0, 0.5, 1.0)
    other = md.FedECADO(form="I").suited(frozenset())
    assert (other.lam, other.q, other.kappa) == (1.0, 0.0, None)
    given = inductive(lam=3.0, q=1.0, kappa=None)
    assert given.suited(frozenset()) == given


@pytest.mark.parametrize(("ids", "C_c"), [(range(N), 0.0), ((1, 3), 2 / N), ((0,), 1 / N)])
def test_the_capacitor_is_the_share_that_takes_part(ids, C_c):
    rig = Rig(inductive(), TOY, lr=LR, epochs=STEPS)
    rig((0, 2, 4))
    x = rig.s.x
    rig(ids)
    assert torch.allclose(rig.s.S, -C_c / rig.bookkeeping.notes["Tw"] * (rig.s.x - x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("where", ["server", "client"])
def test_float32(where):
    method = inductive(lam=1.0, q=0.5, kappa=1.0, flows=where)
    a = Rig(method, TOY, lr=LR, epochs=STEPS)
    b = Rig(method, TOY, lr=LR, epochs=STEPS, dtype=torch.float32)
    for ids in COHORTS * 3:
        a(ids)
        b(ids)
    assert {t.dtype for t in (b.s.x, b.s.S, *flows(b).values())} == {torch.float32}
    assert torch.allclose(b.s.x.double(), a.s.x, rtol=0, atol=1e-5)
    assert torch.allclose(b.s.S, kirchhoff(b), rtol=0, atol=2e-5)


def test_a_network_learns_with_the_limiter_at_work():
    data = md.datasets.digits()
    order = data.y[:300].argsort(stable=True).chunk(6)  # one or two digits a client
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 10, hidden=[16])),
        clients=[(data.X[rows], data.y[rows]) for rows in order],
        pace=md.scenarios.Pace(lr=[0.02, 0.05, 0.1, 0.2, 0.1, 0.05], epochs=[5, 4, 3, 2, 1, 6], batch=16),
        participation=0.5,
    )
    result = run(inductive(), fed, 60, eval_every=10)
    assert result.history[-1]["loss"] < 0.5 * result.history[0]["loss"]
    shares = [row["limited"] for row in result.history[1:]]
    assert 0 < sum(shares) < len(shares)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lam": -1.0}, "at least 0, or 'auto'"),
        ({"lam": math.nan}, "finite"),
        ({"lam": None}, "FedECADO\\(lam=None\\)"),
        ({"C_c": "much"}, "finite number"),
        ({"q": math.inf}, "finite"),
        ({"kappa": 0.5}, "at least 1"),
        ({"refresh": "auto"}, "whole number, at least 0$"),
        ({"probes": 0}, "at least 1"),
        ({"probes": 2.5}, "whole number"),
        ({"delta": 0.0}, "above 0, or None"),
        ({"form": "j"}, "Did you mean .J.|It knows"),
        ({"flows": "clients"}, "Did you mean 'client'"),
        ({"sensitivity": "diag"}, "diagonal"),
        ({"weights": "mean"}, "mean1"),
        ({"flows": "client", "form": "I"}, "J form"),
        ({"flows": "client", "form": "J", "delta": 0.1}, "one step a round"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(setting, words):
    with unchecked(), pytest.raises(md.RecipeError, match=words) as e:
        md.FedECADO(**setting)
    assert str(next(iter(setting.values()))) in str(e.value)
    if len(setting) == 1 and "Did you mean" not in words and next(iter(setting)) not in ("sensitivity", "weights"):
        assert e.value.key == next(iter(setting))
