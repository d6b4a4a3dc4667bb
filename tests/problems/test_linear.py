from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import medley as md
from medley.contract.errors import BadData, RecipeError
from medley.problems import LeastSquares, Logistic, Softmax
from medley.problems.linear import Linear, LinearObjective

F64 = torch.float64
n, features, C = 9, 4, 3


def draw(seed: int = 0) -> tuple[Tensor, torch.Generator]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=g, dtype=F64), g


def objective(family: Linear, seed: int = 0, targets: int = 1) -> LinearObjective:
    X, g = draw(seed)
    classes = C if isinstance(family, Softmax) else 2
    labels = torch.randint(classes, (n,), generator=g)
    shape = (n, targets) if targets > 1 else (n,)
    y = torch.randn(*shape, generator=g, dtype=F64) if isinstance(family, LeastSquares) else labels
    problem = family.ready(X, y, classes, None, "cpu")
    return problem.bind(problem.inputs(X), family.targets(y, classes))


def point(f: LinearObjective, seed: int = 1) -> Tensor:
    return torch.randn(f.d, generator=torch.Generator().manual_seed(seed), dtype=F64)


def by_autograd(f: LinearObjective, x: Tensor, rows: Any = None) -> Tensor:
    """f_i(x), written again with torch's own losses."""
    family = f.problem.family
    X, y = (f.X, f.y) if rows is None else (f.X[rows], f.y[rows])
    if isinstance(family, Softmax):
        W = x.reshape(C, -1)
        loss, weights = F.cross_entropy(X @ W.T, y), W
    elif y.ndim == 2:
        weights = x.reshape(y.shape[1], -1)
        loss = (X @ weights.T - y).square().sum(1).mean() / 2
    else:
        z, W = X @ x, x.reshape(1, -1)
        logistic = isinstance(family, Logistic)
        loss = F.binary_cross_entropy_with_logits(z, (y + 1) / 2) if logistic else F.mse_loss(z, y) / 2
        weights = W
    ridge = weights[:, :-1] if family.intercept else weights
    return loss + family.mu / 2 * ridge.square().sum()


cases = pytest.mark.parametrize(
    "f",
    [
        objective(kind(mu=mu, intercept=intercept))
        for kind in (Logistic, LeastSquares, Softmax)
        for mu in (0.0, 0.3)
        for intercept in (False, True)
    ]
    + [objective(LeastSquares(0.3, intercept), targets=2) for intercept in (False, True)],
    ids=lambda f: f"{type(f.problem.family).__name__}-{f.problem.family.mu}-{f.problem.family.intercept}-{f.y.ndim}",
)
some = pytest.mark.parametrize("rows", [None, slice(2, 7), torch.tensor([8, 0, 0, 3])], ids=["all", "slice", "index"])


@cases
@some
def test_loss_gradient_and_hessian_are_autograds(f: LinearObjective, rows: Any):
    x = point(f)
    H = torch.autograd.functional.hessian(lambda v: by_autograd(f, v, rows), x)
    g = torch.autograd.functional.jacobian(lambda v: by_autograd(f, v, rows), x)
    assert f.loss(x, rows) == pytest.approx(float(by_autograd(f, x, rows)), rel=1e-13)
    assert torch.allclose(f.grad(x, rows), g, rtol=1e-12, atol=1e-14)
    assert torch.allclose(f.hessian(x, rows), H, rtol=1e-11, atol=1e-13)
    v = point(f, 2)
    assert torch.allclose(f.hvp(x, v, rows), H @ v, rtol=1e-11, atol=1e-13)


@cases
def test_losses_along_a_line_are_those_one_by_one(f: LinearObjective):
    x, p = point(f), point(f, 2)
    etas = torch.tensor([0.0, 1.0, 0.5, 2.0**-11], dtype=F64)
    one_by_one = torch.tensor([f.loss(x - eta * p) for eta in etas], dtype=F64)
    assert torch.allclose(f.losses_along(x, p, etas), one_by_one, rtol=1e-14, atol=0)


@cases
def test_the_factor_is_the_hessians(f: LinearObjective):
    x = point(f)
    A, delta = f.factor(x)
    assert delta == (0.0 if f.problem.family.intercept else f.problem.family.mu)
    assert torch.allclose(A.T @ A + delta * torch.eye(f.d).double(), f.hessian(x), rtol=1e-12, atol=1e-14)


