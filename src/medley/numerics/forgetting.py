"""Accuracy and forgetting over a stream of tasks."""

from __future__ import annotations

from collections.abc import Sequence


def figures(matrix: Sequence[Sequence[float]], first: Sequence[int] = ()) -> dict[str, float]:
    """Figures of a[s][j], the test accuracy on task j after task s, over the S tasks done; none for S = 0.

    Args:
        acc: mean accuracy at the end, (1/S) Σ_j a[S−1][j].
        learn: mean accuracy right after each task, (1/S) Σ_j a[j][j].
        fgt: mean loss in accuracy since then over all tasks but the last; acc = learn − (S−1)/S·fgt.
        bwt: −fgt.
        fgt_max: mean loss since each task's best, from the first step at which a client had it; at least ``fgt``.

    ``first`` holds these steps; by default every task j is first met at step j.
    """
    S = len(matrix)
    if S == 0:
        return {}
    last = matrix[-1][:S]
    right_after = [matrix[j][j] for j in range(S)]
    since = [min(j, first[j]) if j < len(first) else j for j in range(S)]
    best = []
    for j in range(S):
        best.append(max(row[j] for row in matrix[since[j] :]))
    old = max(S - 1, 1)
    fgt = (sum(right_after) - sum(last)) / old
    return {
        "acc": sum(last) / S,
        "fgt": fgt,
        "fgt_max": (sum(best) - sum(last)) / old,
        "learn": sum(right_after) / S,
        "bwt": -fgt,
    }
