"""Eigenpairs against dense decompositions, and the server's solves against dense ones."""

from __future__ import annotations

import pytest
import torch
from scipy.sparse import linalg

from medley.numerics import curvature
from medley.numerics.curvature import Sketch, decompose, excess
from medley.runtime.streams import generator

F64 = torch.float64


def draw(*shape: int, seed: int = 0):
    return torch.randn(*shape, generator=generator(seed, "curvature", *shape), dtype=F64)


def none(d: int):
    return torch.empty(0, d, dtype=F64), torch.empty(0, dtype=F64)


def rebuilt(s, A, W, c):
    V = s.vectors(0, len(s.values), A, W, c)
    return (V.T * (s.values - s.least)) @ V + s.least * torch.eye(A.shape[1]).double()


@pytest.mark.parametrize("rows", [3, 8, 9, 30])
@pytest.mark.parametrize("held", [0, 4])
@pytest.mark.parametrize("signed", [False, True])
def test_all_pairs_make_the_matrix(rows, held, signed):
    d = 9
    A, W, c = draw(rows, d), draw(held, d, seed=1), draw(held, seed=2)
    c = c if signed else c.abs()
    s = decompose(A, W, c)
    M = A.T @ A - (W.T * c) @ W
    assert torch.allclose(rebuilt(s, A, W, c), M, rtol=0, atol=1e-12 * float(M.norm()))
    V = s.vectors(0, len(s.values), A, W, c)
    assert torch.allclose(V @ V.T, torch.eye(len(V)).double(), rtol=0, atol=1e-9)
    assert bool((s.values.abs().diff() <= 0).all())
    assert s.basis.shape[1] == (d if rows + held >= d else rows + held)
    lam = torch.linalg.eigvalsh(M).abs().sort(descending=True).values
    for q in (0, 2, len(s.values)):
        assert s.next(q) == pytest.approx(float(lam[q]) if q < d else 0.0, rel=1e-9, abs=1e-12)
        if q < d:
            assert s.mean(q) == pytest.approx(float(lam[q:].mean()), rel=1e-9, abs=1e-12)


def test_the_cap_is_the_rank_and_one_less_than_the_order():
    d = 8
    assert len(decompose(draw(30, d), *none(d)).values) == d - 1  # λ_n is known from `least`
    assert len(decompose(draw(5, d), *none(d)).values) == 5
    flat = draw(30, 3) @ draw(3, d)
    assert len(decompose(flat, *none(d)).values) == 3
    assert len(decompose(torch.eye(d).double(), *none(d)).values) == 0
    assert decompose(torch.eye(d).double(), *none(d)).least == pytest.approx(1.0)


@pytest.mark.shapes
def test_lanczos_finds_what_lapack_finds_and_goes_on_where_it_was(monkeypatch):
    d = 120
    A = draw(150, d) * torch.logspace(0, -3, d).double()
    W, c = none(d)
    whole = decompose(A, W, c)
    monkeypatch.setattr(curvature, "LARGE", 100)
    s = decompose(A, W, c, few=5)
    assert s.partial
    assert torch.allclose(s.values, whole.values[:5], rtol=1e-10)
    kept = s.vectors(0, 5, A, W, c)
    assert torch.allclose((kept @ whole.vectors(0, 5, A, W, c).T).abs(), torch.eye(5).double(), rtol=0, atol=1e-6)
    assert s.mean(5) == pytest.approx(whole.mean(5), rel=1e-9)
    more = s.extended(A, W, c, 5)
    assert torch.equal(more.basis[:5], kept)
    assert torch.allclose(more.values, whole.values[:10], rtol=1e-9)
    # So few are left that the rest comes at once, by LAPACK.
    rest = more.extended(A, W, c, 60)
    assert not rest.partial
    assert torch.allclose((rest.basis.T * rest.values) @ rest.basis, A.T @ A, rtol=0, atol=1e-9 * float(A.norm() ** 2))


