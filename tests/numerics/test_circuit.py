"""The circuit against dense solves, the exact solution of the linear circuit, and its own laws."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from medley.contract.errors import RecipeError
from medley.numerics.circuit.branch import conductance, flow, gamma, passive, passivity, sensitivity, stiffness
from medley.numerics.circuit.central import Elements, Windows, central_step, steady_state
from medley.numerics.circuit.window import Circuit, Controller, be_step, integrate, truncation
from medley.runtime.streams import generator

F = torch.float64


class Star:
    """n clients of which the first a are active, in absolute quantities, with their true S."""

    def __init__(self, n: int = 7, a: int = 4, d: int = 5, seed: int = 0, scale: float = 1.0, dtype=F) -> None:
        g = generator(seed, "circuit world")
        draw = lambda *shape: torch.randn(*shape, generator=g, dtype=F)
        uniform = lambda *shape: torch.rand(*shape, generator=g, dtype=F)
        self.a = a
        self.x = draw(d).to(dtype)
        self.y = (self.x + scale * draw(a, d)).to(dtype)
        self.D = self.y - self.x
        self.J = draw(n, d).to(dtype)
        p = uniform(n) + 0.1
        self.all = (p / p.sum()).to(dtype)
        self.p = self.all[:a]
        self.T = (scale * (0.1 + 3 * uniform(a))).to(dtype)
        self.G = (0.2 + uniform(a)).to(dtype)
        self.Gd = (0.2 + uniform(a, d)).to(dtype)
        self.S = self.total(self.J[:a])

    def total(self, active: Tensor) -> Tensor:
        return self.all @ torch.cat([active, self.J[self.a :]])


def close(x: Tensor, y: Tensor, tol: float) -> None:
    assert x.shape == y.shape
    assert float((x - y).abs().max()) <= tol * max(1.0, float(y.abs().max()))


def dense(x, J, Jk, Gam, S_in, p, g, ell, C_c, dt) -> tuple[Tensor, Tensor]:
    """(33), corrected, for every coordinate: an (a+1) x (a+1) linear solve with numpy, in absolute quantities."""
    a, d = J.shape
    g = g.expand(a, d)
    x1, J1 = torch.empty(d, dtype=F), torch.empty(a, d, dtype=F)
    for j in range(d):
        M, b = np.zeros((a + 1, a + 1)), np.zeros(a + 1)
        for i in range(a):
            # ell (J' - J)/dt = x' - Gamma - (J' - Jk)/g
            M[i, i] = ell / dt + 1 / float(g[i, j])
            M[i, a] = -1.0
            b[i] = ell / dt * float(J[i, j]) + float(Jk[i, j]) / float(g[i, j]) - float(Gam[i, j])
            M[a, i] = float(p[i])
        M[a, a] = C_c / dt
        b[a] = C_c / dt * float(x[j]) - float(S_in[j])
        z = np.linalg.solve(M, b)
        J1[:, j], x1[j] = torch.from_numpy(z[:a]), z[a]
    return x1, J1


@pytest.mark.parametrize("vector", [False, True])
def test_i_form_is_the_dense_solve_and_satisfies_its_equations(vector):
    w, L, dt = Star(), 0.7, 0.3
    I, Ik = w.J[: w.a], w.J[: w.a] + torch.randn(w.a, 5, generator=generator(1, "Ik"), dtype=F)
    G = w.Gd if vector else w.G[:, None]
    S_in = w.J[w.a :].sum(0)
    u1, K1 = be_step(Circuit.i_form(w.Gd if vector else w.G, L), 0 * w.x, I - Ik, w.D, S_in + Ik.sum(0), dt)
    x1, I1 = w.x + u1, Ik + K1
    xd, Id = dense(w.x, I, Ik, w.y, S_in, torch.ones(w.a), G, L, 1.0, dt)
    close(x1, xd, 1e-13)
    close(I1, Id, 1e-13)
    close(x1 - w.x, -dt * (S_in + I1.sum(0)), 1e-13)  # (31), and FE-3
    close(L * (I1 - I), dt * (x1 - w.y - (I1 - Ik) / G), 1e-13)  # (32)
    r = I + dt / L * (Ik / G - w.y)  # the elimination as §2.1.3 of the derivation writes it
    alpha = 1 + dt / (L * G)
    xs = (w.x - dt * (S_in + (r / alpha).sum(0))) / (1 + dt**2 / L * (1 / alpha).expand_as(r).sum(0))
    close(x1, xs, 1e-13)
    close(I1, (r + dt / L * xs) / alpha, 1e-13)


@pytest.mark.parametrize("C_c", [0.0, 0.3])
@pytest.mark.parametrize("lam", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("curvature", ["none", "scalar", "diagonal"])
def test_sub_steps_and_the_whole_step_are_the_dense_solve(C_c, lam, curvature):
    w, q = Star(), 0.5
    h = {"none": None, "scalar": w.G, "diagonal": w.Gd}[curvature]
    c = Circuit.j_form(w.T, w.p, Elements(lam=lam, q=q, C_c=C_c), h=h)
    Jk, Tw = w.J[: w.a], float(w.T.max())
    S_in = w.S - w.p @ Jk
    x, J, u, K = w.x, Jk, 0 * w.x, 0 * Jk
    for k, dt in enumerate([0.3 * Tw, 0.2 * Tw, 0.5 * Tw]):
        t = [0.3, 0.5, 1.0][k] * Tw
        Gam = gamma(w.x, w.y, w.T, t)
        x, J = dense(x, J, Jk, Gam, S_in, w.p, c.g, c.ell, C_c, dt)
        u, K = be_step(c, u, K, Gam - w.x, w.S, dt)
        close(w.x + u, x, 1e-13)
        close(Jk + K, J, 1e-13)
    xd, Jd = dense(w.x, Jk, Jk, gamma(w.x, w.y, w.T, Tw), S_in, w.p, c.g, c.ell, C_c, Tw)
    step = central_step(w.S, Windows(w.D, w.T, w.p, h), Elements(lam=lam, q=q, C_c=C_c), J=Jk)
    close(w.x + step.dx, xd, 1e-13)
    close(step.J, Jd, 1e-13)
    close(step.S, w.total(Jd), 1e-13)
    whole = integrate(c, w.S, w.D, w.T)
    assert whole.steps == 1
    assert whole.rejected == 0
    assert whole.dts == (Tw,)
    close(whole.dx, step.dx, 1e-13)
    close(Jk + whole.K, step.J, 1e-13)
    close(whole.S, step.S, 1e-13)


@settings(max_examples=60, deadline=None)
@given(
    a=st.integers(1, 6),
    rest=st.integers(0, 4),
    d=st.integers(1, 9),
    chunk=st.integers(1, 9),
    scale=st.sampled_from([1e-4, 1e-2, 1.0, 1e2]),
    lam=st.floats(0, 5),
    q=st.floats(0, 1.5),
    C_c=st.sampled_from([0.0, 0.05, 1.0]),
    cap=st.sampled_from([math.inf, 2.0]),
    curvature=st.sampled_from(["none", "scalar", "diagonal"]),
    seed=st.integers(0, 99),
)
def test_laws_of_the_central_step(a, rest, d, chunk, scale, lam, q, C_c, cap, curvature, seed):
    w = Star(a + rest, a, d, seed, scale)
    h = {"none": None, "scalar": w.G - 0.5, "diagonal": w.Gd - 0.5}[curvature]
    elements = Elements(lam, q, C_c, cap)
    J = w.J[:a].clone()
    one = central_step(w.S, Windows(w.D, w.T, w.p, h), elements, J=J)
    size = 1 + float(one.J.abs().max())
    assert torch.equal(J, w.J[:a])  # pure unless told otherwise
    assert float((one.S - w.total(one.J)).abs().max()) <= 1e-12 * size  # S against the true sum, inactive included
    assert float((one.S + C_c / one.Tw * one.dx).abs().max()) == 0
    # chunked, listed, in place and at the clients: the same numbers
    rows = lambda M: None if M is None else [r.clone() for r in M]
    J2, S2, out = rows(J), w.S.clone(), torch.empty(d, dtype=F)
    two = central_step(
        S2,
        Windows(rows(w.D), w.T, w.p, rows(h) if curvature == "diagonal" else h),
        elements,
        J=J2,
        inplace=True,
        out=out,
        chunk=chunk,
    )
    assert two.dx is out
    assert two.S is S2
    assert two.J is J2
    close(two.dx, one.dx, 1e-12)
    close(torch.stack(J2), one.J, 1e-12)
    close(S2, one.S, 1e-12)
    three = central_step(w.S, Windows(w.D, w.T, w.p, h), elements, chunk=chunk)
    assert three.J is None
    close(three.dx, one.dx, 1e-12)
    hc = None if h is None else h[:, None] if h.ndim == 1 else h
    beta = conductance(w.T[:, None], three.Tw, lam, q, hc, cap)
    if curvature == "diagonal":
        assert three.beta is None
    else:
        close(three.beta, beta, 1e-13)
    close(flow(J, w.D, three.dx, three.rho, beta), one.J, 1e-12)  # a stack
    for i in range(a):  # one client
        hi = None if h is None else h[i] if curvature == "diagonal" else float(h[i])
        bi = conductance(float(w.T[i]), three.Tw, lam, q, hi, cap)
        close(flow(J[i], w.D[i], three.dx, float(three.rho[i]), bi), one.J[i], 1e-12)
    # order of the clients
    order = torch.randperm(a, generator=generator(seed, "order"))
    other = central_step(
        w.S, Windows(w.D[order], w.T[order], w.p[order], None if h is None else h[order]), elements, J=J[order]
    )
    close(other.dx, one.dx, 1e-12)
    close(other.J, one.J[order], 1e-12)
    # the general loop
    loop = integrate(
        Circuit.j_form(w.T, w.p, elements, h), w.S, [*w.D], w.T, chunk=chunk
    )  # fmt: skip
    close(loop.dx, one.dx, 1e-11)
    close(J + loop.K, one.J, 1e-11)


@settings(max_examples=30, deadline=None)
@given(a=st.integers(1, 6), d=st.integers(1, 20), q=st.floats(0, 1), seed=st.integers(0, 99))
def test_float32_is_close_to_float64(a, d, q, seed):
    w, v = Star(a + 2, a, d, seed), Star(a + 2, a, d, seed, dtype=torch.float32)
    exact = central_step(w.S, Windows(w.D, w.T, w.p), Elements(q=q, C_c=0.2), J=w.J[:a])
    single = central_step(v.S, Windows(v.D, v.T, v.p), Elements(q=q, C_c=0.2), J=v.J[:a])
    assert single.dx.dtype == single.S.dtype == single.J.dtype == single.beta.dtype == torch.float32
    close(single.dx.double(), exact.dx, 3e-5)
    close(single.J.double(), exact.J, 3e-5)
    diagonal = central_step(v.S, Windows(v.D, v.T.double(), v.p.double(), v.Gd), J=v.J[:a])
    assert diagonal.dx.dtype == torch.float32
    close(diagonal.dx.double(), central_step(w.S, Windows(w.D, w.T, w.p, w.Gd)).dx, 3e-5)
    loop = integrate(Circuit.j_form(v.T, v.p, Elements(q=q, C_c=0.2)), v.S, v.D, v.T)
    assert loop.K.dtype == torch.float32
    close(loop.dx.double(), exact.dx, 3e-5)


def test_translation_leaves_displacements_and_so_everything():
    w, shift = Star(), torch.arange(5, dtype=F)
    G0, G1 = gamma(w.x, w.y, w.T, 1.3), gamma(w.x + shift, w.y + shift, w.T, 1.3)
    close(G1, G0 + shift, 1e-13)
    moved = (w.y + shift) - (w.x + shift)
    close(central_step(w.S, Windows(moved, w.T, w.p)).dx, central_step(w.S, Windows(w.D, w.T, w.p)).dx, 1e-13)


def test_gamma_synchronises():
    w = Star()
    start = w.y.flip(0)
    close(gamma(start, w.y, w.T, 0.0), start, 0.0)
    for i in range(w.a):
        t = float(w.T[i])
        close(gamma(start, w.y, w.T, t)[i], w.y[i], 1e-14)
        close(gamma(start, w.y, w.T, 3 * t)[i], 3 * w.y[i] - 2 * start[i], 1e-13)  # extrapolated
        close(gamma(start, w.y, w.T, 3 * t, cap=2.0)[i], 2 * w.y[i] - start[i], 1e-13)
    close(gamma(2 * start, 2 * w.y, w.T, 0.7), 2 * gamma(start, w.y, w.T, 0.7), 1e-14)
    close(gamma(w.x, w.x.expand(w.a, -1), w.T, 0.7), w.x.expand(w.a, -1), 0.0)  # constants stay (Lemma B.1)


def test_without_inductor_capacitor_and_flows_it_is_fednova_with_the_longest_time():
    w = Star()
    step = central_step(0 * w.x, Windows(w.D, w.T, w.p), Elements(lam=0.0))
    p = w.p / w.p.sum()
    nova = sum(p[i] * w.T.max() / w.T[i] * w.D[i] for i in range(w.a))
    close(step.dx, nova, 1e-14)
    close(step.S, 0 * w.x, 0.0)


def test_curvature_is_exact_on_a_linear_scalar_problem():
    """x' = J - h x: the end state answers a change of J by exactly T/stiffness(hT)."""
    T = 1.7
    for h in [-0.8, 0.0, 1e-9, 1e-5, 0.3, 40.0]:
        end = lambda J, h=h: math.exp(-h * T) * 0.4 + (J * T if h == 0 else J * -math.expm1(-h * T) / h)
        slope = end(2.0) - end(1.0)
        g = float(sensitivity(T, T, 0.0, h))
        assert abs(1 / g - slope) <= 1e-12 * slope
    z = torch.tensor([0.0, 1e-12, 1e-3, 1e3, -1e3], dtype=F)
    expected = torch.tensor([1.0, 1 + 5e-13, 1 + 5e-4 + 1e-6 / 12, 1e3, 0.0], dtype=F)
    close(stiffness(z), expected, 1e-13)


