"""FedECADO against Algorithm 2 to the letter, the exact solution of its circuit, and its own laws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import medley as md
from medley import recipe
from medley.algorithms import fedecado
from medley.contract.needs import Need
from medley.numerics.circuit.step import SHORTEST, State, Window, integrate
from medley.problems import LeastSquares, Synthetic
from medley.runtime.streams import generator
from support.oracles import digits, error, federation, quadratic_parts, run, walk
from support.pairs import quick
from support.rig import Rig
from support.toys import LossyTransport

N, LR, STEPS = 5, [0.02, 0.1, 0.05, 0.08, 0.03], [1, 4, 2, 3, 7]
TOY = md.problems.synthetic_quadratics(clients=N, d=3, seed=4)
COHORTS = [(0, 1, 2, 3, 4), (1, 3), (0, 2, 4), (4,), (0, 1, 3), (2, 3, 4), (0, 1, 2, 3, 4), (1, 2)]
UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}
ONE_STEP = 1e9

# Algorithm 2 to the letter

FIXES = frozenset({"signs", "weights", "everyone", "start", "units", "right side", "tau", "loop"})
"""What FedECADO has in the place of the paper's letter; "right side" and "tau" are (31) and (32) against (33)."""


@dataclass(frozen=True)
class OneRound:
    """What (33) is made of in one round of Algorithm 2; numbers by client."""

    fix: frozenset[str]
    begin: dict[int, Tensor]
    finish: dict[int, Tensor]
    T: dict[int, float]
    L: dict[int, float]
    G: dict[int, float]
    w: dict[int, float]
    Ik: dict[int, Tensor]
    rest: Tensor

    def gamma(self, i: int, t: float) -> Tensor:
        return self.begin[i] + t / self.T[i] * (self.finish[i] - self.begin[i])  # (28)

    def step(self, t: float, dt: float, x: Tensor, I: dict[int, Tensor]) -> tuple[Tensor, dict[int, Tensor]]:
        """A dense solve of (33)."""
        a, sign = len(I), 1.0 if "signs" in self.fix else -1.0
        M, r = torch.eye(a + 1, dtype=x.dtype), torch.zeros(a + 1, len(x), dtype=x.dtype)
        for k, i in enumerate(I):
            M[k, k], M[k, a], M[a, k] = 1 + dt / (self.L[i] * self.G[i]), -dt / self.L[i], sign * dt
            at = self.gamma(i, t + dt if "tau" in self.fix else t)
            r[k] = dt / self.L[i] * (self.Ik[i] / self.G[i] - at)
            if "right side" in self.fix:
                r[k] += I[i]
        if "right side" in self.fix:
            r[a] = x - sign * dt * self.rest
        z = torch.linalg.solve(M, r)
        return z[a], {i: z[k] for k, i in enumerate(I)}

    def epsilon(self, t: float, dt: float, before: Any, after: Any) -> float:
        v = lambda z, t, i: z[0] - self.gamma(i, t) - (z[1][i] - self.Ik[i]) / self.G[i]
        C = dt / 2 * sum(after[1][i] - before[1][i] for i in self.T)  # (34)
        each = [dt / (2 * self.L[i] * self.w[i]) * (v(after, t + dt, i) - v(before, t, i)) for i in self.T]  # (35)
        return max(float(e.abs().max()) for e in [C, *each])

    def window(self, x: Tensor, delta: float) -> tuple[Tensor, dict[int, Tensor], int]:
        """Steps 12-16 and Algorithm 1."""
        now, t, count, end = (x, self.Ik), 0.0, 0, max(self.T.values())
        while t < end * (1 - 1e-12):
            dt = end - t
            while True:
                after = self.step(t, dt, *now)
                e = self.epsilon(t, dt, now, after)
                # As printed the loop goes on while the error is small: it never shortens a step.
                if "loop" not in self.fix or e <= delta or dt <= SHORTEST * end:
                    break
                dt = max(SHORTEST * end, delta / e * dt)
            now, t, count = after, t + dt, count + 1
        return *now, count


