"""A loss a million times its start is a divergence whatever else is right; a start near 0 is not."""

import numpy as np
import pytest

import medley as md
from medley.server.ending import judged

ENDS = {
    "accuracy learnt": ([1.0, 2.0, 3.0, 2.0, 1e100], [0.1, 0.5, 0.9, 0.9, 0.9], True),
    "only the last row": ([1.0, 0.5, 0.4, 0.3, 2e6], [0.1, 0.2, 0.3, 0.4, 0.5], True),
    "two rows, learnt": ([2.3, 2.4e6], [0.1, 0.9], True),
    "two rows, nearly": ([2.3, 2.2e6], [0.1, 0.9], False),
    "below zero": ([1.0, 0.5, 0.4, 0.3, -1e7], None, True),
    "starts at a minimum": ([1e-12, 1e-9, 1e-6, 1e-3, 2e-3], [0.5, 0.6, 0.7, 0.8, 0.9], False),
    "starts at 0": ([0.0, 0.5, 0.6, 0.6, 0.6], None, False),
    "starts at 0 and explodes": ([0.0, 1e5, 1e9, 1e9, 1e9], None, True),
    "falls": ([1e9, 1e3, 1.0, 1.0, 1.0], None, False),
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("more", [{}, {"task": 0}])
def test_a_million_times_the_start_is_divergence(case, more):
    losses, accuracy, exploded = ENDS[case]
    rows = [{"round": k, "loss": v, **more} for k, v in enumerate(losses)]
    for row, share in zip(rows, accuracy or [], strict=False):
        row["accuracy"] = share
    status = judged(rows)
    assert (status.outcome == "diverged") == exploded
    if exploded:
        assert f"the loss ends at {losses[-1]:.4g}" in status.message
        assert "smaller lr" in status.message


RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
CLASS = (X[:, 0] > 0).astype(int)
NAN = float("nan")


def watched(values, **options):
    figures = iter([*values, *[values[-1]] * 50])
    fed = md.Federation(
        md.problems.Logistic(mu=0.1), clients=[(X[:30], CLASS[:30]), (X[30:], CLASS[30:])], validation=0.3
    )
    return md.run(
        md.FedAvg(),
        fed,
        len(values) - 1,
        metrics={"m": (lambda z, y: next(figures), "max")},
        evaluate_on="validation",
        progress=False,
        **options,
    )


def test_a_figure_that_is_always_nan_is_said(caplog):
    never = watched([NAN] * 4, best="m")
    assert never.status.message.startswith("m was nan at all 4 evaluations, so the model is the last round's")
    assert [r for r in caplog.records if "m was nan" in r.getMessage()]
    assert watched([NAN] * 4, target={"m": 0.5}).status.message.startswith("m was nan at all 4 evaluations")
    endless = watched([float("inf")] * 4, best="m")  # the first model, untrained, would be the best
    assert (endless.summary.get("best_round"), endless.status.message[:35]) == (
        None,
        "m was not finite at all 4 evaluatio",
    )
    early = watched([NAN] * 9, best="m", patience=3)
    assert (early.history[-1]["round"], early.status.ok) == (3, True)
    assert "m was nan" in early.status.message


@pytest.mark.parametrize(
    ("values", "best"), [([NAN, 0.5, NAN], 1), ([0.5, NAN, NAN], 0), ([NAN, NAN, 0.1], 2), ([0.1, 0.3, NAN, 0.2], 1)]
)
def test_a_figure_that_is_nan_at_times_is_not(values, best):
    result = watched(values, best="m")
    assert (result.summary["best_round"], result.status.message) == (best, "")
