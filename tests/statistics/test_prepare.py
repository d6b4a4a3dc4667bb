"""Preprocessing fitted across sites is scikit-learn's on all rows; models keep it, and `predict` applies it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md

pytest.importorskip("formulaic")

from medley import recipe
from medley.rows.coding import counting
from medley.statistics import Prepare, Rules, Study
from support.hospitals import patients, sites

OPEN = Rules(rows=1, events=1, parameters=1.0)

COLUMNS = (
    "age: standardise",
    "bmi: mean, indicator, standardise",
    "stay: median, clip(0.5, 6), standardise",
    "years: fill(1.5), clip(0, 2)",
    "ward: mode, indicator, encode",
    "sex: encode",
)


def rows(n: int = 900) -> Any:
    """Patients with missing values, a fifth of some columns."""
    frame, g = patients(n), np.random.default_rng(5)
    for name in ("bmi", "stay", "years", "ward"):
        frame[name] = frame[name].where(g.random(n) > 0.2)
    return frame


def fitted(by: str = "turns", rules: Rules = OPEN, **how: Any) -> Any:
    return Study(sites(rows(), by), rules=rules, **how).prepare(COLUMNS)


def expected(frame: Any, median: float) -> np.ndarray:
    """The features by scikit-learn, with this median."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    col = lambda name: frame[[name]].to_numpy()
    numbers = [StandardScaler().fit_transform(col("age"))]
    mean = SimpleImputer(add_indicator=True).fit_transform(col("bmi"))
    numbers += [StandardScaler().fit(col("bmi")).transform(mean[:, :1]), mean[:, 1:]]
    stay = np.clip(np.where(np.isnan(col("stay")), median, col("stay")), 0.5, 6)
    numbers += [StandardScaler().fit(col("stay")).transform(stay)]
    numbers += [np.clip(frame[["years"]].fillna(1.5).to_numpy(), 0, 2)]
    ward = SimpleImputer(strategy="most_frequent").fit_transform(frame[["ward"]].astype(object))
    numbers += [OneHotEncoder(sparse_output=False).fit_transform(ward), frame[["ward"]].isna().to_numpy()]
    return np.concatenate([*numbers, OneHotEncoder(sparse_output=False).fit_transform(col("sex"))], 1).astype(float)


@pytest.mark.parametrize("by", ["turns", "blocks", "age"])
def test_features_are_those_of_scikit_learn_on_all_rows(by: str) -> None:
    frame, found = rows(), fitted(by)
    assert found.scaling.coding.features == (
        *("age", "bmi", "bmi missing", "stay", "years"),
        *("ward=a", "ward=b", "ward=c", "ward missing", "sex=F", "sex=M"),
    )
    median = found.scaling.coding.columns[2].fill
    assert abs(median - np.nanmedian(frame["stay"])) <= found.errors["stay"] < 0.1
    assert np.abs(found.frame(frame).to_numpy() - expected(frame, median)).max() < 1e-10
    assert found.cost.exchanges == 4


def test_features_under_secure_sums_are_the_same_within_their_resolution() -> None:
    frame, plain = rows(), fitted()
    secure = fitted(secure=md.SecureSum(bits=64, bound=2.0**40))
    assert np.abs(secure.frame(frame).to_numpy() - plain.frame(frame).to_numpy()).max() < 1e-6