def response(a, T, lr, beta, rho):
    """A branch's m, and its Z at z = −1, for a client of curvature ``a`` that takes T/lr steps of gradient descent."""
    shrunk = (1 - (1 - lr * a) ** round(T / lr)) / (a * T)
    m = beta * rho * T * shrunk
    return m, (2 * beta - m * a) / (2 - m)


@pytest.mark.parametrize("q", [0.0, 1.0, 3.0])
@given(
    curvatures=st.lists(st.floats(1e-4, 20.0), min_size=2, max_size=6),
    steps=st.integers(1, 60),
    lr=st.floats(1e-3, 0.05),
    ratio=st.floats(1, 100),
)
@settings(max_examples=30)
def test_with_the_mean_curvature_a_branch_is_passive_in_every_direction(q, curvatures, steps, lr, ratio):
    """A positive real response: the pole in [−1/2, 1), and no negative resistance at the highest frequency."""
    T, mean = torch.tensor(lr * steps, dtype=F), sum(curvatures) / len(curvatures)
    h, cap = passive(T, torch.tensor(mean, dtype=F), torch.tensor(sum(curvatures), dtype=F))
    beta = float(conductance(float(T), ratio * float(T), 0.0, q, h, cap))
    for a in curvatures:
        m, Z = response(a, float(T), lr, beta, min(ratio, float(cap)))
        assert 0 < m <= 1.5 + 1e-9
        assert -1e-9 * beta <= Z