def printed(
    toy: Synthetic,
    cohorts: Iterable[Sequence[int]],
    lr: Sequence[float],
    steps: Sequence[int],
    h: Mapping[int, float],
    fixes: Iterable[str] = (),
    L: float = 1.0,
    delta: float = ONE_STEP,
) -> tuple[list[Tensor], list[int]]:
    """Algorithm 2 by dense solves of (33): x_c after each round, and the number of steps in it.

    ``h`` are the clients' curvatures. Without ``fixes`` every line is as the paper prints it. Sums over epochs and over
    steps are the same here.
    """
    fix, (H, b, p) = frozenset(fixes), quadratic_parts(toy)
    n, x = len(H), torch.zeros(len(b[0]), dtype=torch.float64)  # step 1
    w = [n * float(v) if "weights" in fix else 1.0 for v in p]
    own, I = dict.fromkeys(range(n), x), dict.fromkeys(range(n), x)  # 2, 3
    xs, counts = [x], []
    for A in cohorts:
        begin = {i: x if "start" in fix else own[i] for i in A}
        for i in A:  # 9-11
            pull = I[i] / w[i] if "signs" not in fix else -I[i] / w[i]
            own[i] = begin[i] + walk(H[i], b[i], begin[i], lr[i], steps[i], shift=pull)
        T = {i: lr[i] * steps[i] for i in A}  # (27)
        end = max(T.values())
        G = {i: w[i] * (1 / end + h[i]) if "weights" in fix else 1 / end + float(p[i]) * h[i] for i in A}  # (22)
        unit = L * (end**2 if "units" in fix else 1.0)
        rest = sum((I[j] for j in range(n) if j not in A and "everyone" in fix), torch.zeros_like(x))
        this = OneRound(
            fix, begin, own.copy(), T, {i: unit / w[i] for i in A}, G, dict(enumerate(w)), {i: I[i] for i in A}, rest
        )
        x, flows, count = this.window(x, delta)
        I |= flows
        xs.append(x)
        counts.append(count)
    return xs, counts


def curvatures(toy: Synthetic) -> dict[int, float]:
    """tr H_i/d."""
    return {i: float(Hi.diagonal().mean()) for i, Hi in enumerate(quadratic_parts(toy)[0])}


def optimum(toy: Synthetic, weights: Tensor) -> Tensor:
    H, b, _ = quadratic_parts(toy)
    A = sum(float(v) * Hi for v, Hi in zip(weights, H, strict=True))
    return torch.linalg.solve(A, sum(float(v) * bi for v, bi in zip(weights, b, strict=True)))


PLAIN = optimum(TOY, torch.full((N,), 1 / N))
"""The optimum of the plain mean of f_i."""


def rig(delta: float = ONE_STEP, L: float = 1.0, toy: Synthetic = TOY, x: Tensor | None = None, **how: Any) -> Rig:
    """FedECADO with exact curvatures on the quadratics."""
    made = Rig(md.FedECADO(L=L, delta=delta), toy, x, **{"lr": LR, "epochs": STEPS} | how)
    made.s.h = curvatures(toy)
    return made


@pytest.mark.slow
@given(
    L=st.floats(0.5, 5),
    delta=st.sampled_from([0.003, 0.03, ONE_STEP]),
    lr=st.lists(st.floats(0.005, 0.15), min_size=N, max_size=N),
    steps=st.lists(st.integers(1, 6), min_size=N, max_size=N),
)
@settings(max_examples=10)
def test_rounds_are_algorithm_2_with_its_corrections(L, delta, lr, steps):
    ours = rig(delta, L, lr=lr, epochs=steps)
    xs, counts = printed(TOY, COHORTS, lr, steps, curvatures(TOY), FIXES, L, delta)
    scale = max(float(x.norm()) for x in xs)
    for ids, x, count in zip(COHORTS, xs[1:], counts, strict=True):
        assert float((ours(ids).x - x).norm()) <= 1e-10 * scale
        assert ours.bookkeeping.notes["steps"] == count
    assert delta == ONE_STEP or max(counts) > 1


def distance(without: str | None, cohorts: Iterable[Sequence[int]], goal: Tensor = TOY.x_star, **how: Any) -> float:
    """‖x_c − goal‖/‖goal‖ after the cohorts, of Algorithm 2 without one of its corrections."""
    given = {"lr": LR, "steps": STEPS, "h": curvatures(TOY)} | how
    xs, _ = printed(TOY, cohorts, fixes=FIXES - {without}, **given)
    return float((xs[-1] - goal).norm() / goal.norm())


