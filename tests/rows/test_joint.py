"""Rows of two objectives in one pass: the gradient is that of two passes, and the network is called once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley.contract.problem import Objective

SHARES = (None, 0.3)


def two(family: Any, weights: bool = False) -> tuple[Objective, Objective, torch.Tensor]:
    """The objectives of 12 rows and of 9 others, and a point."""
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(21, 4, generator=g).double(), torch.arange(21) % 3
    problem = family.ready(X, y, 3, torch.float64, "cpu")
    w = torch.rand(21, generator=g).double() if weights else None
    f, h = (problem.bind(X[s], y[s], None if w is None else w[s]) for s in (slice(0, 12), slice(12, 21)))
    return f, h, torch.randn(problem.d, generator=g).double()


def net(*extra: nn.Module, **how: Any) -> Any:
    return md.problems.Network(nn.Sequential(nn.Linear(4, 5), *extra, nn.Tanh(), nn.Linear(5, 3)), **how)


FAMILIES = {"softmax": md.problems.Softmax(mu=0.1), "network": net(), "normalised": net(nn.BatchNorm1d(5))}


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_gradient_is_that_of_two_passes(name: str, share: float | None, weights: bool) -> None:
    f, h, x = two(FAMILIES[name], weights)
    now, old = torch.tensor([3, 0, 7, 11]), torch.tensor([8, 2])
    for a, b, s in ((now, old, 4 / 6), (None, old, 12 / 14), (slice(2, 5), None, 3 / 12)):
        s = s if share is None else share
        want = s * f.grad(x, a) + (1 - s) * h.grad(x, b)
        got = f.beside(h, iter([b]), share).grad(x, a)
        assert float((got - want).norm()) < 1e-14 * max(1.0, float(want.norm())) + 2e-15
        loss = lambda batch: 2 * batch.loss()
        want = s * f.grad(x, a, loss) + (1 - s) * h.grad(x, b)
        assert float((f.beside(h, iter([b]), share).grad(x, a, loss) - want).norm()) < 1e-13


@pytest.mark.parametrize(("name", "passes"), [("network", 1), ("normalised", 2)])
def test_one_pass_takes_both_and_under_batchnorm_two_do(name: str, passes: int) -> None:
    f, h, x = two(FAMILIES[name])
    calls: list[int] = []
    f.problem.module.register_forward_hook(lambda module, args, out: calls.append(len(out)))  # type: ignore[attr-defined]
    before = f.work
    f.beside(h, iter([None]), 0.5).grad(x, slice(0, 4))
    assert calls == ([13] if passes == 1 else [4, 9])
    assert f.work - before == 13


def test_a_loss_that_knows_means_only_gets_two_passes() -> None:
    mean = net(loss=lambda z, y: nn.functional.cross_entropy(z, y))
    (f, h, x), (g, k, _) = two(mean), two(net())
    for share in SHARES:
        ours, theirs = (a.beside(b, iter([None]), share).grad(x, slice(0, 4)) for a, b in ((f, h), (g, k)))
        assert float((ours - theirs).norm()) < 1e-14


@pytest.mark.shapes
def test_draws_go_on_through_another_order_of_the_rows() -> None:
    f, h, x = two(FAMILIES["network"])
    draws = itertools.cycle([torch.tensor([0]), torch.tensor([4, 5])])
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    both = f.beside(h, draws, 0.5)
    first, second = both.grad(x, order[:3]), both.take(order).grad(x, slice(3, 6))
    assert float((first - 0.5 * (f.grad(x, order[:3]) + h.grad(x, torch.tensor([0])))).norm()) < 1e-14
    assert float((second - 0.5 * (f.grad(x, order[3:6]) + h.grad(x, torch.tensor([4, 5])))).norm()) < 1e-14


@pytest.mark.shapes
def test_slopes_are_the_gradient_of_the_last_layer() -> None:
    """By the mean of R_j φ_jᵀ, with masks and weights of rows; BatchNorm is as in evaluation."""
    for weights, (name, family) in itertools.product((False, True), FAMILIES.items()):
        f, _, x = two(family, weights)
        R, phi = f.slopes(x)
        weight, bias = f.last()
        if name == "normalised":
            assert phi.shape == (12, 5)
            continue
        g = f.grad(x, None, lambda batch: batch.loss()) - (0.1 * x if name == "softmax" else 0)
        assert float((g[weight:][: 3 * phi.shape[1]] - (R.T @ phi).reshape(-1) / 12).norm()) < 1e-14
        if bias is not None:
            assert float((g[bias:][:3] - R.mean(0)).norm()) < 1e-14
