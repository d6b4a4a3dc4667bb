"""Survival data: Cox's partial likelihood, for targets (time, event) [n, 2]."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def cox(outputs: Float[Tensor, "n 1"], y: Float[Tensor, "n 2"]) -> Float[Tensor, ""]:
    """Mean negative partial log-likelihood of a batch: (1/n) Σ_i E_i (log Σ_{j: T_j ≥ T_i} exp s_j − s_i).

    Use it as ``Network(nn.Linear(p, 1), loss=cox)``. Each term compares a row with other rows of its batch. So a single
    row has no loss, and the loss of a batch is not the mean of the losses of its parts. Ties are treated by Breslow's
    method (Cox, "Regression Models and Life-Tables", 1972; Breslow, 1974).

    Args:
        outputs: log-hazards s
        y: time T and event E, 1 for an event and 0 where the row is censored
    """
    s = outputs[:, 0]
    time, event = y.unbind(1)
    at_risk = time[None, :] >= time[:, None]
    total = torch.where(at_risk, s[None, :], -torch.inf).logsumexp(1)
    return (event * (total - s)).mean()