def test_without_the_bounds_a_branch_is_active():
    flat, steep, lr, T = 0.01, 10.0, 0.05, torch.tensor(2.0, dtype=F)
    bare = float(conductance(2.0, 2.0, 0.0, 0.0, 5.0))
    assert response(flat, 2.0, lr, bare, 1.0)[0] > 9  # an error of a flow grows eightfold in a round
    ahead = float(conductance(2.0, 40.0, 0.0, 0.0, torch.tensor(5.0, dtype=F).clamp(max=0.4)))
    assert response(steep, 2.0, lr, ahead, 20.0)[1] < 0
    h, cap = passive(T, torch.tensor(5.0, dtype=F), torch.tensor(10.01, dtype=F))
    assert (float(stiffness(h * T)), float(cap)) == (pytest.approx(1.5, rel=1e-12), 2.0)
    h, cap = passive(T, torch.tensor([1e-3, 0.0], dtype=F), torch.tensor([2e-3, 0.0], dtype=F))
    assert h.tolist() == [1e-3, 0.0]
    assert cap.tolist() == [pytest.approx(500.0), math.inf]


def test_q_and_cap_in_the_sensitivity():
    T = torch.tensor([[0.5], [2.0]], dtype=F)
    close(1 / sensitivity(T, 2.0, 0.5), torch.tensor([[2 * 4**0.5], [2.0]], dtype=F), 1e-15)
    close(1 / sensitivity(T, 2.0, 0.5, cap=2.0), torch.tensor([[0.5 * 2**1.5], [2.0]], dtype=F), 1e-15)
    close(1 / conductance(T, 2.0, 3.0), torch.tensor([[8.0], [8.0]], dtype=F), 1e-15)