@pytest.mark.parametrize("name", ["diabetes", "breast_cancer", "wine"])
@pytest.mark.parametrize("by", ["turns", "blocks", "sorted"])
def test_public_data_sets_are_standardised_as_pooled(name: str, by: str) -> None:
    from sklearn import datasets as embedded
    from sklearn.preprocessing import StandardScaler

    frame = getattr(embedded, f"load_{name}")(as_frame=True).data
    frame = frame if by != "sorted" else frame.sort_values(frame.columns[0])
    n = len(frame)
    ends = [0, n // 2, 3 * n // 4, n]
    cut = {f"s{k}": frame.iloc[k::3] if by == "turns" else frame.iloc[ends[k] : ends[k + 1]] for k in range(3)}
    found = Study(cut).prepare([f"{c}: standardise" for c in frame.columns])
    assert np.abs(found.frame(frame).to_numpy() - StandardScaler().fit_transform(frame)).max() < 1e-10


def test_what_is_unknown_or_missing_has_a_stated_meaning() -> None:
    import pandas as pd

    found = Study(sites(rows())).prepare(["sex: encode", "ward: indicator, encode", "age: mean"])
    new = pd.DataFrame({"sex": ["F", "X"], "ward": ["b", None], "age": [np.nan, 3.0], "more": [1, 2]})
    mean = rows()["age"].mean()
    assert found.frame(new).to_numpy() == pytest.approx(np.array([[1, 0, 0, 1, 0, 0, mean], [0, 0, 0, 0, 0, 1, 3.0]]))
    with pytest.raises(
        md.BadData, match="row 1, column 'sex': the cell is missing, but its preparation does not fill it in"
    ):
        found.frame(new.assign(sex=["F", None]))
    with pytest.raises(md.BadData, match="there is no column 'age', which the preparation reads"):
        found.frame(new[["sex", "ward"]])
    with pytest.raises(md.BadData, match="row 0, column 'age': 'old' is not a number; if it holds categories"):
        found.frame(new.assign(age=["old", 3]))
    assert "sex: categories F, M, else 0 in each" in found.summary()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (
            ["f", "m", "m"],
            r"0 values are known categories, 3 are not \('m' in 2, 'f' in 1\); known are 'F', 'M'; "
            "recode 'f' as 'F', 'm' as 'M', which differ by case or spaces only",
        ),
        (["male", "female"], "0 values are .*, 2 are not .*; recode them, or prepare with these rows, too"),
        (["m"], "0 .*recode 'm' as 'M'"),
    ],
)
def test_a_column_without_a_known_category_is_refused(values: list[str], match: str) -> None:
    import pandas as pd

    found = Study(sites(rows())).prepare(["sex: encode"])
    with pytest.raises(md.BadData, match=rf"column 'sex': {match}") as e:
        found.frame(pd.DataFrame({"sex": values}))
    assert e.value.row == 0
    with pytest.raises(md.BadData, match=match):
        md.datasets.frame(pd.DataFrame({"sex": values, "y": range(len(values))}), "y", prepared=found)


def test_known_and_unknown_categories_are_counted(caplog: Any) -> None:
    import pandas as pd

    found = Study(sites(rows())).prepare(["sex: encode", "ward: indicator, encode"])
    caplog.clear()
    caplog.set_level("INFO")
    new = pd.DataFrame({"sex": [" F", "M", "m", "X", "X"], "ward": ["a", "b\t", None, "  ", "c"], "y": range(5)})
    with counting() as counts:
        md.datasets.frame(new, "y", prepared=found)
    one, two = (r.getMessage() for r in caplog.records if "known categories" in r.getMessage())
    assert "column 'sex': 2 values are known categories, 3 are not ('X' in 2, 'm' in 1)" in one
    assert "recode 'm' as 'M', which differ by case or spaces only; a row whose" in one
    assert "column 'ward': 3 values are known categories, 0 are not" in two
    assert {name: n.tolist() for name, n in counts.items()} == {"sex": [2, 3, 0], "ward": [3, 0, 2]}
    assert found.frame(new[3:4]).to_numpy().tolist() == [[0, 0, 0, 0, 0, 1]]  # a single row may have a new category


def test_numbers_that_are_categories_are_known_by_their_texts() -> None:
    import pandas as pd

    made = {name: frame.assign(stage=np.arange(len(frame)) % 3) for name, frame in sites(rows()).items()}
    found = Study(made).prepare(["stage: mode, encode"])
    assert found.scaling.coding.features == ("stage=0", "stage=1", "stage=2")
    for stage in ([2, 0], [2.0, None], ["2", None], pd.array([2, None], dtype="Int64")):
        assert found.frame(pd.DataFrame({"stage": stage})).to_numpy().tolist() == [[0, 0, 1], [1, 0, 0]]


# What leaves, under a site's rules.


def test_a_category_of_few_rows_is_unknown_and_its_mode_withheld() -> None:
    frame = rows().assign(tag=np.where(np.arange(900) < 12, "rare", "usual"))  # two rows at each site
    found = Study(sites(frame)).prepare(["tag: encode"])
    assert found.scaling.coding.features == ("tag=usual",)
    with pytest.raises(md.BadData, match="the mode of tag is withheld by a site in a category; name it, fill"):
        Study(sites(frame)).prepare(["tag: mode, encode"])
    assert Study(sites(frame)).prepare(["tag: fill(usual), encode"]).scaling.coding.columns[0].fill == "usual"
    alone = frame.assign(tag=np.arange(900).astype(str))
    with pytest.raises(md.BadData, match="tag has no category that may leave a site"):
        Study(sites(alone)).prepare(["tag: encode"])


