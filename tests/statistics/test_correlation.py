"""Correlations over sites: those of SciPy on all rows together, ranks within their stated error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from scipy import stats

from medley import recipe
from medley.statistics import Correlation, Rules, Study, Withheld
from medley.statistics.analysis import tensor
from medley.statistics.correlation import Grids, ranked
from medley.statistics.study import Sites
from support.hospitals import patients, sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0, exact=True)
COLUMNS = ("age", "stay", "pressure", "visits")
SECURE = md.SecureSum(bits=64, bound=2.0**40)


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-12)


@pytest.mark.parametrize("by", quick(1, ["turns", "blocks", "age"]))
def test_pearsons_are_scipys(by: str) -> None:
    frame = patients().assign(far=lambda f: 1e9 + f["stay"], small=lambda f: -1e-9 * f["age"])
    columns = (*COLUMNS, "far", "small")
    found = Study(sites(frame, by), rules=OPEN).correlation(columns)
    near(
        found.frame(), np.corrcoef(frame[[*columns]].to_numpy().T - frame[[*columns]].mean().to_numpy()[:, None]), 2e-7
    )
    near(found.frame().iloc[:4, :4], frame[[*COLUMNS]].corr())
    table = found.table()
    for a, b in (("age", "stay"), ("pressure", "visits")):
        r = stats.pearsonr(frame[a], frame[b])
        line = table.loc[f"{a}, {b}"]
        near(line["correlation"], r.statistic)
        near(line["p"], r.pvalue, 1e-6)
        near(line[["lower", "upper"]], [*r.confidence_interval()])
    assert (table["error"] == 0).all()
    assert "Pearson's correlations of 900 rows at 6 sites" in found.summary()


@pytest.mark.parametrize("by", quick(1, ["turns", "blocks", "age"]))
@pytest.mark.parametrize("rules", [OPEN, Rules(exact=True)], ids=["single rows", "five"])
def test_spearmans_are_scipys_within_their_error(by: str, rules: Rules) -> None:
    frame = patients()
    found = Study(sites(frame, by), rules=rules).correlation(COLUMNS, "spearman")
    there = stats.spearmanr(frame[[*COLUMNS]]).statistic
    gap = np.abs(found.frame().to_numpy() - there)
    assert (gap <= found.errors + 1e-12).all()
    assert gap.max() < (0.002 if rules.rows == 1 else 0.03)
    assert found.errors.max() < (0.05 if rules.rows == 1 else 0.9)
    if rules.rows == 1:  # whole numbers have bins of their own, and their ties the same ranks
        ties = Study(sites(frame, by), rules=rules).correlation(("age", "visits"), "spearman")
        near(ties.frame().iloc[0, 1], stats.spearmanr(frame["age"], frame["visits"]).statistic)


def test_middles_of_ranks_and_how_far_they_are() -> None:
    """Bins of 2, 0, 1 and 4 rows, in groups of their own; and all seven in one group."""
    for tied, far in ((False, np.sqrt(2 * 0.25 + 4 * 1.5**2)), (True, 0.0)):
        scores, wide = ranked(np.array([[2.0, 0, 1, 4], [2, 0, 1, 4]]), tied)
        assert scores[[0, 2, 3]].tolist() == [1.5, 3.0, 5.5]
        near(wide, far)
        scores, wide = ranked(np.array([[7.0, 0, 0, 0], [0, 0, 0, 7]]), tied)
        assert scores[1:3].tolist() == [4.0] * 2
        near(wide, np.sqrt(7 * 9))


def test_errors_hold_in_made_up_studies() -> None:
    """Of 40 studies with other sizes, ties and dependences, each is within its error of the figure of all rows."""
    import pandas as pd

    ratio = []
    for seed in range(40):
        g = np.random.default_rng(seed)
        n = int(g.integers(60, 400))
        x = g.gamma(g.uniform(0.5, 5), 1, n)
        y = g.uniform(-2, 2) * x + g.normal(0, g.uniform(0.2, 4), n)
        frame = pd.DataFrame({"x": x.round(int(g.integers(0, 4))), "y": y})
        made = {"A": frame[: n // 3], "B": frame[n // 3 :]}
        found = Study(made, rules=Rules(exact=True)).correlation(("x", "y"), "spearman")
        gap = abs(found.frame().iloc[0, 1] - stats.spearmanr(frame["x"], y).statistic)
        assert gap <= found.errors[0, 1] + 1e-12
        ratio.append(gap / found.errors[0, 1])
    assert np.median(ratio) < 0.5


def test_under_secure_sums_they_are_the_same() -> None:
    made = sites(patients())
    for method, rel in (("pearson", 1e-5), ("spearman", 1e-5)):
        plain, masked = (Study(made, rules=OPEN, secure=s).correlation(COLUMNS, method) for s in (None, SECURE))
        near(masked.frame(), plain.frame(), rel)
        near(masked.errors, plain.errors, 1e-4)


@pytest.mark.rounded
def test_rounded_correlations_are_near() -> None:
    made = sites(patients())
    found = Study(made).correlation(COLUMNS)
    assert np.abs(found.frame().to_numpy() - patients()[[*COLUMNS]].corr().to_numpy()).max() < 2e-3
    assert (found.disclosure["bits"] > 0).all()


def test_a_recipe_has_correlations() -> None:
    text = '[[study]]\nkind = "correlation"\ncolumns = ["age", "stay"]\nmethod = "spearman"\n'
    (analysis,) = recipe.loads(text).analyses()
    assert analysis == Correlation(("age", "stay"), "spearman")
    assert "Spearman's correlations" in Study(sites(patients())).run(analysis).summary()


def one(**columns: Any) -> dict[str, Any]:
    return {name: rows.assign(**columns) for name, rows in sites(patients()).items()}


EDGES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "one column": (one, {"columns": ("age",)}, md.RecipeError, "at least two columns"),
    "a column twice": (one, {"columns": ("age", "age")}, md.RecipeError, "each once"),
    "text": (one, {"columns": ("age", "sex")}, md.BadData, "column 'sex': it is not a number"),
    "an unknown column": (one, {"columns": ("age", "stayed")}, md.BadData, "no column 'stayed'"),
    "one value": (lambda: one(k=3.0), {"columns": ("age", "k")}, md.BadData, "k is the same in all rows of all sites"),
    "kendall": (one, {"columns": ("age", "stay"), "method": "kendall"}, md.RecipeError, "method"),
    "one row": (one, {"columns": ("age", "stay"), "where": "age > 95"}, Withheld, "where="),
    "a dominant row": (
        lambda: {k: v.assign(w=np.where(np.arange(len(v)) == 3, 1e6, v["age"])) for k, v in one().items()},
        {"columns": ("age", "w")}, Withheld, "one row decides|one row has more than 0.9",
    ),
    "an indicator of few": (
        lambda: {k: v.assign(w=1.0 * (np.arange(len(v)) < 3)) for k, v in one().items()},
        {"columns": ("age", "w")}, Withheld, "value of w has fewer than 5",
    ),
    "few with both": (
        lambda: {
            k: v.assign(a=1.0 * (np.arange(len(v)) < 60), b=1.0 * (np.arange(len(v)) > 57)) for k, v in one().items()
        },
        {"columns": ("a", "b"), "method": "spearman"}, Withheld, "Bern withholds",
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", quick(1, ["pearson", "spearman"]))
@pytest.mark.parametrize("name", EDGES)
def test_edges_have_a_sentence(name: str, method: str) -> None:
    make, how, error, match = EDGES[name]
    with pytest.raises(error, match=match):
        Study(make(), rules=Rules(exact=True)).correlation(**({"method": method} | how))


def test_columns_that_are_the_same_have_correlation_one() -> None:
    made = {k: v.assign(twice=2 * v["age"], less=-v["age"]) for k, v in sites(patients()).items()}
    for method in ("pearson", "spearman"):
        found = Study(made, rules=OPEN).correlation(("age", "twice", "less"), method)
        near(found.frame().iloc[0], [1.0, 1.0, -1.0], 1e-9)
        assert np.isfinite(found.table().to_numpy()).all()


def test_a_site_without_quantiles_has_no_ranks() -> None:
    rules = {"Chur": Rules(quantiles=False)}
    study = Study(sites(patients()), rules=rules)
    study.correlation(COLUMNS)
    with pytest.raises(Withheld, match="Chur withholds a histogram of age, as it does quantiles; method='pearson'"):
        study.correlation(COLUMNS, "spearman")


def test_scores_that_are_no_ranks_are_refused() -> None:
    """By them a server would count the patients beyond two values, and by two of them those between."""
    made = {"Bern": patients(300)}
    study = Study(made)
    analysis = Correlation(("age", "stay"), "spearman")
    me = Sites(study.sites)(0, 1)
    bins = 200
    grids = tensor([[0, 0, bins], [-3, 0, bins]])
    ask = lambda scores: analysis.ranks(me, Grids(grids, tensor(np.array(scores, float)), 300.0))
    line = 1.5 * np.arange(bins)
    analysis.histograms(me, Grids(grids, tensor(np.zeros((2, 0))), 300.0))
    beyond = float(np.sort(made["Bern"]["age"])[-3])
    for steps in (1.0 * (np.arange(bins) >= beyond), -line, line + 900 * (np.arange(bins) > 80)):
        with pytest.raises(Withheld, match=r"ranks of age|a value of combination"):
            ask([steps, steps])
    study = Study(made)
    me = Sites(study.sites)(0, 1)
    ask([line, line])
    with pytest.raises(Withheld, match="ranks of age: among other sites' rows its own had other ranks before"):
        ask([line + 0.5 * (np.arange(bins) > 80), line])
