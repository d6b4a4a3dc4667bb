from __future__ import annotations

import pytest
import torch

import medley as md
from medley.problems.synthetic import Synthetic, synthetic_logistic, synthetic_quadratics
from support.pairs import quick


def bound(s: Synthetic) -> list[object]:
    out = []
    for X, y in s.clients:
        p = s.problem.ready(X, y, None, None, "cpu")
        out.append(p.bind(p.inputs(X), s.problem.targets(y, None)))
    return out


@pytest.mark.parametrize(
    "s",
    [
        synthetic_quadratics(seed=0),
        synthetic_quadratics(3, 5, seed=4),
        synthetic_logistic(seed=0),
        synthetic_logistic(4, 6, mu=0.01),
    ],
)
def test_the_optimum_is_one(s: Synthetic):
    fs = bound(s)
    g = sum(p * f.grad(s.x_star) for p, f in zip(s.p, fs, strict=True))
    assert float(g.norm()) < 1e-12
    assert sum(float(p) * f.loss(s.x_star) for p, f in zip(s.p, fs, strict=True)) == pytest.approx(s.f_star, abs=1e-12)
    assert float(s.p.sum()) == pytest.approx(1.0, abs=1e-15)
    # The clients disagree: none is at its own optimum there.
    assert min(float(f.grad(s.x_star).norm()) for f in fs) > 1e-3


def test_eigenvalues_of_quadratics_are_in_their_range():
    s = synthetic_quadratics(6, 8, low=0.3, high=7.0, seed=2)
    for f in bound(s):
        lam = torch.linalg.eigvalsh(f.hessian(s.x_star))
        assert lam.min() > 0.3 * (1 - 1e-12)
        assert lam.max() < 7.0 * (1 + 1e-12)
        assert f.n >= 8


@pytest.mark.parametrize("rows", [(5, 3), (3, 5)])
def test_rows_of_quadratics_that_no_client_can_have_are_refused(rows: tuple[int, int]):
    with pytest.raises(md.RecipeError, match="the second number must be at least the first, and at least d"):
        synthetic_quadratics(6, 8, rows=rows)


@pytest.mark.shapes
def test_each_client_of_a_quadratic_has_a_minimiser_with_loss_0():
    for X, y in synthetic_quadratics(3, 4, seed=1).clients:
        assert torch.linalg.lstsq(X, y[:, None]).solution.shape == (4, 1)
        c = torch.linalg.lstsq(X, y[:, None]).solution[:, 0]
        assert float((X @ c - y).norm()) < 1e-12


def test_sizes_seeds_and_spread():
    s = synthetic_quadratics(5, 4, rows=(4, 9), seed=3)
    assert all(4 <= len(y) <= 9 for _, y in s.clients)
    pairs = zip(s.clients, synthetic_quadratics(5, 4, rows=(4, 9), seed=3).clients, strict=True)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)
    assert not torch.equal(s.x_star, synthetic_quadratics(5, 4, rows=(4, 9), seed=5).x_star)
    near, far = (synthetic_quadratics(5, 4, spread=r, seed=3) for r in (0.1, 10.0))
    assert far.f_star == pytest.approx(1e4 * near.f_star, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("s", quick(1, [synthetic_quadratics(3, 3, seed=0), synthetic_logistic(3, 3, mu=0.5, seed=0)]))
def test_gradient_descent_in_a_federation_goes_to_the_optimum(s: Synthetic):
    fed = md.Federation(
        s.problem, clients=s.clients, f_star=s.f_star, pace=md.scenarios.Pace(lr=0.2, batch=None, epochs=1)
    )
    r = md.run(md.FedAvg(), fed, 150, eval_every=150)
    assert float((r.x - s.x_star).norm()) < 1e-5
    assert abs(r["gap"][-1]) < 1e-9
