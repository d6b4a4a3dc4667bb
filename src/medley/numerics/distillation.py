"""Distillation: the distance of a student's outputs from its teacher's."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def distillation(student: Float[Tensor, "b c"], teacher: Float[Tensor, "b c"], T: float) -> Float[Tensor, ""]:
    """−mean Σ_c softmax(teacher/T)_c log softmax(student/T)_c, without the factor T².

    Args:
        student, teacher: outputs [b, c].
        T: temperature.

    Its gradient is 0 if the two differ by a constant per row. (Hinton, Vinyals & Dean, "Distilling the Knowledge in a
    Neural Network", 2015.)
    """
    return F.cross_entropy(student / T, (teacher / T).softmax(1))