ALL, PART = [tuple(range(N))] * 80, COHORTS * 12


def test_the_corrected_form_gets_to_the_optimum():
    assert distance(None, ALL) < 1e-12
    assert distance(None, PART) < 1e-12


def test_every_correction_in_numbers():
    """Without it, by itself."""
    for L, rounds in ((0.1, 20), (1.0, 41), (10.0, 15)):  # diverges whatever L is
        assert not distance("signs", ALL[:rounds], L=L) < 1e6
    assert distance("weights", ALL) > 0.1  # the plain mean's optimum
    assert distance("weights", ALL, PLAIN) < 1e-12
    assert distance("everyone", PART) > 0.5  # rests nowhere
    assert distance("start", ALL) > 1e-3  # a client's own state lags behind
    assert distance("start", PART) > 1e-3
    assert distance("right side", ALL) > 0.3  # the node forgets where it was
    assert distance("tau", ALL) == pytest.approx(1.0)  # one step from Γ_i(0) = x_c: nothing moves
    slow = {"lr": [v / 100 for v in LR], "steps": STEPS}  # L = 1 is a dead inductor where T is 1e-3
    assert distance("units", ALL, **slow) > 0.99
    assert distance(None, ALL, **slow) < 0.6
    _, counts = printed(TOY, ALL[:3], LR, STEPS, curvatures(TOY), FIXES, delta=1e-3)
    assert min(counts) > 50  # as printed no step is shortened, whatever δ is
    assert printed(TOY, ALL[:3], LR, STEPS, curvatures(TOY), FIXES - {"loop"}, delta=1e-3)[1] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("L", quick(1, [0.1, 1.0]))
def test_the_printed_form_with_the_right_signs_rests_at_the_plain_means_optimum(L):
    xs, _ = printed(TOY, ALL * 5, LR, STEPS, curvatures(TOY), {"signs", "right side", "tau"}, L)
    assert float((xs[-1] - PLAIN).norm()) < 1e-8
    assert float((xs[-1] - TOY.x_star).norm()) > 0.1


# The circuit: (28), (31)-(36), Algorithm 1


class Made:
    """A window of ``a`` clients out of n, with their flows J_i^k."""

    def __init__(self, a: int = 4, n: int = 7, d: int = 5, seed: int = 0, L: float = 0.7) -> None:
        g = generator(seed, "window")
        uniform = lambda *shape: 0.1 + torch.rand(*shape, generator=g, dtype=torch.float64)
        self.J = torch.randn(n, d, generator=g, dtype=torch.float64)
        self.all, self.D = uniform(n), torch.randn(a, d, generator=g, dtype=torch.float64)
        w, T, G = (uniform(a).tolist() for _ in range(3))
        self.all[:a] = torch.tensor(w, dtype=torch.float64)
        self.window, self.a = Window(self.all @ self.J, [*self.D], T, w, G, L), a
        self.u, self.K = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((d,), (a, d)))


@given(
    a=st.integers(1, 6), rest=st.integers(0, 3), seed=st.integers(0, 99), dt=st.floats(0.01, 5), L=st.floats(0.01, 9)
)
@settings(max_examples=30)
def test_a_step_solves_33_and_satisfies_31_and_32(a, rest, seed, dt, L):
    m, t = Made(a, a + rest, seed=seed, L=L), 0.3
    w, u, K = m.window, m.u, m.K
    u1, K1 = w.step(u, K, t, dt)
    M, r = torch.eye(a + 1, dtype=torch.float64), torch.zeros(a + 1, 5, dtype=torch.float64)
    for i in range(a):  # rows of K_i, in I_i = w_i J_i with L_i = L/w_i and w_i G_i
        L_i, g = L / w.w[i], w.w[i] * w.G[i]
        M[i, i], M[i, a], M[a, i] = 1 + dt / (L_i * g), -dt / L_i, dt
        r[i] = w.w[i] * K[i] - dt / L_i * (t + dt) / w.T[i] * m.D[i]
    r[a] = u - dt * w.S
    z, weights = torch.linalg.solve(M, r), torch.tensor(w.w, dtype=torch.float64)
    size = max(1.0, float(z.abs().max()))
    assert float((u1 - z[a]).abs().max()) <= 1e-11 * size
    assert float((weights[:, None] * K1 - z[:a]).abs().max()) <= 1e-11 * size
    assert float((u1 - u + dt * (w.S + weights @ K1)).abs().max()) <= 1e-12 * size * max(1, dt)  # (31)
    G = torch.tensor(w.G, dtype=torch.float64)[:, None]
    residual = K1 - K - dt / L * (u1 - K1 / G - w.gamma(t + dt))  # (32)
    assert float(residual.abs().max()) <= 1e-12 * size * max(1.0, dt / L) / min(1.0, float(G.min()))


