"""Errors travel between processes of a user's own, whole."""

from __future__ import annotations

import copy
import pickle

import pytest

import medley as md
from medley.contract import Place
from medley.contract.errors import MedleyError

ERRORS = [
    md.MedleyError("a"),
    md.RecipeError("a", "lr"),
    md.UnknownSetting("a", "lr"),
    md.BadData("a", client=1, row=2, column=3),
    md.BadData("a", place=Place("client 1", row=2, client=1)),
    md.Unsupported("a", method="SHED", need="hessian"),
    md.WireError("a"),
    md.ClientFailed(client=1, round=2, method="train", traceback="x"),
    md.TooFewReplies("a"),
    md.BudgetSpent("a", 3),
    md.Diverged("a", 3, True),
    md.Stalled("a"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_can_be_pickled_and_copied(error: MedleyError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))
