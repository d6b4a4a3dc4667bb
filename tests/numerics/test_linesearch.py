"""Armijo's rule against hand computation, and where rounding would stop it."""

from __future__ import annotations

import numpy as np
import pytest

import medley as md
from medley.numerics.linesearch import backtrack


class Line:
    """f along a line, and the candidates of every exchange."""

    def __init__(self, f):
        self.f, self.asked = f, []

    def __call__(self, etas):
        self.asked.append(list(etas))
        return [self.f(eta) for eta in etas]


def test_sh4_an_exact_newton_step_on_a_quadratic_is_taken_whole():
    """SH-4: f(η) = ½(1 − η)² has slope 1; alpha = 0.49 takes η = 1."""
    line = Line(lambda eta: (1 - eta) ** 2 / 2)
    assert backtrack(line, 1.0, alpha=0.49) == (1.0, 0.0)
    assert line.asked == [[0.0, *(0.5**k for k in range(12))]]


@pytest.mark.parametrize(("steep", "eta"), [(1.0, 1.0), (4.0, 0.25), (3000.0, 2.0**-11), (5000.0, 2.0**-12)])
def test_the_largest_candidate_that_passes(steep, eta):
    """f(η) = ½·steep·η² − η passes Armijo with 0.1 exactly for η ≤ 1.8/steep; the 13th candidate is asked for later."""
    line = Line(lambda e: steep * e * e / 2 - e)
    assert backtrack(line, 1.0) == (eta, line.f(eta))
    assert len(line.asked) == (2 if eta < 2**-11 else 1)


@pytest.mark.parametrize("f", [1.0, 1e6, -1e6])
def test_rounding_near_the_optimum_does_not_stop_it(f):
    """pᵀg far below the rounding of f: its differences are noise, and η = 1 is right."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        line = Line(lambda eta: f * (1 + rng.integers(-2, 3) * np.finfo(float).eps))
        assert backtrack(line, 1e-20)[0] == 1.0


def test_overflow_is_a_step_too_long():
    assert backtrack(Line(lambda eta: np.inf if eta > 0.3 else -eta), 1.0)[0] == 0.25


def test_no_descent_is_told():
    with pytest.raises(md.Stalled, match="is not a descent direction"):
        backtrack(Line(lambda eta: 0.0), -1.0)
    line = Line(lambda eta: 1e6 * eta)
    with pytest.raises(md.Stalled, match="no step along p"):
        backtrack(line, 1.0)
    assert len(line.asked) == 5  # 2^-53 is the last candidate above 1e-16


@pytest.mark.parametrize(("alpha", "beta", "tries"), [(0.5, 0.5, 1), (0, 0.5, 1), (0.1, 1, 1), (0.1, 0.5, 0)])
def test_settings_that_make_no_sense(alpha, beta, tries):
    with pytest.raises(md.RecipeError, match=r"Newton\("):
        md.Newton(alpha, beta, tries)