@pytest.mark.parametrize("vector", [False, True])
def test_ecado_is_the_limit_of_long_steps(vector):
    w = Star()
    G, I = w.Gd if vector else w.G, w.J[: w.a]
    S = w.J.sum(0)
    limit = steady_state(S, w.D, G, J=I)
    Gc = G if vector else G[:, None].expand(w.a, 5)
    close(w.x + limit.dx, ((Gc * w.y).sum(0) - S + 0 * w.x) / Gc.sum(0), 1e-13)
    close(limit.J, I + Gc * (w.x + limit.dx - w.y), 1e-13)
    close(limit.J.sum(0) + w.J[w.a :].sum(0), 0 * w.x, 1e-13)
    assert float(limit.S.abs().max()) == 0
    errors = []
    for dt in (1e4, 1e5, 1e6):
        u, K = be_step(Circuit.i_form(G, 0.7), 0 * w.x, 0 * I, w.D, S, dt)
        errors.append(max(float((u - limit.dx).abs().max()), float((I + K - limit.J).abs().max())))
    for long, longer in pairwise(errors):
        assert 9 < long / longer < 11
    close(steady_state(S, [*w.D], [*G] if vector else G, chunk=2).dx, limit.dx, 1e-14)


def linear_circuit(w: World, c: Circuit, t: float) -> tuple[Tensor, Tensor]:
    """The exact (u, K) at time t for clients moving on their lines: a matrix exponential per coordinate."""
    a, d = w.D.shape
    u, K = torch.empty(d, dtype=F), torch.empty(a, d, dtype=F)
    for j in range(d):
        # state (u, K_1..K_a, time, 1)
        M = torch.zeros(a + 3, a + 3, dtype=F)
        M[0, 1 : a + 1], M[0, -1] = -c.p / c.C_c, -w.S[j] / c.C_c
        for i in range(a):
            M[i + 1, 0], M[i + 1, i + 1] = 1 / c.ell, -1 / (c.ell * c.g[i, 0])
            M[i + 1, -2] = -w.D[i, j] / (c.ell * w.T[i])
        M[-2, -1] = 1.0
        z = torch.linalg.matrix_exp(M * t)[:, -1]
        u[j], K[:, j] = z[0], z[1 : a + 1]
    return u, K


