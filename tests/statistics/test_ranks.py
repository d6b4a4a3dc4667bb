"""Rank tests between their bounds, and standardised differences, of a Table 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Describe, Rules, Study
from support.hospitals import patients, sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)


def drawn(draw: int) -> tuple[dict[str, Any], bool]:
    """Skewed numbers and counts of two to four groups at one to four sites, and whether they are whole."""
    import pandas as pd

    g = np.random.default_rng(draw)
    n, groups, at = int(g.integers(500, 1500)), int(g.integers(2, 5)), int(g.integers(1, 5))
    group, site = g.integers(0, groups, n), g.integers(0, at, n)
    x = [
        g.lognormal(0.1 * group, 1.0),
        g.poisson(3 + 0.3 * group).astype(float),
        g.gamma(2, 1 + 0.1 * group).round(1),
        np.minimum(g.geometric(0.5, n), 5.0),
    ][draw % 4]
    frame = pd.DataFrame({"group": np.array([*"abcd"])[group], "x": x})
    return {f"site {k}": frame[site == k] for k in range(at)}, draw % 2 == 1


def pooled(frames: dict[str, Any]) -> Any:
    """SciPy's test of all rows."""
    import pandas as pd
    from scipy import stats

    parts = [part.to_numpy() for _, part in pd.concat(frames.values()).groupby("group")["x"]]
    return stats.mannwhitneyu(*parts, method="asymptotic") if len(parts) == 2 else stats.kruskal(*parts)


def between(of: Any, low: float, high: float) -> None:
    assert low - 1e-9 * abs(of) <= of <= high + 1e-9 * abs(of)


@pytest.mark.rounded
@pytest.mark.parametrize(("first", "last"), quick(1, [(0, 4), (4, 200)]))
def test_the_test_of_all_rows_lies_between_the_bounds(first: int, last: int) -> None:
    for draw in range(first, last):
        frames, whole = drawn(draw)
        rules = OPEN if draw // 4 % 2 else Rules()
        there = pooled(frames)
        table = Study(frames, rules=rules).describe(["x"], by="group", ranks=["x"], whole=["x"] * whole)
        found = table.rank_test("x")
        assert found is not None
        between(there.statistic, *found.statistic)
        between(there.pvalue, *found.pvalue)
        between(found.middle[1], *found.pvalue)
        if whole and rules == OPEN:  # each value has a bin of its own
            assert found.statistic == pytest.approx((there.statistic, there.statistic), rel=1e-9)
            assert found.pvalue == pytest.approx((there.pvalue, there.pvalue), rel=1e-9)


@pytest.mark.rounded
def test_bins_of_many_rows_are_exact_under_rules_and_masks() -> None:
    import pandas as pd

    g = np.random.default_rng(0)
    frames = {
        name: pd.DataFrame({"group": np.repeat([*"ab"], 120), "x": g.integers(0, 3, 240) + np.repeat([0, 1], 120)})
        for name in ("Bern", "Zug")
    }
    there = pooled(frames)
    for how in ({}, {"secure": md.SecureSum(bits=64, bound=2.0**40)}):
        table = Study(frames, **how).describe(["x"], by="group", ranks=["x"], whole=["x"], smd=True)
        found = table.rank_test("x")
        assert found is not None
        assert (found.name, found.statistic) == ("Mann-Whitney", (there.statistic, there.statistic))
        assert found.pvalue == pytest.approx((there.pvalue, there.pvalue), rel=1e-9)
        assert found.pvalue[0] < table.rank_test("x", whole=False).pvalue[1]  # type: ignore[union-attr]


def test_standardised_differences_are_those_of_all_rows() -> None:
    frame = patients()
    table = Study(sites(frame), rules=OPEN).describe(["age", "ward", "C(died)"], by="sex", smd=True)
    parts = [part for _, part in frame.groupby("sex")]
    m, v = np.array([[p["age"].mean(), p["age"].var()] for p in parts]).T
    assert table.smd("age") == pytest.approx(abs(m[0] - m[1]) / np.sqrt(v.mean()), rel=1e-9)
    p, q = (part["died"].mean() for part in parts)
    assert table.smd("died") == pytest.approx(abs(p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2), rel=1e-9)
    a, b = (part["ward"].value_counts(normalize=True)[["b", "c"]].to_numpy() for part in parts)
    S = (np.diag(a) - np.outer(a, a) + np.diag(b) - np.outer(b, b)) / 2
    assert table.smd("ward") == pytest.approx(np.sqrt((a - b) @ np.linalg.solve(S, a - b)), rel=1e-9)
    assert table.frame()["SMD"].tolist()[0] == f"{table.smd('age'):.3f}"
    three = Study(sites(frame), rules=OPEN).describe(["age"], by="ward", smd=True, ranks=["age"], whole=["age"])
    means, squares = (frame.groupby("ward")["age"].agg(k).to_numpy() for k in ("mean", "var"))
    pairs = [abs(means[i] - means[j]) / np.sqrt((squares[i] + squares[j]) / 2) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert three.smd("age") == pytest.approx(max(pairs), rel=1e-9)
    assert "SMD: the largest between two groups" in three.summary()
    assert "p of age: Kruskal-Wallis" in three.summary()


def test_columns_and_groups_without_a_rank_test() -> None:
    frame = patients().assign(one="x", same=1.0)
    frame.loc[frame["age"] > 60, "stay"] = np.nan
    study = Study(sites(frame), rules=OPEN)
    for how in ({"ranks": ["ward"]}, {"ranks": ["months"]}, {"ranks": "age"}, {"whole": ["ward"]}, {"by": ""}):
        with pytest.raises(md.RecipeError, match=r"describe\(ranks="):
            study.describe(["age", "ward"], **{"by": "sex", "ranks": ["age"], **how})
    with pytest.raises(md.RecipeError, match=r"describe\(smd=True\): differences are between groups; give by="):
        study.describe(["age"], smd=True)
    alone = study.describe(["age"], by="one", ranks=["age"], smd=True)
    assert alone.rank_test("age") is None
    assert alone.smd("age") is None
    same = study.describe(["same", "stay"], by="sex", ranks=["same", "stay"], whole=["same"], smd=True)
    assert (same.rank_test("same").pvalue, same.smd("same")) == ((0.0, 1.0), 0.0)  # type: ignore[union-attr]
    found = same.rank_test("stay")
    parts = [part.to_numpy() for _, part in frame.dropna(subset=["stay"]).groupby("sex")["stay"]]
    from scipy import stats

    assert found is not None
    between(stats.mannwhitneyu(*parts, method="asymptotic").pvalue, *found.pvalue)
    hidden = Study(sites(frame), rules=Rules(quantiles=False)).describe(["age"], by="sex", ranks=["age"])
    assert hidden.rank_test("age") is None
    assert "withheld" in hidden.frame()["p"].tolist()


@pytest.mark.rounded
def test_a_rank_test_takes_nothing_further_from_a_site() -> None:
    """It is computed from the histograms that a table has anyway, each bin with as many rows as the rules want."""
    plain, ranked = Study(sites(patients())), Study(sites(patients()))
    one = plain.describe(["age"], by="sex")
    other = ranked.describe(["age"], by="sex", ranks=["age"], whole=["age"], smd=True)
    assert one.cost == other.cost
    assert plain.disclosure().equals(ranked.disclosure())
    assert {type(v) for v in Describe(("age",), "sex", ranks=("age",)).settings().values()} <= {tuple, str, bool}
