"""The clause on what sets two runs apart."""

from __future__ import annotations

from typing import Any

import pytest

import medley as md
from medley.storage.changed_settings import difference

PACE = repr(md.scenarios.Pace(lr=0.3))


@pytest.mark.parametrize(
    ("before", "after", "clause"),
    [
        (PACE, PACE, ""),
        (PACE, repr(md.scenarios.Pace(lr=0.2)), "pace.lr was 0.3 there and is 0.2 here"),
        (
            PACE,
            repr(md.scenarios.Pace(lr=md.distributions.Uniform(0.1, 0.3), batch=None)),
            "pace.lr was 0.3 there and is Uniform(low=0.1, high=0.3) here, pace.batch was 32 there and is None here",
        ),
        ("A(x=1)", "B(x=1)", "pace was 'A(x=1)' there and is 'B(x=1)' here"),
        ("A(1)", "A(2)", "pace was 'A(1)' there and is 'A(2)' here"),
        ("A(f=<f at 1>)", "A(f=<f at 2>)", "pace was 'A(f=<f at 1>)' there and is 'A(f=<f at 2>)' here"),
        ("A(x=1)", "A( x=1)", "pace was 'A(x=1)' there and is 'A( x=1)' here"),
        (0.1, None, "pace was 0.1 there and is None here"),
    ],
)
def test_of_two_objects_of_one_class_only_what_differs_is_named(before: Any, after: Any, clause: str) -> None:
    assert difference({"pace": before}, {"pace": after}) == clause