def test_backward_euler_is_of_first_order():
    w = Star()
    c = Circuit.j_form(w.T, w.p, Elements(lam=1.0, q=0.5, C_c=0.4))
    Tw = float(w.T.max())
    exact, flows = linear_circuit(w, c, Tw)
    sizes, errors = [], []
    for n in (32, 64, 128, 256, 512):
        u, K, dt = 0 * w.x, 0 * w.D, Tw / n
        for k in range(n):
            u, K = be_step(c, u, K, gamma(0 * w.x, w.D, w.T, (k + 1) * dt), w.S, dt)
        sizes.append(math.log(dt))
        errors.append(math.log(max(float((u - exact).abs().max()), float((K - flows).abs().max()))))
    slope = np.polyfit(sizes, errors, 1)[0]
    assert 0.9 < slope < 1.1


@pytest.mark.parametrize("form", ["I", "J"])
def test_truncation_errors_quarter_when_the_step_halves(form):
    w = Star()
    c = Circuit.j_form(w.T, w.p, Elements(C_c=0.4)) if form == "J" else Circuit.i_form(w.G, 0.7)
    u, K, t = 0 * w.x, 0 * w.D, 0.1
    for k in range(8):  # away from the start, where K = 0 exactly
        u, K = be_step(c, u, K, gamma(0 * w.x, w.D, w.T, (k + 1) * t / 8), w.S, t / 8)

    def errors(dt: float) -> tuple[float, float]:
        G0, G1 = (gamma(0 * w.x, w.D, w.T, s) for s in (t, t + dt))
        u1, K1 = be_step(c, u, K, G1, w.S, dt)
        v0, v1 = u - G0 - K / c.g, c.ell * (K1 - K) / dt  # the branch voltages, the second by its own equation
        eps = truncation(c, (u, u1), (K, K1), (G0, G1), dt)
        assert eps[1] == pytest.approx(float((dt / (2 * c.ell) * (v1 - v0)).abs().max()), rel=1e-9)
        F0, F1 = -(w.S + c.p @ K), c.C_c * (u1 - u) / dt
        assert eps[0] == pytest.approx(float((dt / (2 * c.C_c) * (F1 - F0)).abs().max()), rel=1e-9)
        return eps

    coarse, fine = errors(2e-3), errors(1e-3)
    for e, f in zip(coarse, fine, strict=True):
        assert 3.3 < e / f < 4.3


