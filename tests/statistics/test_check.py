"""A site's columns before a study: what the run would refuse, or may withhold, is said before anything is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from medley.contract import BadData, RecipeError
from medley.statistics import GLM, PCA, Describe, Rules, Study, Withheld
from medley.statistics.site import Site
from medley.statistics.study import check_site, gaps

pytest.importorskip("formulaic")


def rows(n: int = 80, **columns: Any) -> pd.DataFrame:
    g = np.random.default_rng(0)
    ward = g.choice(["a", "b"], n).astype(object)
    ward[:7] = None
    age = g.normal(60, 9, n).round(1)
    frame = {"age": age, "sex": g.choice(["f", "m"], n), "ward": ward, "died": np.arange(n) % 2}
    return pd.DataFrame(frame | columns)


def site(frame: pd.DataFrame, complete: tuple[str, ...] = ()) -> Site:
    return Site.of("Lyon", frame, Rules(), complete, None)


TEXT = rows().age.astype(str).where(np.arange(80) != 40, "61,5")


@pytest.mark.parametrize(
    ("analysis", "frame", "said"),
    [
        (Describe(["presure", "age"]), rows(), "Lyon has no column 'presure'"),
        (Describe(["age"], by="sx"), rows(), "Lyon has no column 'sx'"),
        (Describe(["age"], where="agee > 50"), rows(), "Lyon has no column 'agee'"),
        (Describe(["age"], by="sex", ranks=["age"]), rows(age=TEXT), "Lyon, row 40, column 'age': '61,5' is a number"),
        (GLM("died ~ age + C(war)", "binomial"), rows(), "Lyon has no column 'war'"),
        (GLM("died ~ age + C(sex)", "binomial"), rows(age=TEXT), "Lyon, row 40, column 'age': '61,5' is a number"),
        (GLM("died ~ ward", "binomial"), rows(), r"column 'ward': it is not a number; write C\(ward\)"),
        (GLM("died ~ age", "binomial", weights="w"), rows(), "Lyon has no column 'w'"),
        (PCA(["age", "sex"]), rows(), "column 'sex': it is not a number"),
    ],
)
def test_a_column_that_an_analysis_cannot_read_is_named_before_it_runs(analysis: Any, frame: Any, said: str) -> None:
    fine = Describe(["age", "ward"], by="sex"), GLM("died ~ age + C(sex) + C(ward)", "binomial")
    check_site(fine, site(rows()))
    with pytest.raises(BadData, match=said):
        check_site([analysis], site(frame))


def test_gaps_that_make_analyses_differ_are_said_before_the_first() -> None:
    table, fit = Describe(["age", "sex"]), GLM("died ~ age + C(ward)", "binomial")
    said = gaps([table, fit], site(rows()))
    assert "the analyses are of different rows (ward in 7)" in said
    assert not gaps([table, fit], site(rows(), ("ward",)))
    assert not gaps([fit, fit], site(rows()))
    assert not gaps([Describe(["age", "ward"])], site(rows()))


def test_a_refusal_for_gaps_says_what_helps_afterwards() -> None:
    study = Study({"Lyon": rows(where=np.where(np.arange(80) < 3, None, "a"))})
    study.pca(["age", "died"])
    with pytest.raises(Withheld, match=r"before the first figure leaves; later this helps only if the site's"):
        study.pca(["age", "died"], where="where == 'a'")


def test_the_sites_whose_column_is_text_are_named() -> None:
    study = Study({"Lyon": rows(age=TEXT), "Graz": rows(), "Bern": rows(age=TEXT)})
    with pytest.raises(RecipeError, match="age is text at client 'Lyon', client 'Bern' and numbers at the others"):
        study.glm("died ~ age", "binomial")
