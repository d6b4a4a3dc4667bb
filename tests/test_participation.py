from __future__ import annotations

import math
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from medley.contract.errors import RecipeError
from medley.participation import Availability, Bernoulli, Everyone, Fixed, Fraction, Participation, draw_cohort, rule_of

SIZES = np.array([1, 2, 3, 4, 10])


@given(st.integers(1, 200), st.floats(0.001, 1), st.integers(1, 50), st.integers(0, 2**40))
def test_cohorts_are_sorted_ids_and_depend_on_seed_and_round_alone(n, fraction, round, seed):
    sizes = np.arange(1, n + 1)
    a = max(1, int(np.round(fraction * n)))
    for rule in (Everyone(), Fraction(fraction), Fraction(fraction, weighted=True), Bernoulli(fraction)):
        ids = rule.draw(round, sizes, seed)
        assert isinstance(rule, Participation)
        assert ids.dtype == np.int64
        assert (np.diff(ids) > 0).all()
        assert ((ids >= 0) & (ids < n)).all()
        assert np.array_equal(ids, rule.draw(round, sizes, seed))
        if isinstance(rule, Fraction):
            assert len(ids) == a
    awake = Availability(fraction)
    ids = awake.draw(round, sizes, seed)
    pool = np.flatnonzero(awake.awake(round, n, seed))
    assert set(ids) <= set(pool)
    assert len(ids) == min(a, len(pool))


@pytest.mark.slow
def test_uniform_cohorts_are_uniform():
    pairs = [tuple(Fraction(0.4).draw(r, SIZES, 0)) for r in range(1, 3001)]
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
def test_weighted_cohorts_follow_successive_draws():
    p = SIZES / SIZES.sum()
    firsts = [int(Fraction(0.2, weighted=True).draw(r, SIZES, 0)[0]) for r in range(1, 4001)]
    assert stats.chisquare(np.bincount(firsts, minlength=5), 4000 * p).pvalue > 1e-3

    exact = {}
    for i, j in permutations(range(5), 2):
        pair = (min(i, j), max(i, j))
        exact[pair] = exact.get(pair, 0) + p[i] * p[j] / (1 - p[i])
    pairs = [tuple(Fraction(0.4, weighted=True).draw(r, SIZES, 0).tolist()) for r in range(1, 4001)]
    counts = [pairs.count(pair) for pair in exact]
    assert stats.chisquare(counts, 4000 * np.array(list(exact.values()))).pvalue > 1e-3


def test_clients_without_rows_come_last():
    sizes = np.array([0, 5, 0, 1])
    for r in range(1, 30):
        assert Fraction(0.5, weighted=True).draw(r, sizes, 0).tolist() == [1, 3]
    assert len(Fraction(0.75, weighted=True).draw(1, sizes, 0)) == 3


def test_coins_are_independent_and_may_all_fall_tails():
    cohorts = [Bernoulli(0.3).draw(r, SIZES, 0) for r in range(1, 4001)]
    counts = np.bincount([len(ids) for ids in cohorts], minlength=6)
    assert stats.chisquare(counts, 4000 * stats.binom(5, 0.3).pmf(range(6))).pvalue > 1e-3
    assert counts[0] > 0
    assert cohorts[counts.argmax()].dtype == np.int64


def test_clients_keep_a_daily_rhythm():
    rule = Availability(0.1, period=24, on=0.25)
    n = 400
    day = np.array([rule.awake(r, n, 7) for r in range(1, 49)])
    assert (day[:24].sum(0) == 6).all()  # a quarter of every day, whatever the phase
    assert np.array_equal(day[:24], day[24:])
    assert (np.abs(np.diff(day[:24].astype(int), axis=0)).sum(0) <= 2).all()  # one stretch a day
    share = day.mean(1)  # n coins of 1/4
    assert np.abs(share - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / n)
    cohorts = [rule.draw(r, np.ones(1), 7) for r in range(1, 25)]
    assert sum(len(ids) for ids in cohorts) == 6  # empty in the other rounds
    assert not np.array_equal(rule.awake(1, n, 7), rule.awake(1, n, 8))


def test_fixed_cohorts_cycle():
    rule = Fixed([[2, 0], [], [1]])
    assert [rule.draw(r, SIZES, 0).tolist() for r in range(1, 6)] == [[0, 2], [], [1], [0, 2], []]
    with pytest.raises(RecipeError, match="the cohort of round 4 names client 2, but ids end at 1"):
        rule.draw(4, SIZES[:2], 0)
    with pytest.raises(RecipeError, match="the cohort of round 3 names client 7, but ids end at 4"):
        Fixed([[0], [1], [7]]).draw(1, SIZES, 0)


def test_what_a_user_types():
    assert rule_of(None) == rule_of(1.0) == rule_of(1) == Everyone()
    assert rule_of(0.1) == Fraction(0.1)
    rule = Bernoulli(0.5)
    assert rule_of(rule) is rule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rule_of(0), r"Fraction\(fraction=0\): fraction must be in \(0, 1\]. 1.0 is everyone; .* k / n"),
        (lambda: rule_of(10), r"fraction=10\)"),
        (lambda: rule_of(math.nan), r"fraction=nan\)"),
        (lambda: Fraction(-0.1), "must be in"),
        (lambda: Bernoulli(0.0), r"Bernoulli\(p=0.0\): p must be in \(0, 1\]"),
        (lambda: Availability(0.0), r"Availability\(fraction=0.0\)"),
        (lambda: Availability(0.5, on=1.5), r"Availability\(on=1.5\)"),
        (lambda: Availability(0.5, period=0), "period, in rounds, must be above 0"),
        (lambda: Fixed([]), "give at least one cohort"),
        (lambda: Fixed([[0], [1, 1]]), r"cohort 1 is \[1, 1\]: client ids are 0, 1, ..., each once"),
        (lambda: Fixed([[-1]]), "cohort 0"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def test_one_cohort_that_is_no_list_of_cohorts_is_refused():
    with pytest.raises(RecipeError, match=r"give a list of ids for each round, such as \[\[0, 7\]\]"):
        Fixed([0, 7])  # type: ignore[list-item]


@pytest.mark.parametrize("ids", [["a"], [None], [math.nan], [0.5]])
def test_cohorts_of_other_things_than_ids_are_refused(ids):
    with pytest.raises(RecipeError, match=r"cohort 0 is .*: client ids are 0, 1, ..., each once"):
        Fixed([ids])


@pytest.mark.parametrize("ids", [[3, 1], np.array([1, 3], np.int32), (3, 1), []])
def test_a_rule_of_ones_own_may_return_lists_and_any_order(ids):
    assert draw_cohort(SimpleNamespace(draw=lambda *_: ids), 1, SIZES, 0).tolist() == sorted(ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 1, 2], r"Own\.draw\(\) of round 3 names client 1 more than once; name each client once"),
        ([1, 9], r"Own\.draw\(\) of round 3 names client 9, but ids go from 0 to 4"),
        ([-1, 2], "names client -1, but ids go from 0 to 4"),
        ([1.0, 2.0], r"returns float64 \[2\]; return the clients' ids"),
        (np.arange(5) % 2 == 0, r"returns bool \[5\].*np\.flatnonzero\(mask\)"),
        (None, r"returns object \[\]"),
    ],
    ids=str,
)
def test_what_is_no_cohort_is_refused(ids, message):
    class Own:
        def draw(self, round, sizes, seed):
            return ids

    with pytest.raises(RecipeError, match=message) as caught:
        draw_cohort(Own(), 3, SIZES, 0)
    assert caught.value.key == "participation"
