"""Array vocabulary. Shapes are checked at run time in the tests only."""

from jaxtyping import Float, Int
from torch import Tensor

Vec = Float[Tensor, " d"]
"""A model, a gradient, a direction."""

Mat = Float[Tensor, "a d"]
"""One vector per active client."""

PerClient = Float[Tensor, " a"]
"""One number per active client."""

MatOrColumn = Float[Tensor, "a #d"]
"""A diagonal per client, or one scalar per client."""

Rows = Int[Tensor, " n"]
"""Indices of training rows."""