def test_gamma_is_a_line_through_both_ends():
    m = Made()
    assert torch.equal(m.window.gamma(0.0), torch.zeros(4, 5, dtype=torch.float64))
    for i, T in enumerate(m.window.T):
        assert torch.allclose(m.window.gamma(T)[i], m.D[i], rtol=1e-14, atol=0)
    twice = replace(m.window, D=[2 * D for D in m.D])
    assert torch.allclose(twice.gamma(0.7), 2 * m.window.gamma(0.7), rtol=1e-14, atol=0)
    assert torch.equal(m.window.gamma(0.7, slice(1, 3)), m.window.gamma(0.7)[:, 1:3])


def exact(window: Window) -> tuple[Tensor, Tensor]:
    """(u, K) at max T_i by the matrix exponential of (29), (30), a linear circuit driven by lines."""
    a, end = len(window.T), max(window.T)
    w, G, T = (torch.tensor(v, dtype=torch.float64) for v in (window.w, window.G, window.T))
    A = torch.zeros(a + 3, a + 3, dtype=torch.float64)  # u, K_i, and the constant 1 and t, which carry S and D
    out = []
    for S, D in zip(window.S, torch.stack([*window.D]).T, strict=True):
        A.zero_()
        A[0, 1 : a + 1], A[0, a + 1] = -w, -S
        for i in range(a):
            A[i + 1, 0], A[i + 1, i + 1], A[i + 1, a + 2] = (
                1 / window.L,
                -1 / (window.L * G[i]),
                -D[i] / T[i] / window.L,
            )
        A[a + 2, a + 1] = 1.0
        start = torch.zeros(a + 3, dtype=torch.float64)
        start[a + 1] = 1.0
        out.append(torch.linalg.matrix_exp(A * end) @ start)
    z = torch.stack(out, 1)
    return z[0], z[1 : a + 1]


def test_backward_euler_is_of_order_one_and_its_error_estimate_of_order_two():
    m = Made()
    u, K = exact(m.window)
    errors = []
    for n in (64, 128, 256):
        v, Q, dt = 0 * m.u, 0 * m.K, max(m.window.T) / n
        for k in range(n):
            v, Q = m.window.step(v, Q, k * dt, dt)
        errors.append(max(float((v - u).abs().max()), float((Q - K).abs().max())))
    assert [a / b for a, b in pairwise(errors)] == pytest.approx([2, 2], rel=0.05)
    said = []
    for dt in (0.02, 0.01, 0.005):
        after = State(*m.window.step(m.u, m.K, 0.2, dt))
        said.append(m.window.error(State(m.u, m.K), after, 0.2, dt))
    assert all(3.3 < a / b < 4.3 for a, b in pairwise(said))


@pytest.mark.slow
@given(delta=st.floats(1e-4, 10), seed=st.integers(0, 50))
@settings(max_examples=20)
def test_algorithm_1_keeps_every_error_below_delta_and_ends_at_the_longest_time(delta, seed):
    m = Made(seed=seed)
    end, solved = max(m.window.T), integrate(m.window, delta)
    assert solved.times[-1] == end
    u, K, t, cuts = 0 * m.u, 0 * m.K, 0.0, 0
    for at in solved.times:
        after = State(*m.window.step(u, K, t, at - t))
        e = m.window.error(State(u, K), after, t, at - t)
        assert e <= delta * (1 + 1e-9) or at - t <= SHORTEST * end * (1 + 1e-9)
        cuts += at < end
        (u, K), t = after, at
    assert torch.allclose(u, solved.u, rtol=1e-12, atol=1e-13)
    assert torch.allclose(K, solved.K, rtol=1e-12, atol=1e-13)
    assert (cuts == 0) == (solved.rejected == 0)
    parts = integrate(m.window, delta, chunk=2)
    assert parts.times == pytest.approx(solved.times, rel=1e-12)
    assert torch.allclose(parts.K, solved.K, rtol=1e-11, atol=1e-12)


