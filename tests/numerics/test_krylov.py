from __future__ import annotations

import pytest
import torch

from medley.numerics.krylov import conjugate_gradients, hutchinson, richardson


def system(d: int = 6, least: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """H [d, d] with eigenvalues between ``least`` and 4, and g [d]."""
    r = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(d, d, generator=r, dtype=torch.float64))
    return (Q * torch.linspace(least, 4, d, dtype=torch.float64)) @ Q.T, torch.randn(d, generator=r).double()


def test_conjugate_gradients_solve_in_as_many_steps_as_there_are_dimensions() -> None:
    H, g = system()
    steps = []
    p = conjugate_gradients(lambda v: (steps.append(1), H @ v)[1], g, 100, tol=1e-12)
    assert float((H @ p - g).norm()) <= 1e-12 * float(g.norm())
    assert len(steps) == 6
    assert float((H @ conjugate_gradients(lambda v: H @ v, g, 3) - g).norm()) > 1e-6


def test_conjugate_gradients_end_in_a_direction_of_descent_where_h_is_singular() -> None:
    H = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
    inside, outside = torch.tensor([1.0, 1.0, 0.0]).double(), torch.tensor([1.0, 1.0, 1.0]).double()
    assert torch.allclose(conjugate_gradients(lambda v: H @ v, inside, 9), torch.tensor([1.0, 0.5, 0.0]).double())
    p = conjugate_gradients(lambda v: H @ v, outside, 9)
    assert bool(p.isfinite().all())
    assert float(p @ outside) > 0
    zero = conjugate_gradients(lambda v: torch.zeros_like(v), outside, 9)
    assert torch.equal(zero, torch.zeros(3).double())


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_richardson_is_its_closed_form(steps: int) -> None:
    """p_k − H⁻¹g = (I − αH)ᵏ (g − H⁻¹g)."""
    H, g = system()
    alpha, exact = 0.3, torch.linalg.solve(H, g)
    power = torch.linalg.matrix_power(torch.eye(6).double() - alpha * H, steps)
    p = richardson(lambda v: H @ v, g, steps, alpha)
    assert torch.allclose(p, exact + power @ (g - exact), rtol=0, atol=1e-12)


@pytest.mark.shapes
def test_hutchinson_is_exact_for_a_diagonal_and_unbiased_else() -> None:
    diagonal = torch.tensor([1.0, -2.0, 3.0]).double()
    assert torch.equal(hutchinson(lambda v: diagonal * v, diagonal, 1, 0), diagonal)
    H, g = system()
    estimate = hutchinson(lambda v: H @ v, g, 4000, 0)
    # The variance of a coordinate is the sum of the squares beside the diagonal, over the number of probes.
    deviation = ((H.square().sum(1) - H.diagonal().square()) / 4000).sqrt()
    assert bool(((estimate - H.diagonal()).abs() < 4 * deviation).all())