@cases
def test_a_row_of_weight_two_is_two_rows(f: LinearObjective):
    w = torch.tensor([2, 0, 1, 3, 0, 1, 1, *[1] * (n - 7)], dtype=F64)
    assert int(w.sum()) == n + 1
    again = torch.arange(n).repeat_interleave(w.long())
    many, few = f.take(again), f.problem.bind(f.X, f.y, w * n / (n + 1))
    x, v = point(f), point(f, 2)
    same = {"rtol": 1e-12, "atol": 1e-14}
    assert few.loss(x) == pytest.approx(many.loss(x), rel=1e-13)
    assert few.smoothness() == pytest.approx(many.smoothness(), rel=1e-12)
    etas = torch.tensor([0.0, 0.5, 1.0], dtype=F64)
    torch.testing.assert_close(few.losses_along(x, v, etas), many.losses_along(x, v, etas), **same)
    A, delta = few.factor(x)
    torch.testing.assert_close(A.T @ A + delta * torch.eye(f.d, dtype=F64), many.hessian(x), **same)
    for own in (few, few.take(torch.arange(n).flip(0))):
        torch.testing.assert_close(own.grad(x), many.grad(x), **same)
        torch.testing.assert_close(own.grad(x, loss=lambda b: b.loss()), many.grad(x), **same)
        torch.testing.assert_close(own.hvp(x, v), many.hvp(x, v), **same)
        torch.testing.assert_close(own.hessian(x), many.hessian(x), **same)
        torch.testing.assert_close(own.squares(x), many.squares(x), **same)


@cases
def test_the_gradient_is_the_limit_of_differences(f: LinearObjective):
    x, v = point(f), point(f, 3)
    errors = [abs((f.loss(x + h * v) - f.loss(x - h * v)) / (2 * h) - float(f.grad(x) @ v)) for h in (1e-2, 1e-3)]
    # Central differences are of second order: a tenth of the step, a hundredth of the error.
    assert errors[1] < errors[0] / 50 + 1e-10


@cases
def test_a_loss_of_ones_own_replaces_the_loss_and_not_the_ridge(f: LinearObjective):
    x = point(f)
    own = f.grad(x, None, lambda b: b.loss())
    assert torch.allclose(own, f.grad(x), rtol=1e-12, atol=1e-14)
    twice = f.grad(x, None, lambda b: 2 * b.loss(b.outputs))
    p = f.problem
    assert torch.allclose(twice, 2 * f.grad(x) - p.decay * x, rtol=1e-12, atol=1e-14)
    norm = f.grad(x, None, lambda b: (b.x**2).sum() / 2)
    assert torch.allclose(norm, x + p.decay * x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [Logistic, LeastSquares, Softmax])
def test_the_ridge_leaves_the_intercept_alone(kind: type[Linear]):
    f = objective(kind(mu=2.0, intercept=True))
    free = objective(kind(mu=0.0, intercept=True))
    x = point(f)
    W = x.reshape(-1, features + 1)
    difference = (f.grad(x) - free.grad(x)).reshape(W.shape)
    assert torch.allclose(difference[:, :-1], 2.0 * W[:, :-1], rtol=1e-12, atol=1e-13)
    assert torch.equal(difference[:, -1], torch.zeros(len(W), dtype=F64))
    assert f.problem.penalty(x) == pytest.approx(float(W[:, :-1].square().sum()), rel=1e-14)
    assert (f.hessian(x) - free.hessian(x)).trace() == pytest.approx(2.0 * features * len(W), rel=1e-12)


def test_an_intercept_is_a_column_of_ones():
    X, _ = draw()
    problem = Logistic(intercept=True).ready(X, X[:, 0], None, None, "cpu")
    assert torch.equal(problem.inputs(X), torch.cat([X, torch.ones(n, 1, dtype=F64)], 1))
    assert (problem.d, Logistic().ready(X, X[:, 0], None, None, "cpu").d) == (5, 4)


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.floats(0.01, 30))
def test_labels_of_both_kinds_are_the_same_logistic_problem(seed: int, size: float):
    X, g = draw(seed)
    y01 = torch.randint(2, (n,), generator=g)
    y01[:2] = torch.tensor([0, 1])
    family = Logistic(mu=0.1)
    x = size * torch.randn(features, generator=g, dtype=F64)
    problem = family.ready(X, y01, None, None, "cpu")
    f, h = (problem.bind(X, family.targets(y, None)) for y in (y01, 2 * y01 - 1))
    assert abs(f.loss(x) - h.loss(x)) <= 1e-14 * max(1.0, f.loss(x))
    assert torch.equal(f.grad(x), h.grad(x))
    # Against the {0, 1} formula, log(1 + e^z) − y z.
    z = X @ x
    want = float((F.softplus(z, threshold=700) - y01 * z).mean() + 0.05 * x @ x)
    assert f.loss(x) == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("z", [1e4, -1e4, 700.0, -745.0])
