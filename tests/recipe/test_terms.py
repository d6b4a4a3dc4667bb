"""What a recipe's reader is told, in the words of the recipe."""

from __future__ import annotations

import pytest

from medley.recipe.terms import in_terms


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("there is none: give Federation(validation=0.1)", "there is none: give data.validation = 0.1"),
        ("give Federation(weights='uniform')", 'give federation.weights = "uniform"'),
        ("Federation(stream=...) has none", "[stream] has none"),
        ("Federation(participation=1.5): at most 1", "participation = 1.5: at most 1"),
        ("run(rounds=-1): must be at least 0", "run.rounds = -1: must be at least 0"),
        ("or give run(dtype='float64')", 'or give run.dtype = "float64"'),
        ("compare(base=...) has no 'x'", "--base has no 'x'"),
        ("compare(seeds=[])", "run.seeds = []"),
        ("Pace(lr=-1): above 0", "pace.lr = -1: above 0"),
        ("SecureSum(neighbours=...)", "secure.neighbours"),
        ("scenarios.Pace(drop_last=True)", "pace.drop_last = true"),
        ("FedProx(mu=-1): above 0", "FedProx(mu=-1): above 0"),
        ("round(s, x=1) and f(a)", "round(s, x=1) and f(a)"),
    ],
)
def test_calls_of_python_are_told_as_a_recipe_has_them(message: str, expected: str) -> None:
    assert in_terms(message) == expected
