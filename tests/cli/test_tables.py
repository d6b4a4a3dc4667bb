"""Commands on tables of this machine: predict, study, prepare."""

from __future__ import annotations

import csv
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import medley as md
from medley import cli, recipe
from medley.statistics import Study

STUDY = """
[[study]]
kind = "describe"
columns = ["age", "ward"]
complete = ["age"]
[[study]]
kind = "glm"
formula = "age ~ C(ill) + C(ward)"
[[study]]
kind = "prepare"
columns = ["age: standardise", "ward: encode"]
"""

RECIPE = """
[problem]
kind = "Logistic"
[data]
name = "csv"
path = "all.csv"
target = "ill"
client = "site"
prepared = "prepared.json"
split = 0.2
[partition]
kind = "ByKey"
key = "site"
[pace]
lr = 0.5
[[methods]]
kind = "FedAvg"
[run]
rounds = 2
"""


def medley(*words: object) -> Result:
    return CliRunner().invoke(cli.app, [str(w) for w in words])


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    frames = {}
    for name, n in {"Bern": 400, "Zug": 300}.items():
        age = rng.normal(60, 10, n).round()
        ill = rng.random(n) < 1 / (1 + np.exp(-(age - 60) / 10))
        frames[name] = pd.DataFrame({"age": age, "ward": rng.choice(["a", "b"], n), "ill": np.where(ill, "yes", "no")})
        frames[name].to_csv(f"{name}.csv", index=False)
    pd.concat([f.assign(site=name) for name, f in frames.items()]).to_csv("all.csv", index=False)
    Path("study.toml").write_text(STUDY)
    Path("my.toml").write_text(RECIPE)
    return frames


@pytest.mark.parametrize("words", [("Bern.csv", "Zug.csv"), ("all.csv", "--site", "site")])
def test_a_study_of_files_has_the_figures_of_the_same_recipe_in_python(sites, words) -> None:
    done = medley("study", "study.toml", *words, "--save", "results")
    assert done.exit_code == 0, done.output
    r = recipe.load("study.toml")
    study = Study({name: frame for name, frame in sites.items()}, complete=r.complete())
    for k, analysis in enumerate(r.analyses(), 1):
        result = study.run(analysis)
        assert Path(f"results/{k}.txt").read_text() == f"{result.summary()}\n\n{result.pooling}\n"
        assert result.pooling.line in done.stdout
    names = {p.name for p in Path("results").iterdir()}
    assert names == {"1.tex", "1.txt", "2.tex", "2.txt", "3.txt", "prepared.json"}


def test_prepare_chooses_steps_by_type_and_predict_reads_raw_rows(sites) -> None:
    done = medley("prepare", "Bern.csv", "Zug.csv", "--leave-out", "ill")
    assert done.exit_code == 0, done.output
    assert 'columns = ["age: standardise", "ward: encode"]' in done.stdout
    assert medley("run", "my.toml", "--save", "run").exit_code == 0
    done = medley("predict", "run", "Zug.csv")
    assert "not used, because the model was not trained on it: ill" in done.stderr
    table = [*csv.DictReader(io.StringIO(done.stdout))]
    result = md.Result.load("run")
    assert result.scaling is not None
    assert result.scaling.coding.names == ("age", "ward")
    assert [row["prediction"] for row in table] == result.predict(sites["Zug"]).tolist()
    shares = result.predict_proba(sites["Zug"])
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose([float(row["probability of yes"]) for row in table], shares[:, 1], atol=1e-6)
    assert result.labels == ("no", "yes")
    assert ((shares[:, 1] > 0.5) == (result.predict(sites["Zug"]) == "yes")).all()
    shown = json.loads(medley("show", "run", "--json").stdout)
    assert shown["runs"][0]["figures"]["round"] == 2
    assert shown["runs"][0]["settings"]["client_names"] == ["Bern", "Zug"]


def test_predict_takes_code_of_ones_own_by_name(sites) -> None:
    Path("nets.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.one = nn.Linear(4, 2)\n    def forward(self, x):\n        return self.one(x)\n"
    )
    fed = md.Federation(md.problems.Network(_own("nets", "Net")()), clients=[(np.eye(4), [0, 1, 0, 1])])
    md.run(md.FedAvg(), fed, 1, progress=False).save("own")
    del sys.modules["nets"]
    Path("eye.csv").write_text("a,b,c,d\n" + "1,0,0,0\n" * 3)
    assert medley("predict", "own", "eye.csv").stderr.count("medley predict --allow-code nets:Net") == 1
    done = medley("predict", "own", "eye.csv", "--allow-code", "nets:Net")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 4