def test_logistic_loss_and_derivatives_stay_finite_far_out(z: float):
    family = Logistic()
    X, y = torch.ones(1, 1, dtype=F64), torch.tensor([1.0], dtype=F64)
    f = family.ready(X, y, None, None, "cpu").bind(X, y)
    x = torch.tensor([z], dtype=F64)
    assert f.loss(x) == pytest.approx(max(0.0, -z), abs=1e-300)
    assert f.grad(x).item() == pytest.approx(0.0 if z > 0 else -1.0, abs=1e-300)
    assert f.hessian(x).item() == pytest.approx(0.0, abs=1e-300)
    assert math.isfinite(f.hvp(x, x).item())


def test_softmax_stays_finite_far_out():
    X, y = torch.ones(2, 1, dtype=F64), torch.tensor([0, 2])
    f = Softmax().ready(X, y, 3, None, "cpu").bind(X, y)
    x = torch.tensor([1e4, 0.0, -1e4], dtype=F64)
    assert f.loss(x) == 1e4
    assert f.grad(x).tolist() == [0.5, 0.0, -0.5]
    assert torch.isfinite(f.hessian(x)).all()


def test_a_softmax_of_two_classes_is_a_logistic_regression():
    X, g = draw()
    y = torch.randint(2, (n,), generator=g)
    soft = Softmax().ready(X, y, 2, None, "cpu").bind(X, y)
    logi = Logistic().ready(X, y, 2, None, "cpu").bind(X, Logistic().targets(y, 2))
    w = torch.randn(features, generator=g, dtype=F64)
    both = torch.cat([-w / 2, w / 2])
    assert soft.loss(both) == pytest.approx(logi.loss(w), rel=1e-13)
    assert torch.allclose(soft.grad(both).reshape(2, -1)[1], logi.grad(w), rtol=1e-12)


@pytest.mark.shapes
def test_row_losses_hits_and_counts():
    f = objective(Softmax())
    x = point(f)
    z = f.outputs(x)
    assert float(f.problem.losses(z, f.y).mean()) == pytest.approx(f.loss(x), rel=1e-14)
    hits = f.problem.hits(z, f.y)
    assert hits is not None
    assert hits.tolist() == [float(row.argmax() == label) for row, label in zip(z, f.y, strict=True)]
    assert f.counts().tolist() == [int((f.y == c).sum()) for c in range(C)]
    g = objective(Logistic())
    x = point(g)
    hits = g.problem.hits(g.outputs(x), g.y)
    assert hits is not None
    assert hits.tolist() == [float((z > 0) == (y > 0)) for z, y in zip(g.X @ x, g.y, strict=True)]
    assert g.counts().tolist() == [int((g.y < 0).sum()), int((g.y > 0).sum())]
    r = objective(LeastSquares())
    assert r.problem.hits(r.outputs(point(r)), r.y) is None


def test_work_is_counted_in_row_gradients_and_shared_by_views():
    f = objective(Logistic())
    x = point(f)
    f.grad(x)
    f.loss(x)
    f.hvp(x, x)
    f.hessian(x)
    assert f.work == pytest.approx(n + n / 3 + 2 * n + f.d * n)
    f.work = 0
    f.take(torch.arange(n)).grad(x, slice(0, 4))
    assert f.work == 4


def test_rows_in_another_order_are_the_same_objective():
    f = objective(Softmax(mu=0.1))
    x, order = point(f), torch.randperm(n, generator=torch.Generator().manual_seed(0))
    g = f.take(order)
    assert g.loss(x) == pytest.approx(f.loss(x), rel=1e-14)
    assert torch.allclose(g.grad(x, slice(2, 5)), f.grad(x, order[2:5]), rtol=1e-14)
    seen: list[Tensor] = []
    g.grad(x, slice(2, 5), lambda b: seen.append(b.rows) or b.loss())
    assert torch.equal(seen[0], order[2:5])


