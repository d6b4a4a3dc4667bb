"""Incremental aggregated gradients: a sum of components, each at the point of its last visit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..contract.types import Vec


class Table:
    """g′ = Σ_j w_j ∇_j, ∇_j at the point of its last visit; all start at x. It keeps one vector [d] per component.

    Args:
        components: gradients as functions of the point.
        weights: w_j.
        x: the first point [d].

    ``total`` is g′ [d].

    Blatt, Hero & Gauchman, "A Convergent Incremental Gradient Method with a Constant Step Size", SIAM J. Optim. 2007.
    """

    def __init__(self, components: Sequence[Callable[[Vec], Vec]], weights: Sequence[float], x: Vec) -> None:
        self.components = components
        self.weights = weights
        self.parts = [w * component(x) for component, w in zip(components, weights, strict=True)]
        self.total = sum(self.parts[1:], self.parts[0])

    def visit(self, j: int, x: Vec) -> None:
        """Move component j to x."""
        new = self.weights[j] * self.components[j](x)
        self.total = self.total + (new - self.parts[j])
        self.parts[j] = new