def test_a_smaller_delta_takes_more_steps_and_none_goes_on_for_ever():
    m = Made()
    counts = [len(integrate(m.window, delta).times) for delta in (10.0, 0.1, 0.01, 0.001, 1e-12)]
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[2] > 2 * counts[1]
    assert counts[-1] in (64, 65)  # 64 times 1/64 may miss 1 by a rounding
    for bad in (math.inf, math.nan):
        broken = replace(m.window, S=m.window.S * bad)
        assert len(integrate(broken, 0.1).times) <= 65


def test_a_long_step_is_ecados_steady_state():
    """FE-10: x_c → (Σ w_i G_i D_i − S)/Σ w_i G_i, K_i → G_i (x_c − D_i), with an error of O(1/Δt)."""
    m = Made(d=5)
    still = replace(m.window, D=[0 * D for D in m.D])
    w, G = (torch.tensor(v, dtype=torch.float64) for v in (still.w, still.G))
    rest = -still.S / (w @ G)
    errors = [float((still.step(0 * m.u, 0 * m.K, 0.0, dt)[0] - rest).norm()) for dt in (1e3, 1e4)]
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)


# The fixed point, and who takes part


@given(
    lr=st.lists(st.floats(1e-3, 0.1), min_size=N, max_size=N),
    steps=st.lists(st.integers(1, 8), min_size=N, max_size=N),
    ids=st.sets(st.integers(0, N - 1), min_size=1),
    L=st.floats(0.1, 10),
    delta=st.sampled_from([1e-3, 0.1, ONE_STEP]),
    momentum=st.sampled_from([0.0, 0.9]),
)
@settings(max_examples=15)
def test_at_rest_nothing_moves(lr, steps, ids, L, delta, momentum):
    r = rig(delta, L, x=TOY.x_star, lr=lr, epochs=steps, momentum=momentum)
    r.s.J = {i: r.grad(i, TOY.x_star) for i in r.all}
    r(ids)
    assert float((r.s.x - TOY.x_star).norm()) <= 1e-12
    assert all(float((J - r.grad(i, TOY.x_star)).norm()) <= 1e-11 / min(lr) for i, J in r.s.J.items())


def test_without_the_absent_clients_flows_it_does_not_rest():
    r = rig(x=TOY.x_star)
    r.s.J = {i: r.grad(i, TOY.x_star) for i in r.all}
    r.s.S = sum(N * r.sim.p[i] * r.s.J[i] for i in (1, 3))
    r((1, 3))
    assert float((r.s.x - TOY.x_star).norm()) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 8))])
def test_unequal_quadratics_are_solved_at_40_percent_where_fedavg_is_not(seed):
    toy = md.problems.synthetic_quadratics(clients=10, d=20, seed=seed)
    fed = federation(toy, 0.4, **UNEQUAL)
    result = run(md.FedECADO(), fed, 300, seed=seed, eval_every=300)
    assert error(result, toy.x_star) < 1e-8
    assert error(run(md.FedAvg(), fed, 30, seed=seed, eval_every=30), toy.x_star) > 0.1


@pytest.mark.slow
def test_a_logistic_regression_is_solved_with_its_default_and_with_delta():
    toy = md.problems.synthetic_logistic(clients=10, d=10, mu=0.01, seed=0)
    pace = {"lr": md.distributions.Uniform(0.2, 2.0), "epochs": md.distributions.Integers(1, 10)}
    for delta in (0.1, 0.01):
        result = run(md.FedECADO(delta=delta), federation(toy, 0.4, **pace), 150, eval_every=150)
        assert error(result, toy.x_star) < 1e-6


@pytest.mark.slow
def test_any_scale_of_the_learning_rates():
    """T of about 0.02, as with the paper's learning rates."""
    toy = md.problems.synthetic_quadratics(clients=10, d=5, seed=1)
    pace = {"lr": md.distributions.Uniform(0.002, 0.01), "epochs": md.distributions.Integers(1, 10)}
    assert error(run(md.FedECADO(), federation(toy, 0.4, **pace), 160, eval_every=160), toy.x_star) < 1e-6