def _own(module: str, name: str) -> Any:
    """A class of a module in the working folder."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    finally:
        sys.path.pop(0)


def test_predict_counts_unknown_categories_and_needs_every_column(sites, caplog) -> None:
    medley("prepare", "Bern.csv", "Zug.csv", "--leave-out", "ill")
    medley("run", "my.toml", "--save", "run")
    Path("new.csv").write_text("age,ward\n50,a\n60,c\n70,c\n")
    assert medley("predict", "run", "new.csv", "--save", "out.csv").exit_code == 0
    assert "1 values are known categories, 2 are not ('c' in 2)" in caplog.text
    assert len(Path("out.csv").read_text().splitlines()) == 4
    Path("new.csv").write_text("age\n50\n")
    done = medley("predict", "run", "new.csv")
    assert (done.exit_code, "there is no column 'ward', which the preparation reads" in done.stderr) == (2, True)
    Path("new.csv").write_text("age;ward\n50;a\n")
    assert "name the sign, --delimiter ';'" in medley("predict", "run", "new.csv").stderr
    assert medley("predict", "run", "new.csv", "--delimiter", ";").exit_code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("study", "study.toml", "Bern.csv", "none.csv"), "there is no file none.csv; give a CSV or Parquet file"),
        (("study", "study.toml", "Bern.csv", "Zug.csv", "--site", "ward"), "give one file, or leave --site out"),
        (("study", "study.toml", "all.csv", "--site", "sit"), "Did you mean 'site'?"),
        (("study", "my.toml", "Bern.csv"), "my.toml: there is no [[study]]"),
        (("run", "study.toml"), "by medley study study.toml A.csv B.csv"),
        (("prepare", "Bern.csv", "--leave-out", "il"), "Did you mean 'ill'?"),
        (("prepare", "Bern.csv", "--column", "age"), "write a column, a colon and its steps"),
        (("predict", "run", "Bern.csv"), "run holds no result: give the folder of a finished run"),
    ],
)
def test_refusals(sites, words, says) -> None:
    done = medley(*words)
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr


def test_a_column_of_identifiers_is_refused_by_name() -> None:
    rows = {"id": [f"p{i}" for i in range(40)], "age": [*map(float, range(40))]}
    with pytest.raises(md.RecipeError, match=r"id has 40 different texts in 40 rows.*leave_out=\['id'\]"):
        Study({"A": rows}).prepare()
    prepared = Study({"A": rows}).prepare(leave_out=["id"])
    assert prepared.analysis.columns == ("age: standardise",)


def with_cells(name: str, changes: dict[str, list[str]]) -> None:
    """A file of twelve rows with these columns."""
    columns = {"age": [str(30 + i) for i in range(12)]} | changes
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    Path(name).write_text("\n".join(lines) + "\n")


def test_cells_of_files_are_read_as_training_reads_them(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("A.csv", "B.csv"):
        with_cells(name, {"ward": ["None", "B"] * 6, "code": ["01", "02"] * 6})
    result = medley("prepare", "A.csv", "B.csv")
    assert result.exit_code == 0, result.output
    levels = {c["name"]: c["levels"] for c in json.loads(Path("prepared.json").read_text())["coding"]}
    assert levels == {"age": None, "ward": ["B", "None"], "code": ["01", "02"]}
    assert "A.csv: code is read as text, because '01' begins with 0" in result.stderr
    assert "'None' is taken for a category" in caplog.text


def test_a_text_among_numbers_of_a_file_is_named_with_its_row(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_cells("A.csv", {"bmi": ["21.5"] * 5 + ["NA"] + ["24"] * 6})
    result = medley("prepare", "A.csv")
    assert result.exit_code == 2
    assert "A.csv, row 5, column 'bmi': 'NA' says that there is no number; make it empty" in result.stderr


def test_predictions_have_all_digits_and_a_text_among_inputs_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(40, 2))
    data = [(X[:20], 1e7 + 1234.567 * X[:20, 0]), (X[20:], 1e7 + 1234.567 * X[20:, 0])]
    fed = md.Federation(md.problems.LeastSquares(), clients=data, pace=md.scenarios.Pace(lr=0.1))
    run = md.run(md.FedAvg(), fed, 3, checkpoint="run")
    Path("rows.csv").write_text("u,v\n1,2\n4,-1\n")
    assert medley("predict", "run", "rows.csv", "--save", "out.csv").exit_code == 0
    saved = pd.read_csv("out.csv")["prediction"].to_numpy()
    assert saved.tolist() == run.predict(np.array([[1.0, 2.0], [4.0, -1.0]])).tolist()
    Path("rows.csv").write_text("u,v\n1,2\n4,x\n")
    result = medley("predict", "run", "rows.csv")
    assert result.exit_code == 2
    assert "row 1, column 'v': 'x' is not a number" in result.stderr


def test_predict_reads_empty_cells_where_the_forest_does(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["u", "v"])
    frame["smokes"] = pd.Series([True, False, None] * 20, dtype=object)
    frame[["u", "v"]] = frame[["u", "v"]].mask(rng.random((60, 2)) < 0.3)
    frame["ill"] = np.where(frame["u"].fillna(0) > 0, "yes", "no")
    rows = frame.drop(columns="ill")
    rows.to_csv("rows.csv", index=False)
    rows.to_parquet("rows.parquet")
    trees = md.problems.Trees("logistic", trees=2, depth=2, missing=True)
    data = md.datasets.frame(frame, "ill", missing=True)
    run = md.run(md.Boost(), md.Federation(trees, data=data, partition=md.partitions.IID(clients=2)), 2, checkpoint="a")
    plain = (np.asarray(rows, float), frame["ill"])
    md.run(md.Boost(), md.Federation(trees, clients=[plain]), 2, checkpoint="b")
    full = (rows.fillna(0).astype(float), frame["ill"] == "yes")
    md.run(md.Boost(), md.Federation(md.problems.Trees("logistic", trees=2), clients=[full]), 2, checkpoint="c")
    for folder in ("a", "b"):
        for file in ("rows.csv", "rows.parquet"):
            done = medley("predict", folder, file)
            assert done.exit_code == 0, done.stderr
            table = [*csv.DictReader(io.StringIO(done.stdout))]
            assert [row["prediction"] for row in table] == run.predict(rows).tolist()
    done = medley("predict", "c", "rows.csv")
    assert done.exit_code == 2
    assert "column 'u': it is empty; fill it in" in done.stderr or "column 'smokes': it is empty" in done.stderr
