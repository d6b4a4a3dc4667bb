"""One row, or a few, that decide a site's sum, or have no event: it would tell their values, whoever else is in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Withheld
from medley.statistics.register import Register

N = 80


def dose(top: list[float]) -> np.ndarray:
    """80 doses around 0, of which the first rows have these shares of the squared deviations from the median, which
    is 0."""
    x = np.tile([1.0, -1.0], N // 2) * np.linspace(0.9, 1.1, N)
    rest = float((x[len(top) :] ** 2).sum())
    whole = rest / (1 - sum(top))
    x[: len(top)] = np.sqrt(np.array(top) * whole) * np.where(np.arange(len(top)) % 2, -1, 1)
    return x - np.median(x)


def study(x: np.ndarray, **rules: Any) -> Study:
    import pandas as pd

    g = np.random.default_rng(1)
    frame = pd.DataFrame({"dose": x, "pay": g.normal(500, 50, N)})
    return Study({"Bern": frame}, rules=Rules(**rules))


def test_one_row_with_more_than_nine_tenths_of_the_spread_of_a_column_is_withheld() -> None:
    """Four rows have 96 % together then, which the rule for few rows allows."""
    assert study(dose([0.87])).glm("pay ~ dose").nobs == N
    with pytest.raises(Withheld, match=r"Bern withholds: one row has more than 0\.9 of the spread of dose"):
        study(dose([0.93])).glm("pay ~ dose")


def test_few_rows_with_almost_all_of_the_spread_are_withheld() -> None:
    """Here none of them has more than 70 %."""
    assert study(dose([0.6, 0.2, 0.1, 0.08])).glm("pay ~ dose").nobs == N
    with pytest.raises(Withheld, match=r"Bern withholds: 4 rows have more than 0\.995 of the spread of dose"):
        study(dose([0.6, 0.2, 0.1, 0.097])).glm("pay ~ dose")


def test_a_site_that_allows_single_rows_withholds_neither() -> None:
    for top in ([0.93], [0.6, 0.2, 0.1, 0.097]):
        assert study(dose(top), rows=1, events=1).glm("pay ~ dose").nobs == N


@pytest.mark.parametrize(("top", "decides"), [([0.87], False), ([0.93], True), ([0.6, 0.2, 0.1, 0.097], True)])
def test_one_row_that_decides_a_sum_by_its_leverage_is_withheld(top: list[float], decides: bool) -> None:
    """The server chooses coefficients, and so weights. All are 1 here, so that they are even, but w·x² is not."""
    (site,) = study(np.arange(N)).sites.values()
    shares = np.array([*top, *[(1 - sum(top)) / (N - len(top))] * (N - len(top))])
    if not decides:
        site.effective(np.ones(N), np.sqrt(shares)[:, None])
        return
    with pytest.raises(Withheld, match="fewer than 5 rows decide the sums"):
        site.effective(np.ones(N), np.sqrt(shares)[:, None])


@pytest.mark.parametrize(("few", "said"), [(slice(3, None), "without"), (slice(0, 3), "with")])
def test_few_rows_with_or_without_the_event_are_withheld(few: slice, said: str) -> None:
    """All of the 80 rows but three have the event, or only three have it: both tell of three patients."""
    import pandas as pd

    g, event = np.random.default_rng(2), np.zeros(N, int)
    event[few] = 1
    frame = pd.DataFrame({"age": g.integers(30, 80, N).astype(float), "died": g.permutation(event)})
    with pytest.raises(Withheld, match=f"rows {said} the event"):
        Study({"Bern": frame}).glm("died ~ age", "binomial")
    assert Study({"Bern": frame}, rules=Rules(events=3)).glm("died ~ age", "binomial").nobs == N


def test_two_earlier_sums_together_tell_what_neither_does() -> None:
    """The new sum, less both of them, is one patient's; less either of them it is that of eleven."""
    import pandas as pd

    register, at = Register(pd.DataFrame({"pay": np.arange(N)})), np.arange(N)
    assert register.admit("pay", [at < 10], 5)
    assert register.admit("pay", [(at >= 10) & (at < 20)], 5)
    assert not register.admit("pay", [at < 21], 5)
    assert register.admit("pay", [at < 25], 5)
