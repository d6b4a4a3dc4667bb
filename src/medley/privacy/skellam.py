"""Noise in shares: each client adds its part of a sum's noise before it masks its reply.

**Reference**: Agarwal, Kairouz & Liu, "The Skellam Mechanism for Differentially Private Federated Learning", NeurIPS
2021; Kairouz, Liu & Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation", ICML 2021, for noise in shares and rounded sums.

Replies are bounded to norm 1, multiplied by u whole levels, rounded, and summed in the ring. Sk(μ) is the difference of
two Poisson numbers with mean μ/2; its variance is μ. The sum of independent Sk(μ₁) and Sk(μ₂) is Sk(μ₁ + μ₂). So each
of n clients adds to every entry

    Sk((z·u)²/t)    (1)

if t of the n must stay for the sum to be opened. Whoever leaves, the sum has Sk(μ) with μ ≥ (z·u)². Any noise beyond
that is independent of it, and does no harm.

For whole numbers whose sum one client moves by at most Δ₂ in the Euclidean norm and by Δ₁ in the sum of magnitudes, and
whole α > 1, the mechanism has the Rényi divergence (Corollary 3.6 there)

    ε(α) ≤ α·Δ₂²/(2μ) + min(((2α − 1)·Δ₂² + 6·Δ₁)/(4μ²), 3·Δ₁/(2μ))    (2)

Here Δ₂ ≤ u + √d/2, because each of d entries is rounded by at most ½, and Δ₁ ≤ √d·Δ₂. With r = √d/(2u), and with 2α − 1
≤ 2α and 1 ≤ α in the second term, (2) is at most α/(2·z'²), the divergence of Gaussian noise z':

    1/z'² = (1 + r)²/z² + (1 + r)²/(z⁴u²) + 3·√d·(1 + r)/(z⁴u³)    (3)

Two data sets are neighbours if one client's reply is replaced by zeros. The server of a secure sum knows which clients
take part, so sampling a cohort does not make ε smaller.
"""

from __future__ import annotations

import math

from ..wire.clip import LEVELS


def divergence(alpha: int, variance: float, l2: float, l1: float) -> float:
    """Equation (2).

    Args:
        alpha: the order, a whole number above 1
        variance: μ of the noise in the sum
        l2: Δ₂
        l1: Δ₁
    """
    second = ((2 * alpha - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    return alpha * l2**2 / (2 * variance) + min(second, 3 * l1 / (2 * variance))


def gaussian(z: float, d: int, levels: float = LEVELS) -> float:
    """z' of equation (3); 0 for no noise.

    Args:
        z: the standard deviation of the sum's noise over the bound of a reply
        d: entries of a reply
        levels: u, whole levels of the bound; default `medley.wire.clip.LEVELS`
    """
    if z == 0:
        return 0.0
    wide = 1 + math.sqrt(d) / (2 * levels)
    inverse = (wide / z) ** 2 + wide**2 / (z**4 * levels**2) + 3 * math.sqrt(d) * wide / (z**4 * levels**3)
    return 1 / math.sqrt(inverse)