def test_an_absent_element_has_no_truncation_error():
    w = Star()
    pair = (0 * w.x, w.x), (0 * w.D, w.D), (0 * w.D, w.D)
    assert truncation(Circuit.j_form(w.T, w.p, Elements(lam=0.0)), *pair, 0.1) == (0.0, 0.0)
    eps = truncation(Circuit.j_form(w.T, w.p), *pair, 0.1)
    assert eps[0] == 0
    assert eps[1] > 0


@settings(max_examples=20, deadline=None)
@given(
    delta=st.sampled_from([1e-1, 3e-2, 1e-2]),
    lam=st.floats(0.1, 3),
    C_c=st.sampled_from([0.0, 0.1, 1.0]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_the_controller_keeps_its_tolerance_and_lands_on_the_end(delta, lam, C_c, scale, seed):
    w = Star(seed=seed, scale=scale)
    c = Circuit.j_form(w.T, w.p, Elements(lam=lam, q=0.5, C_c=C_c))
    control = Controller(delta, floor=1e-3)
    sol = integrate(c, w.S, w.D, w.T, controller=control, chunk=2)
    assert sol.steps >= 1
    assert abs(math.fsum(sol.dts) - sol.Tw) <= 1e-12 * sol.Tw
    assert sol.worst <= delta or min(sol.dts) <= control.floor * sol.Tw * (1 + 1e-9)
    assert min(sol.dts) >= 0.49 * control.floor * sol.Tw  # no slivers
    assert 0 < sol.h <= 1
    total = w.S + w.p @ sol.K
    assert float((sol.S - total).abs().max()) <= 1e-9 * (1 + float(sol.K.abs().max()))
    again = integrate(c, w.S, w.D, w.T, controller=control, h=sol.h)
    assert again.dts[0] <= sol.h * sol.Tw * (1 + 1e-9)


def test_a_tighter_tolerance_is_nearer_to_the_exact_solution():
    w = Star()
    c = Circuit.j_form(w.T, w.p, Elements(C_c=0.4))
    exact, _ = linear_circuit(w, c, float(w.T.max()))
    runs = [
        integrate(c, w.S, w.D, w.T, controller=Controller(d, floor=1e-5), chunk=2) for d in (1e-1, 1e-2, 1e-3, 1e-4)
    ]
    errors = [float((r.dx - exact).abs().max()) for r in runs]
    assert all(r.worst <= d for r, d in zip(runs, (1e-1, 1e-2, 1e-3, 1e-4), strict=True))
    assert [r.steps for r in runs] == sorted(r.steps for r in runs)
    slope = np.polyfit(np.log([1e-1, 1e-2, 1e-3, 1e-4]), np.log(errors), 1)[0]
    assert 0.4 < slope < 0.6  # a step's error is O(h^2), the window's O(h)
    for r in runs:  # every accepted step replayed by hand, its own error measured
        u, K, t = 0 * w.x, 0 * w.D, 0.0
        far = float(gamma(0 * w.x, w.D, w.T, r.Tw).abs().max())
        worst = 0.0
        for dt in r.dts:
            G0, G1 = (gamma(0 * w.x, w.D, w.T, s) for s in (t, t + dt))
            u1, K1 = be_step(c, u, K, G1, w.S, dt)
            eps_C, eps_L = truncation(c, (u, u1), (K, K1), (G0, G1), dt)
            worst = max(worst, eps_C / far, r.Tw * eps_L / far)
            u, K, t = u1, K1, t + dt
        assert worst == pytest.approx(r.worst, rel=1e-6)
        close(u, r.dx, 1e-12)
        close(K, r.K, 1e-11)


def test_the_floor_bounds_the_number_of_steps():
    w = Star()
    sol = integrate(Circuit.j_form(w.T, w.p, Elements(C_c=0.4)), w.S, w.D, w.T, controller=Controller(1e-12))
    assert 64 <= sol.steps <= 66
    assert sol.worst > 1e-12  # and says so
    assert abs(math.fsum(sol.dts) - sol.Tw) <= 1e-12


def test_the_controllers_arithmetic():
    c = Controller(0.01)
    assert c.rejects(0.5, 0.02)
    assert not c.rejects(0.5, 0.01)
    assert not c.rejects(1 / 64, 9.0)
    assert c.shorter(0.5, 0.04) == pytest.approx(0.5 * 0.9 / 2)
    assert c.shorter(0.5, 100.0) == pytest.approx(0.1)
    assert c.next(0.1, 0.0) == pytest.approx(0.2)
    assert c.next(0.1, 0.01) == pytest.approx(0.09)
    assert c.next(0.1, 0.0025) == pytest.approx(0.18)
    assert c.next(0.1, 1.0) == pytest.approx(0.03)
    assert c.next(0.9, 1e-9) == 1.0
    for bad in (dict(delta=0.0), dict(delta=0.1, first=2.0), dict(delta=0.1, floor=0.0)):
        with pytest.raises(RecipeError, match=r"Controller\(\)"):
            Controller(**bad)


def test_a_last_step_cut_short_does_not_start_the_next_window():
    """Clients that stand still and S = 0: no error at all, steps double, the last is cut."""
    T, p = torch.tensor([1.0], dtype=F), torch.tensor([1.0], dtype=F)
    S, D = torch.zeros(2, dtype=F), torch.zeros(1, 2, dtype=F)
    sol = integrate(Circuit.j_form(T, p, Elements(C_c=0.1)), S, D, T, controller=Controller(0.1, first=0.1))
    assert sol.dts == pytest.approx((0.1, 0.2, 0.35, 0.35))
    assert sol.h == pytest.approx(0.4)
    assert sol.worst == 0.0


def test_clients_that_start_elsewhere():
    """A client whose window began away from x_c: sub-steps against the dense solve in absolute quantities."""
    w, c = Star(), Circuit.i_form(Star().G, 0.7)
    start = 0.3 * w.D.flip(0)
    Ik, T, Tw = w.J[: w.a], w.T, float(w.T.max())
    sol = integrate(c, w.J.sum(0), w.y - (w.x + start), T, start=start)
    Gam = gamma(w.x + start, w.y, T, Tw)
    x, I = dense(w.x, Ik, Ik, Gam, w.J[w.a :].sum(0), torch.ones(w.a), c.g, 0.7, 1.0, Tw)
    close(w.x + sol.dx, x, 1e-13)
    close(Ik + sol.K, I, 1e-13)


def test_the_fixed_point_stays_whoever_takes_part():
    """FE-4 and FE-5: at x*, J_i = grad f_i, clients do not move and nothing changes; omit the others and it does."""
    for a in (1, 3, 7):
        w = Star(7, a, 5)
        w.J -= w.all @ w.J  # sum of p_i J_i = 0
        S = w.total(w.J[:a])
        step = central_step(S, Windows(0 * w.D, w.T, w.p), Elements(C_c=0.1), J=w.J[:a])
        close(step.dx, 0 * w.x, 1e-14)
        close(step.J, w.J[:a], 1e-14)
        if a < 7:
            assert (
                float(central_step(w.p @ w.J[:a], Windows(0 * w.D, w.T, w.p), Elements(C_c=0.1)).dx.abs().max()) > 1e-2
            )


def test_an_empty_cohort_changes_nothing():
    S, none = torch.arange(3, dtype=F), torch.zeros(0, dtype=F)
    for step in (
        central_step(S, Windows([], none, none), Elements(C_c=0.5), J=[]),
        steady_state(S, torch.zeros(0, 3, dtype=F), none),
        integrate(Circuit.j_form(none, none, Elements(C_c=0.5)), S, [], none),
        integrate(Circuit.j_form(none, none), S, [], none, controller=Controller(0.1)),
    ):
        close(step.dx, 0 * S, 0.0)
        close(step.S, S, 0.0)


def test_passivity_limits_the_flow_to_what_the_gradient_resists():
    g = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]], dtype=F)
    J = torch.tensor([[0.0, 20.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]], dtype=F)
    s = passivity(g, J, 2.0)
    close(s, torch.tensor([[0.5], [1.0], [0.0], [1.0]], dtype=F), 1e-15)
    for i in range(4):
        close(passivity(g[i], J[i], 2.0), s[i], 1e-15)
    close(passivity(g[:1], g[:1], 1.0) * g[:1], g[:1], 0.0)  # the fixed point is kept