def test_lanczos_that_does_not_converge_is_done_by_lapack(monkeypatch):
    monkeypatch.setattr(curvature, "LARGE", 10)
    monkeypatch.setattr(linalg, "eigsh", lambda *a, **k: (_ for _ in ()).throw(linalg.ArpackNoConvergence("", 0, 0)))
    A = draw(150, 100)
    assert not decompose(A, *none(100), few=2).partial


def test_excess_tells_whether_what_is_held_helps():
    A, W, c = draw(12, 7), draw(3, 7, seed=1), draw(3, seed=2)
    M = A.T @ A
    want = float((M - (W.T * c) @ W).square().sum() - M.square().sum())
    assert excess(A, W, c) == pytest.approx(want, rel=1e-10)
    assert excess(A, *none(7)) == 0.0


def sketched(d, agents=3, each=2, seed=0):
    pairs = {i: (draw(each, d, seed=seed + i), draw(each, seed=seed + 50 + i).abs() + 1) for i in range(agents)}
    return Sketch.none(draw(d)).after(pairs), pairs


def dense(s, c, rho):
    return (s.V.T * c) @ s.V + rho * torch.eye(s.V.shape[1]).double()


@pytest.mark.parametrize("each", [1, 3, 20])
@pytest.mark.parametrize("signed", [False, True])
def test_solves_are_dense_solves(each, signed):
    s, _ = sketched(12, each=each)
    c = s.weights({0: 0.2, 1: 0.5, 2: 0.3}, {0: 0.1, 1: 0.2, 2: 0.3})
    if signed:
        c = c * torch.where(torch.arange(len(c)) % 3 == 0, -1e-3, 1.0)
    H, g = dense(s, c, 0.21), draw(12, seed=9)
    assert (s.gram is None) == (3 * each > 12)
    assert torch.allclose(s.solve(c, 0.21, g), torch.linalg.solve(H, g), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("each", [1, 20])
def test_indefinite_and_singular_matrices_still_give_a_way_down(each):
    s, _ = sketched(12, each=each)
    c, g = -s.lam, draw(12, seed=9)
    for rho in (0.0, 1e-3):
        p = s.solve(c, rho, g)
        assert torch.isfinite(p).all()
        assert float(p @ g) >= 0
    p = s.solve(s.lam, 0.0, g)
    assert float(p @ g) > 0


def test_pairs_come_go_and_turn_into_a_base():
    d = 12
    s, pairs = sketched(d)
    p, rho = {0: 0.2, 1: 0.5, 2: 0.3}, {0: 0.1, 1: 0.2, 2: 0.3}
    new = {0: (draw(1, d, seed=7), torch.tensor([2.0]).double()), 1: (draw(2, d, seed=8), draw(2, seed=8))}
    t = s.after(new, renewed={0}, based={1})
    assert [t.count(i) for i in range(4)] == [1, 4, 2, 0]
    want = sum(p.values()) * 0 + p[0] * 0.1 + p[1] * 0.2 + p[2] * 0.3
    H = want * torch.eye(d).double()
    H += p[0] * (2.0 - 0.1) * new[0][0].T @ new[0][0]
    H += p[1] * ((pairs[1][0].T * pairs[1][1]) @ pairs[1][0] + (new[1][0].T * (new[1][1] - 0.2)) @ new[1][0])
    H += p[2] * (pairs[2][0].T * (pairs[2][1] - 0.3)) @ pairs[2][0]
    assert torch.allclose(dense(t, t.weights(p, rho), want), H, rtol=0, atol=1e-12)
    assert torch.allclose(t.gram, t.V @ t.V.T, rtol=0, atol=1e-13)
    assert s.count(0) == 2  # as it was
    full = t.after({2: (draw(9, d, seed=3), draw(9, seed=3))})
    assert full.gram is None
    small = full.after({}, renewed={2, 1})
    assert torch.allclose(small.gram, small.V @ small.V.T, rtol=0, atol=1e-13)


def test_rows_of_zeros_have_no_eigenpairs():
    A = torch.zeros(2, 5, dtype=torch.float64)
    spectrum = decompose(A, A[:0], A[:0, 0])
    assert len(spectrum.values) == spectrum.next(0) == spectrum.mean(0) == 0
