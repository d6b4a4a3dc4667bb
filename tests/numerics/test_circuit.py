"""ECADO's steady state against a dense solve of the circuit's equations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import medley as md
from medley.numerics.circuit.steady import steady_state
from medley.runtime.streams import generator


@given(a=st.integers(1, 6), d=st.integers(1, 9), chunk=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_steady_state_is_the_dense_solve(a, d, chunk, seed):
    """I_i' = I_i + G_i(u − D_i) and Σ I_i' + (S − Σ I_i) = 0, in the unknowns (u, I_1' … I_a')."""
    rng = generator(seed, "circuit")
    D, I = torch.randn(2, a, d, dtype=torch.float64, generator=rng)
    G = torch.rand(a, dtype=torch.float64, generator=rng) + 0.1
    S = torch.randn(d, dtype=torch.float64, generator=rng)
    M = torch.zeros(a + 1, a + 1, dtype=torch.float64)
    M[0, 1:], M[1:, 0] = 1, -G
    M[1:, 1:] = torch.eye(a, dtype=torch.float64)
    solved = torch.linalg.solve(M, torch.cat([(I.sum(0) - S)[None], I - G[:, None] * D]))
    before = S.clone()
    dx, rest, new = steady_state(S, [*D], G, [*I], chunk)
    torch.testing.assert_close(dx, solved[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(torch.stack(new), solved[1:], rtol=1e-11, atol=1e-11)
    assert not rest.any()
    assert torch.equal(S, before)


def test_wrong_inputs_are_named():
    S, one = torch.zeros(3), torch.ones(1)
    with pytest.raises(md.RecipeError, match="2 conductances, but 1 rows of D"):
        steady_state(S, [S], torch.ones(2), [S, S])
    with pytest.raises(md.RecipeError, match="a conductance above 0"):
        steady_state(S, [S], 0 * one, [S])
