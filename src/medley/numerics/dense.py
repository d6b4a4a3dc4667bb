"""Symmetric matrices: solutions, eigenvalues clipped from below, leading parts, and the half that is sent."""

from __future__ import annotations

import sys

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..contract.types import Vec

Matrix = Float[Tensor, "d d"]

Triangle = Float[Tensor, " t"]
"""The upper triangle of a symmetric matrix, row after row: d(d+1)/2 numbers."""


def solve(H: Matrix, g: Vec) -> Vec:
    """H⁻¹g for H ⪰ 0; if H is singular, a solution of least norm in the scaled variables.

    H is first scaled to a unit diagonal, so that a data column in other units costs no digits. Directions whose scaled
    eigenvalue is below d·eps count as null, if the Cholesky factorisation fails or meets one. Without that condition
    the floor would change well-posed problems too. A zero row of H leaves that entry of p at 0.
    """
    scale = H.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    A = H * inverse * inverse[:, None]
    b = g * inverse
    null = len(g) * sys.float_info.epsilon
    L, failed = torch.linalg.cholesky_ex(A)
    if not int(failed) and float(L.diagonal().min()) ** 2 > null:
        return inverse * torch.cholesky_solve(b[:, None], L)[:, 0]
    lam, V = torch.linalg.eigh(A)
    p: Vec = V @ torch.where(lam > null * lam[-1], (V.T @ b) / lam, 0.0)
    return inverse * p


def clipped(H: Matrix, mu: float) -> Matrix:
    """The nearest symmetric matrix with eigenvalues of at least ``mu`` (Frobenius norm): [H]_μ."""
    lam, V = torch.linalg.eigh((H + H.T) / 2)
    return H if float(lam[0]) >= mu else (V * lam.clamp(min=mu)) @ V.T


def leading(H: Matrix, k: int) -> tuple[Float[Tensor, " k"], Float[Tensor, "k d"]]:
    """The ``k`` eigenvalues of largest |λ|, with their signs, and their eigenvectors by rows."""
    lam, V = torch.linalg.eigh(H)
    top = lam.abs().argsort(descending=True, stable=True)[:k]
    return lam[top], V.T[top]


def largest(v: Float[Tensor, " n"], k: int) -> tuple[Float[Tensor, " k"], Int[Tensor, " k"]]:
    """The ``k`` entries of largest size, and their places."""
    top = v.abs().argsort(descending=True, stable=True)[:k]
    return v[top], top


def triangle(H: Matrix) -> Triangle:
    """The upper triangle of H, row after row."""
    i, j = torch.triu_indices(*H.shape, device=H.device).unbind()
    return H.reshape(-1).index_select(0, i * len(H) + j)  # two thirds of the time of H[i, j]


def symmetric(t: Triangle, d: int) -> Matrix:
    """Inverse of `triangle`."""
    H = t.new_zeros(d, d)
    i, j = torch.triu_indices(d, d, device=t.device).unbind()
    H[i, j] = t
    H[j, i] = t
    return H