def kirchhoff(r: Rig) -> Tensor:
    return sum((N * r.sim.p[i] * J for i, J in r.s.J.items()), torch.zeros_like(r.s.x))


@given(
    cohorts=st.lists(st.sets(st.integers(0, N - 1), min_size=1), min_size=3, max_size=6),
    lost=st.dictionaries(
        st.tuples(st.integers(1, 6), st.just(0), st.integers(0, N - 1)),
        st.sampled_from(["request", "reply"]),
        max_size=9,
    ),
)
@settings(max_examples=10)
def test_kirchhoffs_sum_is_that_of_all_flows_whatever_is_lost(cohorts, lost):
    r = rig(0.05, lost=lost)
    for t, ids in enumerate(cohorts, 1):
        before = dict(r.s.J)
        s = r(ids)
        assert float((s.S - kirchhoff(r)).norm()) <= 1e-12 * max(1.0, *(float(J.norm()) for J in s.J.values()), 1.0)
        for i in range(N):
            if i not in ids or (t, 0, i) in lost:
                assert (i in before) == (i in s.J)
                assert i not in before or torch.equal(before[i], s.J[i])


@pytest.mark.slow
def test_lost_replies_leave_the_optimum_where_it_is():
    lost = {(t, 0, (3 * t) % 10): "reply" for t in range(2, 200, 3)}
    toy = md.problems.synthetic_quadratics(clients=10, d=5, seed=1)
    half = UNEQUAL | {"lr": md.distributions.Uniform(0.01, 0.05)}  # momentum doubles the times
    fed = federation(toy, 0.5, momentum=0.5, **half)
    result = run(md.FedECADO(), fed, 200, eval_every=200, transport=LossyTransport(lost))
    assert error(result, toy.x_star) < 1e-8


def test_when_nobody_answers_nothing_changes():
    r = rig(lost={(2, 0, 1): "reply", (2, 0, 3): "request"})
    r()
    before = (r.s.x, r.s.S, dict(r.s.J))
    r((1, 3))
    assert torch.equal(r.s.x, before[0])
    assert torch.equal(r.s.S, before[1])
    assert all(torch.equal(J, before[2][i]) for i, J in r.s.J.items())


@pytest.mark.slow
def test_one_client_alone():
    alone = Synthetic(LeastSquares(), TOY.clients[:1], optimum(TOY, torch.tensor([1.0, 0, 0, 0, 0])), 0.0)
    assert error(run(md.FedECADO(), federation(alone, lr=0.1, epochs=5), 200, eval_every=200), alone.x_star) < 1e-10


def test_names_of_clients_and_the_origin_do_not_matter():
    c = torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64)
    turned = Synthetic(TOY.problem, TOY.clients[::-1], TOY.x_star, TOY.f_star)
    moved = Synthetic(TOY.problem, [(X, y + X @ c) for X, y in TOY.clients], TOY.x_star + c, TOY.f_star)
    a, b, e = rig(0.05), rig(0.05, toy=turned, lr=LR[::-1], epochs=STEPS[::-1]), rig(0.05, toy=moved, x=c)
    for ids in COHORTS:
        x = a(ids).x
        assert float((b(N - 1 - i for i in ids).x - x).norm()) <= 1e-11
        assert float((e(ids).x - c - x).norm()) <= 1e-11


@pytest.mark.slow
def test_a_network_learns():
    losses = [row["loss"] for row in run(md.FedECADO(), digits(lr=0.3), 30, eval_every=30).history]
    assert losses[-1] < 0.2 * losses[0]


# The sensitivity


def test_curvature_is_asked_once_of_each_client_and_again_where_its_answer_was_lost():
    r = Rig(md.FedECADO(), TOY, lr=LR, epochs=STEPS, lost={(1, 0, 1): "reply"})
    r((0, 1))
    assert r.s.h.keys() == {0}
    assert r.s.J.keys() == {0, 1}
    first = r.s.h[0]
    r((0, 1, 2))
    assert r.s.h.keys() == {0, 1, 2}
    assert r.s.h[0] == first
    asked = [(e.round, e.client) for e in r.bookkeeping.ledger if e.method == "curvature"]
    assert asked == [(1, 0), (1, 1), (2, 1), (2, 2)]


