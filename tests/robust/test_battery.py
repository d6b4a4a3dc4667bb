"""The battery of folds that are not in `support/methods.py`; some want several replies, or a certain client."""

from __future__ import annotations

import pytest

import medley as md
from medley.contract.errors import RecipeError
from medley.testing import Check, checks
from medley.testing.method_runs import Subject

SMALL = ("partial", "nobody", "one client")
"""Checks with cohorts of one or two clients: too few for a share, for Krum, and for FLTrust beside its root."""

RULES: list[tuple[md.robust.Rule, tuple[str, ...]]] = [
    (md.robust.TrimmedMean(0.2), SMALL),
    (md.robust.Median(), ()),
    (md.robust.Mixed(md.robust.Median(), 0.2), SMALL),
    (md.robust.GeometricMedian(), ()),
    (md.robust.Krum(0.0), SMALL),
    (md.robust.MultiKrum(0.0), SMALL),
    # The root is asked in every round, and has its number whatever the other clients' numbers are.
    (md.robust.FLTrust(root=0), ("relabelled", *SMALL)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(c, id=f"{rule.name}-{c}")
        for rule, without in RULES
        for c in checks(md.Robust(md.FedAvg(), rule=rule))
        if c.name not in without
    ],
)
def test_conformance(check: Check) -> None:
    check()


@pytest.mark.parametrize("rule", [md.robust.Krum(0.0), md.robust.MultiKrum(0.0)], ids=str)
def test_one_client_is_refused_before_anybody_is_asked(rule: md.robust.Rule) -> None:
    subject = Subject(md.Robust(md.FedAvg(), rule=rule))
    with pytest.raises(RecipeError, match=r"needs 3 replies to tolerate 0 Byzantine clients of the 1 in") as caught:
        subject.run(subject.places[0].federation([1]))
    assert caught.value.key == "rule"
    assert len(caught.value.result.ledger) == 0
