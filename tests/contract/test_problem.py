"""Every family of problems keeps to the protocol, and its bounds and squares hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley.contract.needs import Need
from medley.contract.problem import Family, Objective, Problem
from support.pairs import quick

N, D = 12, 4
FAMILIES: dict[str, Any] = {
    "softmax": md.problems.Softmax(mu=0.1),
    "logistic": md.problems.Logistic(mu=0.1),
    "least squares": md.problems.LeastSquares(mu=0.1),
    "network": md.problems.Network(nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 3))),
}


def made(name: str) -> tuple[Problem, Objective, torch.Tensor]:
    """The problem, one client's objective, and a point [d]."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    classes = {"least squares": None, "logistic": 2}.get(name, 3)
    y = X[:, 0] + 1 if classes is None else torch.arange(N) % classes
    family = FAMILIES[name]
    problem = family.ready(X, y, classes, torch.float64, "cpu")
    f = problem.bind(problem.inputs(X), family.targets(family.canonical(y, classes), classes))
    return problem, f, torch.randn(problem.d, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_problems_and_objectives_have_all_of_the_protocol(name: str) -> None:
    problem, f, x = made(name)
    assert isinstance(FAMILIES[name], Family)
    assert isinstance(problem, Problem)
    assert isinstance(f, Objective)
    assert (f.n, f.d) == (N, len(x))
    assert problem.initial(torch.Generator().manual_seed(0)).shape == x.shape


@pytest.mark.parametrize("name", FAMILIES)
def test_the_bounds_hold_the_hessians_eigenvalues(name: str) -> None:
    problem, f, x = made(name)
    if Need.CONVEX not in problem.gives:  # none is known
        assert (f.convexity(), f.smoothness()) == (0.0, float("inf"))
        return
    largest = []
    for scale in (0.0, 1.0, 10.0):
        eigenvalues = torch.linalg.eigvalsh(f.hessian(scale * x))
        assert 0.1 == f.convexity() <= float(eigenvalues[0]) + 1e-12
        largest.append(float(eigenvalues[-1]))
    assert max(largest) <= f.smoothness() * (1 + 1e-12) < 3 * max(largest)


@pytest.mark.parametrize("name", quick(2, FAMILIES))
@pytest.mark.shapes
def test_squares_are_those_of_the_rows_gradients(name: str) -> None:
    _, f, x = made(name)
    ridge = f.grad(x) - torch.stack([f.grad(x, torch.tensor([j])) for j in range(N)]).mean(0)
    assert float(ridge.norm()) < 1e-12  # the same ridge in each
    rows = [f.grad(x, torch.tensor([j]), lambda batch: batch.loss()) for j in range(N)]
    without = [g - (f.grad(x, torch.tensor([j]), lambda batch: 0 * batch.loss())) for j, g in enumerate(rows)]
    assert torch.allclose(f.squares(x), torch.stack(without).square().mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_another_order_and_other_rows_are_the_same_function(name: str) -> None:
    _, f, x = made(name)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    assert f.take(order).loss(x) == pytest.approx(f.loss(x), rel=1e-13)
    assert torch.allclose(f.take(order).grad(x, slice(0, 5)), f.grad(x, order[:5]), rtol=0, atol=1e-13)
    etas = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    p = f.grad(x)
    assert f.losses_along(x, p, etas).tolist() == pytest.approx([f.loss(x - float(e) * p) for e in etas], rel=1e-12)
