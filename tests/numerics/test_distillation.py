from __future__ import annotations

import math

import torch

from medley.numerics.distillation import distillation


def test_cf14_no_gradient_at_equality_and_a_constant_a_row_does_not_count() -> None:
    g = torch.Generator().manual_seed(0)
    told = torch.randn(5, 4, generator=g, dtype=torch.float64)
    for shift in (0.0, 3.0):
        said = (told + shift * torch.arange(5.0)[:, None]).requires_grad_()
        distillation(said, told, 2.0).backward()
        assert said.grad is not None
        assert said.grad.abs().max() < 1e-16


def test_two_classes_by_hand() -> None:
    """Teacher odds e², at T = 2 e; student even: −log ½ whatever the teacher. Gradient (½ − p_1)/T in the first."""
    told, said = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2, requires_grad=True)
    loss = distillation(said, told, 2.0)
    loss.backward()
    assert math.isclose(loss.item(), math.log(2), rel_tol=1e-6)
    assert said.grad is not None
    assert math.isclose(float(said.grad[0, 0]), (0.5 - math.e / (math.e + 1)) / 2, rel_tol=1e-5)
