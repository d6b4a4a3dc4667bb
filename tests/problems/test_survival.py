"""Cox's loss and the concordance index against numbers by hand and a slow oracle."""

from __future__ import annotations

import math

import pytest
import torch

from medley.metrics import concordance
from medley.problems import cox


@pytest.mark.shapes
def test_cox_by_hand() -> None:
    # Times 1, 2, 3 with events 1, 0, 1: (log(e^0 + e^1 + e^2) − 0 + log(e^2) − 2) / 3.
    s, y = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
    assert float(cox(s, y)) == pytest.approx(math.log(1 + math.e + math.e**2) / 3, abs=1e-6)


def test_cox_counts_ties_as_breslow() -> None:
    s, y = torch.tensor([[0.5], [-1.0]], dtype=torch.float64), torch.tensor([[4.0, 1.0], [4.0, 1.0]])
    both = math.log(math.exp(0.5) + math.exp(-1.0))
    assert float(cox(s, y)) == pytest.approx(((both - 0.5) + (both + 1.0)) / 2, abs=1e-12)


def test_cox_has_the_gradient_of_finite_differences_and_large_scores_stay_finite() -> None:
    g = torch.Generator().manual_seed(0)
    s = torch.randn(9, 1, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.stack([torch.randint(1, 6, (9,), generator=g), torch.randint(0, 2, (9,), generator=g)], 1).double()
    assert torch.autograd.gradcheck(lambda s: cox(s, y), (s,))
    assert math.isfinite(float(cox(1e4 * s.detach(), y)))


@pytest.mark.shapes
def test_concordance_is_that_of_all_pairs() -> None:
    g = torch.Generator().manual_seed(1)
    s = torch.randint(0, 5, (30, 1), generator=g).float()
    y = torch.stack([torch.randint(1, 9, (30,), generator=g), torch.randint(0, 2, (30,), generator=g)], 1).float()
    right = pairs = 0.0
    for i in range(30):
        for j in range(30):
            later = y[i, 0] < y[j, 0] or (y[i, 0] == y[j, 0] and y[j, 1] == 0)
            if i != j and y[i, 1] == 1 and later:
                pairs += 1
                right += 1.0 if s[i] > s[j] else 0.5 if s[i] == s[j] else 0.0
    assert concordance(s, y) == pytest.approx(right / pairs)
    assert concordance(s[:1], y[:1]) == 0.5