def test_clear_errors():
    w = Star()
    for bad in (0.0, -1.0, math.nan, math.inf):
        T = w.T.clone()
        T[2] = bad
        for call in (
            lambda T=T: central_step(w.S, Windows(w.D, T, w.p)),
            lambda T=T: gamma(w.x, w.y, T, 1.0),
            lambda T=T: Circuit.j_form(T, w.p),
            lambda T=T: integrate(Circuit.i_form(w.G, 1.0), w.S, w.D, T),
        ):
            with pytest.raises(RecipeError, match=r"\(\): client 2 of the cohort reports the simulated time"):
                call()
    for key in ("lam", "q", "C_c"):
        with pytest.raises(RecipeError, match=rf"Elements\(\): {key} is -1") as error:
            central_step(w.S, Windows(w.D, w.T, w.p), Elements(**{key: -1.0}))
        assert error.value.key == key
    with pytest.raises(RecipeError, match="4 active clients, but 3 rows of D"):
        central_step(w.S, Windows([*w.D[:3]], w.T, w.p))
    with pytest.raises(RecipeError, match="no weight"):
        central_step(w.S, Windows(w.D, w.T, 0 * w.p))
    with pytest.raises(RecipeError, match="sensitivity g must be positive"):
        Circuit.i_form(0 * w.G, 1.0)
    with pytest.raises(RecipeError, match="needs an inductor"):
        Circuit.i_form(w.G / 0, 0.0)
