from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from medley.contract.errors import RecipeError
from medley.distributions import Choice, Constant, Distribution, Integers, LogUniform, Normal, Uniform
from medley.runtime.streams import rng


def draws(law, m=4000):
    g = rng(11, "law")
    return np.array([law.draw(g) for _ in range(m)])


@pytest.mark.parametrize(
    ("law", "cdf"),
    [
        (Uniform(-1, 3), stats.uniform(-1, 4).cdf),
        (LogUniform(1e-4, 10), stats.loguniform(1e-4, 10).cdf),
        (Normal(2, 3), stats.norm(2, 3).cdf),
        (Normal(2, 3, low=1), stats.truncnorm(-1 / 3, math.inf, 2, 3).cdf),
        (Normal(2, 3, high=0.5), stats.truncnorm(-math.inf, -0.5, 2, 3).cdf),
        (Normal(2, 3, low=-1, high=4), stats.truncnorm(-1, 2 / 3, 2, 3).cdf),
        (Normal(0, 1, low=30), stats.truncnorm(30, math.inf).cdf),
        (Normal(0, 1, low=-31, high=-30), stats.truncnorm(-31, -30).cdf),
    ],
)
def test_continuous_laws_follow_their_distribution(law, cdf):
    assert isinstance(law, Distribution)
    assert stats.kstest(draws(law), cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("law", "p"),
    [
        (Integers(3, 7), dict.fromkeys(range(3, 8), 0.2)),
        (Choice([8, 16, 32]), {8: 1 / 3, 16: 1 / 3, 32: 1 / 3}),
        (Choice([8, 16, 32], p=[0.7, 0.1, 0.2]), {8: 0.7, 16: 0.1, 32: 0.2}),
    ],
)
def test_discrete_laws_follow_their_distribution(law, p):
    values, counts = np.unique(draws(law), return_counts=True)
    assert values.tolist() == list(p)
    assert stats.chisquare(counts, 4000 * np.array(list(p.values()))).pvalue > 1e-3
    assert type(law.draw(rng(0))) is int


def test_impossible_values_are_never_chosen():
    assert set(draws(Choice([1, 2, 3], p=[0, 1, 0]))) == {2}
    assert set(draws(Constant(0.5), 3)) == {0.5}
    assert set(draws(Integers(4, 4), 3)) == {4}


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(-50, 50), st.floats(1e-3, 10), st.integers(0, 2**30))
def test_a_bounded_normal_stays_in_bounds_wherever_they_are(mean, std, shift, width, seed):
    low = mean + shift * std
    law = Normal(mean, std, low, low + width * std)
    x = law.draw(rng(seed))
    assert law.low <= x <= law.high


@given(st.floats(1e-12, 1e12), st.floats(1, 1e6), st.integers(0, 2**30))
def test_a_log_uniform_stays_in_bounds(low, ratio, seed):
    assert low <= LogUniform(low, low * ratio).draw(rng(seed)) <= low * ratio


def test_a_draw_is_a_function_of_the_stream():
    for law in (Uniform(0, 1), LogUniform(1, 2), Integers(0, 10**6), Choice([1, 2, 3]), Normal(0, 1), Constant(3)):
        assert law.draw(rng(5, "a")) == law.draw(rng(5, "a"))
        assert pickle.loads(pickle.dumps(law)) == law


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(2, 1), r"Uniform\(low=2, high=1\): low is above high"),
        (lambda: Uniform(0, math.nan), r"Uniform\(high=nan\): must be a finite number"),
        (lambda: LogUniform(0, 1), "low must be above 0, since its logarithm"),
        (lambda: Integers(2, 1), "low is above high"),
        (lambda: Choice([]), "nothing to choose from"),
        (lambda: Choice([1, math.inf]), r"Choice\(values=\(1, inf\)\): must be a list, each a finite number"),
        (lambda: Choice([1, 2], p=[1.0]), "2 values need 2 probabilities"),
        (lambda: Choice([1, 2], p=[0.5, 0.6]), "sum to 1"),
        (lambda: Choice([1, 2], p=[-0.5, 1.5]), "at least 0"),
        (lambda: Normal(0, 0), r"std must be above 0; for no spread use Constant\(0\)"),
        (lambda: Normal(0, 1, low=2, high=2), "low must be below high"),
        (lambda: Constant(math.inf), r"Constant\(v=inf\)"),
    ],
)
def test_laws_that_make_no_sense(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