@pytest.mark.parametrize("first", ["prepare", "describe", "glm"])
def test_a_difference_of_two_preparations_or_tables_is_withheld(first: str) -> None:
    """Their means are sums of the same column, in the same register."""
    frame = rows().assign(pay=np.arange(900.0))
    where = "pay < 898"
    asks: dict[str, Any] = {
        "prepare": lambda s, w: s.prepare(["pay: standardise"], where=w),
        "describe": lambda s, w: s.describe(["pay"], where=w),
        "glm": lambda s, w: s.glm("pay ~ 1", where=w),
    }
    for second in asks:
        study = Study({"Bern": frame})
        asks[first](study, "")
        with pytest.raises(md.BadData, match="Bern withholds: where="):
            asks[second](study, where)


def test_the_mean_of_an_indicator_of_one_is_withheld() -> None:
    frame = rows().assign(flag=1.0 * (np.arange(900) == 7))
    with pytest.raises(md.BadData, match="a site withholds the sums of flag"):
        Study({"Bern": frame}).prepare(["flag: standardise"])
    found = Study({"Bern": frame}, rules=OPEN).prepare(["flag: standardise"])
    assert float(found.scaling.mean[0, 0]) == pytest.approx(1 / 900)


def test_a_median_is_a_curve_and_nothing_else_is() -> None:
    study = Study({"Bern": rows()})
    study.prepare(["stay: mean, standardise"])
    assert not [key for key in study.sites[0].register.sets if "curve" in key]
    study.prepare(["stay: median"])
    with pytest.raises(md.BadData, match="the median of stay is withheld by a site, because another curve"):
        study.prepare(["stay: median"], where="age < 60")


def test_columns_without_figures_ask_no_site_for_them() -> None:
    study = Study({"Bern": rows()})
    found = study.prepare(["years: fill(1.5), clip(0, 2)"])
    assert "years" not in study.sites[0].register.sets
    assert found.frame(rows())["years"].max() == 2


# Models keep it.


def federation(frame: Any, prepared: Any, **how: Any) -> Any:
    data = md.datasets.frame(frame.assign(site=np.arange(len(frame)) % 3), "died", "site", prepared=prepared)
    return md.Federation(md.problems.Network(torch.nn.Linear(len(data.features), 2)), clients=data, **how)


def test_predict_takes_raw_rows(tmp_path: Path) -> None:
    frame, found = rows(), fitted()
    fed = federation(frame, found)
    result = md.run(md.FedAvg(), fed, 3, progress=False)
    X = found.frame(frame).to_numpy()
    assert torch.equal(result.outputs(frame), result.outputs(X.astype(np.float32)))
    assert result.features == found.scaling.coding.features
    again = md.Result.load(result.save(tmp_path / "run"))
    assert (again.predict(frame.iloc[::-1]) == result.predict(frame)[::-1]).all()
    new = [
        frame.assign(ward=[*["elsewhere"] * (len(frame) - 1), "a"]),
        frame.assign(ward=[*["new"] * (len(frame) - 1), "a"]),
    ]
    assert (again.predict(new[0]) == result.predict(new[1])).all()
    with pytest.raises(md.BadData, match="'bmi', which the preparation reads"):
        again.predict(frame.drop(columns="bmi"))
    other = federation(frame, Study(sites(frame)).prepare(["age: standardise", *COLUMNS[1:]], where="age < 60"))
    with pytest.raises(md.RecipeError, match="standardised differently"):
        md.run(md.FedAvg(), other, 1, init=result, progress=False)