def test_gradients_are_fresh_and_x_is_never_touched():
    f = objective(LeastSquares(mu=0.5))
    x = point(f)
    before = x.clone()
    a = f.grad(x)
    kept = a.clone()
    f.grad(2 * x)
    w = f.workspace(x)
    w.add_(1)
    f.hvp(x, a)
    f.hessian(x)
    assert torch.equal(a, kept)
    assert torch.equal(x, before)
    assert f.hessian(x).data_ptr() != f.hessian(x).data_ptr()


@pytest.mark.parametrize("mu", [-1e-3, math.nan, math.inf])
def test_a_ridge_that_makes_no_sense(mu: float):
    with pytest.raises(RecipeError, match=r"Softmax\(mu=.*must be a finite number, at least 0"):
        Softmax(mu=mu)


def test_a_ridge_is_a_number_that_torch_multiplies():
    assert isinstance(Softmax(mu=Fraction(1, 2)).mu, float)


def test_bad_labels_name_their_row():
    with pytest.raises(BadData, match=r"row 2: .* labels 0 and 1, or -1 and 1, but this label is 3") as caught:
        Logistic().targets(torch.tensor([0, 1, 3, 5]), None)
    assert caught.value.row == 2
    with pytest.raises(BadData, match=r"row 1: .* this one is -1") as caught:
        Softmax().targets(torch.tensor([0, -1]), 2)
    assert caught.value.row == 1
    with pytest.raises(BadData, match=r"labels 0\.\.1, but this one is 2\. Give classes="):
        Softmax().targets(torch.tensor([0, 1, 2]), 2)
    with pytest.raises(BadData, match=r"row 0: .* this one is 0\.5"):
        Softmax().targets(torch.tensor([0.5, 1.0]), 2)
    with pytest.raises(RecipeError, match="how many classes"):
        Softmax().ready(torch.zeros(2, 2), torch.zeros(2), None, None, "cpu")


def test_several_targets_are_one_model_on_every_engine():
    """Newton's step is the ridge regression of each target, and FedAvg's rounds are those of three models apart."""
    X, g = draw()
    Y = torch.randn(n, 3, generator=g, dtype=F64)
    clients = [(X[k::6], Y[k::6]) for k in range(6)]
    fed = md.Federation(LeastSquares(0.1), clients=clients)
    ridge = torch.linalg.solve(X.T @ X / n + 0.1 * torch.eye(features), X.T @ Y / n).T.reshape(-1)
    assert torch.allclose(md.run(md.Newton(), fed, rounds=2, progress=False).x, ridge, rtol=1e-11)
    apart = [md.Federation(LeastSquares(0.1), clients=[(a, b[:, k]) for a, b in clients]) for k in range(3)]
    ones = torch.cat([md.run(md.FedAvg(), f, rounds=3, progress=False).x for f in apart])
    for engine in ("seq", "stacked", "fused"):
        run = md.run(md.FedAvg(), fed, rounds=3, engine=engine, progress=False)
        assert torch.allclose(run.x, ones, rtol=1e-12)
    assert run.predict(X.numpy()).shape == (n, 3)
    with pytest.raises(BadData, match=r"needs y as \[rows\], but this y is \[9, 3\]; it is one-hot"):
        LeastSquares().ready(X, F.one_hot(torch.arange(n) % 3, 3), None, None, "cpu")


def test_targets_in_a_column_are_refused_since_they_would_broadcast():
    X = torch.ones(4, 2)
    for family in (LeastSquares(), Logistic()):
        with pytest.raises(BadData, match=r"needs y as \[rows\], but this y is \[4, 1\]"):
            family.ready(X, torch.ones(4, 1), None, None, "cpu")
    with pytest.raises(
        BadData, match=r"Softmax needs y as \[rows\], .*; it is one-hot, so give the labels, y\.argmax\(1\)"
    ):
        Softmax().ready(X, torch.eye(4), None, None, "cpu")
    with pytest.raises(BadData, match=r"needs X as \[rows, features\], but this X is \[4, 2, 2\]; flatten it first"):
        LeastSquares().ready(torch.ones(4, 2, 2), torch.ones(4), None, None, "cpu")