def test_curvature_is_the_mean_of_the_hessians_diagonal():
    diagonal = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
    X = (3 * diagonal).sqrt().diag()  # XᵀX/3: random signs have no error
    toy = Synthetic(
        LeastSquares(), [(X, X @ torch.ones(3, dtype=torch.float64))], torch.ones(3, dtype=torch.float64), 0.0
    )
    r = Rig(md.FedECADO(), toy, lr=0.01)
    r()
    assert r.s.h[0] == pytest.approx(1.75, rel=1e-12)
    rough = Rig(md.FedECADO(), TOY, lr=LR, epochs=STEPS)
    rough()
    assert rough.s.h == pytest.approx(curvatures(TOY), rel=0.5)
    assert rough.s.h != pytest.approx(curvatures(TOY), rel=1e-6)


def test_negative_curvature_counts_as_none(monkeypatch):
    monkeypatch.setattr(fedecado, "hutchinson", lambda product, like, probes, rng: product(like) * 0 - 1)
    r = Rig(md.FedECADO(), TOY, lr=LR, epochs=STEPS)
    r()
    assert set(r.s.h.values()) == {0.0}


# Refusals


def digits_federation(**how: Any) -> md.Federation:
    return md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.IID(4),
        weights="uniform",
        **how,
    )


@pytest.mark.parametrize(
    ("how", "options", "words"),
    [
        (
            {},
            {"reply_policy": md.ReplyPolicy(replies=2)},
            r"every reply within its .* or use FedNorton\(\), which does",
        ),
        ({}, {"reply_policy": md.ReplyPolicy(deadline=9.0)}, r"deadline= of ReplyPolicy out; or use FedNorton\(\)"),
        ({}, {"secure": md.SecureSum()}, r"replies one by one.*; or use FedNorton\(flows='client'\), whose server"),
        ({"membership": md.scenarios.Membership(leaves={1: 2})}, {}, r"the same clients.*; or use FedNorton\(\)"),
        ({"pace": md.scenarios.Pace(optimizer="adam")}, {}, r"SGD at the clients, .*leave optimizer= of Pace out$"),
        ({"pace": md.scenarios.Pace(optimizer=torch.optim.AdamW)}, {}, r"leave optimizer= of Pace out$"),
    ],
    ids=["late", "deadline", "secure", "members", "adam", "factory"],
)
def test_runs_that_it_is_not_made_for_are_refused_before_round_1(how, options, words):
    with pytest.raises(md.Unsupported, match=f"^FedECADO needs .*{words}") as e:
        md.run(md.FedECADO(), digits_federation(**how), 1, progress=False, **options)
    assert "\n" not in str(e.value)
    assert e.value.result is None


@pytest.mark.parametrize(("unit", "words"), [("client", r"FedNorton\(flows='client'\)"), ("row", r"FedNorton\(\)")])
def test_private_runs_are_refused_before_anything_is_sent(unit, words):
    with pytest.raises(md.Unsupported, match=rf"^FedECADO cannot be private.*; use {words}"):
        md.run(md.Private(md.FedECADO(), noise=1.0, unit=unit), digits_federation(), 1, progress=False)


def test_needs_and_settings():
    assert md.FedECADO().requires() == {Need.HESSIAN, Need.SGD, Need.PROMPT, Need.REPLIES, Need.FIXED}
    assert md.FedECADO().settings() == {"L": 1.0, "delta": 0.1}
    for bad in ({"L": 0.0}, {"L": -1.0}, {"delta": 0.0}, {"delta": None}, {"L": "auto"}, {"L": math.inf}):
        with pytest.raises(md.RecipeError, match=r"FedECADO\((L|delta)=") as e:
            md.FedECADO(**bad)
        assert e.value.key in bad


GONE = sorted(md.FedECADO.gone)


@pytest.mark.parametrize("key", GONE)
def test_settings_that_went_name_fednorton(key):
    assert len(GONE) == 15
    with pytest.raises(md.RecipeError, match=rf"^FedECADO\({key}=\.\.\.\) is gone: .* is FedNorton$") as e:
        md.FedECADO(**{key: "J"})
    assert e.value.key == key
    text = f'[[methods]]\nkind = "FedECADO"\n{key} = "J"\n'
    with pytest.raises(md.RecipeError, match=rf"^r.toml: methods.0: FedECADO\({key}=...\) is gone: .* FedNorton$"):
        recipe.loads(text, "r.toml").methods()
