"""Principal components across sites are those of all rows in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import medley as md
from medley.statistics import Rules, Study, Withheld

pd = pytest.importorskip("pandas")

OPEN = Rules(rows=1, events=1, parameters=1.0, exact=True)
COLUMNS = ("a", "b", "c", "d")


def table(n: int = 400) -> Any:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, 4)) @ rng.normal(size=(4, 4)) * [1, 20, 0.01, 3] + [100, 5, 0, -2]
    return pd.DataFrame(X, columns=[*COLUMNS])


def study(rules: Rules = OPEN, n: int = 400, **how: Any) -> Study:
    frame = table(n)
    cuts = {"Bern": frame[: n // 8], "Basel": frame[n // 8 : n // 2], "Zug": frame[n // 2 :]}
    return Study(cuts, rules=rules, **how)


def pooled(scale: bool, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    X = table(n).to_numpy()
    values, vectors = np.linalg.eigh(np.corrcoef(X.T) if scale else np.cov(X.T))
    vectors = vectors[:, ::-1]
    return values[::-1], vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(4)])


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("how", [{}, {"secure": md.SecureSum(bits=64, bound=1e12)}], ids=["plain", "secure"])
def test_they_are_those_of_all_rows(scale: bool, how: Any):
    found = study(**how).pca(COLUMNS, scale=scale)
    values, vectors = pooled(scale)
    rtol = 1e-5 if how else 1e-9
    np.testing.assert_allclose(found.variances, values, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(found.loadings, vectors, rtol=0, atol=1e-4 if how else 1e-9)
    np.testing.assert_allclose(found.mean, table().mean(), rtol=1e-6)
    scores = found.frame(table())
    assert [*scores.columns] == ["PC1", "PC2", "PC3", "PC4"]
    # No solver has the least variance nearer than the rounding of the largest one.
    np.testing.assert_allclose(scores.var(ddof=1), values, rtol=rtol, atol=4 * np.finfo(float).eps * values[0])
    assert found.n == 400


@pytest.mark.rounded
def test_rounded_sums_are_near_and_counted():
    """By default sums leave on grids of a thousandth of their deviation: variances are right to a thousandth."""
    asked = study(Rules())
    found = asked.pca(COLUMNS, components=2)
    values, vectors = pooled(True)
    np.testing.assert_allclose(found.variances, values[:2], rtol=2e-3)
    np.testing.assert_allclose(found.loadings, vectors[:, :2], atol=5e-3)
    assert not np.allclose(found.variances, values[:2], rtol=1e-9)
    bits = asked.disclosure()["bits"].loc["Bern"]
    assert {*bits.index} == {*COLUMNS}
    assert (bits > 40).all()
    again = asked.pca(COLUMNS, components=2)
    assert np.array_equal(again.loadings, found.loadings)
    assert asked.disclosure()["bits"].loc["Bern"].equals(bits)
    assert "share of variance" in found.summary()


def test_what_may_not_leave_and_what_is_no_component():
    with pytest.raises(Withheld, match="4 parameters of 10 rows are more than its share"):
        study(Rules(), n=80).pca(COLUMNS)
    with pytest.raises(md.RecipeError, match="name at least two columns, each once"):
        study().pca(["a", "a"])
    frame = table(90).assign(a=1.0)
    with pytest.raises(md.BadData, match=r"a is the same in all rows of all sites, 1, .* leave it out"):
        Study({"Bern": frame[:40], "Basel": frame[40:]}, rules=OPEN).pca(COLUMNS)
    found = study().pca(COLUMNS)
    for rows, message in (
        (table(9).drop(columns="a"), "the table has no column 'a'; it has"),
        ({"a": [1]}, "a dict has no"),
    ):
        with pytest.raises(md.BadData, match=message):
            found.frame(rows)


@pytest.mark.parametrize("secure", [None, md.SecureSum(bits=64, bound=1e12)], ids=["plain", "secure"])
@pytest.mark.parametrize("mean", [1e8, -1e9])
def test_columns_far_from_0_lose_no_digits(mean: float, secure: md.SecureSum | None):
    """A year in seconds, with a deviation of 10: variances and loadings are those of the columns without the mean."""
    far = table()
    far["a"] = mean + 10 * np.rint(far["a"] - 100)  # numbers that float64 has exactly at any of these means
    near = far.assign(a=far["a"] - mean)
    cut = lambda rows: {"Bern": rows[:50], "Basel": rows[50:]}
    got, want = (Study(cut(rows), rules=OPEN, secure=secure).pca(COLUMNS) for rows in (far, near))
    np.testing.assert_allclose(got.variances, want.variances, rtol=1e-6 if secure else 1e-10)
    np.testing.assert_allclose(got.loadings, want.loadings, atol=1e-5 if secure else 1e-9)
    assert got.mean[0] - mean == pytest.approx(want.mean[0], abs=1e-4)
    dust = far.assign(a=mean * (1 + 1e-16 * (np.arange(400) % 2)))
    with pytest.raises(md.BadData, match="a is the same in all rows of all sites"):
        Study(cut(dust), rules=OPEN).pca(COLUMNS)