def test_a_file_of_it_is_read_by_frames_csv_files_and_recipes(tmp_path: Path) -> None:
    frame, found = rows(), fitted()
    path = found.save(tmp_path / "prepared.json")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    a = md.datasets.frame(frame, "died", prepared=found)
    b = md.datasets.frame(frame, "died", prepared=path)
    c = md.datasets.csv(tmp_path / "rows.csv", "died", keys=["sex"], prepared=path)
    assert torch.equal(a.X, b.X)
    assert torch.equal(a.X, c.X)
    assert a.scaling is not None
    assert a.scaling.same(c.scaling)
    assert [*c.keys] == ["sex"]
    text = (
        '[data]\nname = "csv"\npath = "rows.csv"\ntarget = "died"\nprepared = "prepared.json"\n'
        '[problem]\nkind = "Logistic"\n[partition]\nkind = "IID"\nclients = 3\n[[methods]]\nkind = "FedAvg"\n'
    )
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    data = recipe.load(tmp_path / "recipe.toml").federation().data
    assert isinstance(data, md.datasets.Dataset)
    assert torch.equal(data.X, a.X)
    kept = md.datasets.saved(md.datasets.disk.save(a, tmp_path / "kept"))
    assert a.scaling.same(kept.scaling)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no preparation"),
        ("{}", "holds no preparation"),
        ('{"mean": [[0.0]], "deviation": [[1.0]]}', "it has other columns than features"),
        ('{"mean": [[0.0]], "deviation": [[1.0]], "coding": [{"name": "a", "indicator": true}]}', "other columns"),
        ('{"mean": [[0.0]], "deviation": [[1.0]], "coding": [7]}', "holds no preparation"),
        ('{"mean": [[0.0]], "deviation": [[1.0]], "coding": [{"name": "a", "fill": "b"}]}', "holds no preparation"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(md.BadData, match=said):
        md.datasets.frame(rows(), "died", prepared=path)


def test_a_target_is_no_input_of_its_own(tmp_path: Path) -> None:
    frame, found = rows(90), fitted()
    frame.dropna().to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(md.RecipeError, match="prepared= would make an input of 'sex', the target"):
        md.datasets.frame(frame, "sex", prepared=found)
    with pytest.raises(md.RecipeError, match="prepared= would make an input of 'sex', the target"):
        md.datasets.csv(tmp_path / "rows.csv", "sex", prepared=found)


def test_what_is_no_preparation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(md.RecipeError, match=r"is not a preparation; give the result of study\.prepare"):
        md.datasets.frame(rows(), "died", prepared=3)
    found = fitted()
    with pytest.raises(md.RecipeError, match="says which columns are inputs; leave features= out"):
        md.datasets.frame(rows(), "died", features=["age"], prepared=found)
    path = found.save(tmp_path / "p.json")
    rows()[["age", "died"]].to_csv(tmp_path / "few.csv", index=False)
    with pytest.raises(md.RecipeError, match="the header has no 'bmi'"):
        md.datasets.csv(tmp_path / "few.csv", "died", prepared=path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age", "write a column, a colon and its steps"),
        ("age:", "write a column, a colon"),
        ("age: standardise; clip(1, 2)", "write a column, a colon"),
        ("age: standardize", "standardize is not understood; steps are mean, median, mode, fill"),
        ("age: clip(1)", "clip is not understood"),
        ("age: clip(2, 1)", "give numbers, the smaller bound first"),
        ("age: fill(old)", "give numbers"),
        ("age: fill(nan)", "give numbers"),
        ("age: mean, median", "mean and median both fill in"),
        ("age: mode", "mode is for categories"),
        ("age: indicator, standardise", "indicator goes with mean, median or fill"),
        ("sex: encode, standardise", "standardise is for numbers, and encode for categories"),
    ],
)
def test_steps_that_do_not_go_together_are_refused(text: str, said: str) -> None:
    with pytest.raises(md.RecipeError, match=said):
        Prepare((text,))
    with pytest.raises(md.RecipeError, match="age is there twice"):
        Prepare(("age: mean", "age: standardise"))


def test_a_recipe_of_it() -> None:
    text = f'[[study]]\nkind = "prepare"\ncolumns = {json.dumps(COLUMNS)}\n'
    (analysis,) = recipe.loads(text).analyses()
    assert analysis == Prepare(COLUMNS)


def test_steps_for_numbers_are_refused_for_text() -> None:
    for steps in ("standardise", "mean", "median"):
        with pytest.raises(md.BadData, match="prepare: ward is text at a site, and its steps are for numbers"):
            Study(sites(rows()), rules=OPEN).prepare([f"ward: {steps}"])


def test_a_histogram_leaves_of_columns_with_a_median_only() -> None:
    """So a curve of another column may still leave in a later analysis."""
    study = Study(sites(rows()))
    study.prepare(["age: standardise", "stay: median"])
    keys = [key.split(" curve by ") for site in study.sites.values() for key in site.register.sets]
    assert {key[0] for key in keys if len(key) == 2} == {"stay"}
    assert study.describe(["age"], quantiles=[0.1]).cells["age"][""].quantiles is not None


@pytest.mark.parametrize("wrong", [{"deviation": [[0.0]]}, {"deviation": [[-1.0]]}, {"mean": [[float("nan")]]}])
def test_a_file_of_numbers_that_scale_to_none_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    path = Study(sites(rows()), rules=OPEN).prepare(["age: standardise"]).save(tmp_path / "prepared.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(md.BadData, match=r"holds no preparation .*means are finite, and deviations above 0"):
        md.datasets.frame(rows(), "event", prepared=path)
