"""Names and scaling of features, from the data set to predictions on new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md

pd = pytest.importorskip("pandas")

P = md.problems.Logistic(mu=0.001, intercept=True)
RNG = np.random.default_rng(0)


def wards(n: int = 400) -> Any:
    """Rows whose columns have scales of their own: who swaps or forgets to scale them is wrong on most rows."""
    table = pd.DataFrame({"age": 50 + 15 * RNG.normal(size=n), "lab": 1000 * RNG.normal(size=n)})
    table["icu"] = RNG.random(n) < 0.3
    risk = (table.age - 50) / 15 - table["lab"] / 1000 + table.icu
    table["died"] = np.where(risk > 0, "yes", "no")
    return table.assign(hospital=np.repeat(["north", "south"], n // 2))


def trained(tmp_path: Path | None = None) -> md.Result:
    data = md.datasets.frame(wards(), target="died", client="hospital").split(0.2).standardise()
    assert data.features == ("age", "lab", "icu")
    result = md.run(md.Newton(), md.Federation(P, clients=data), 5, progress=False)
    return md.Result.load(result.save(tmp_path)) if tmp_path else result


def test_a_frame_of_raw_rows_is_taken_by_name_and_scaled_as_training_was(tmp_path: Path) -> None:
    result, new = trained(), wards()
    raw, truth = new[["age", "lab", "icu"]], new["died"].to_numpy()
    right = (result.predict(raw) == truth).mean()
    assert right > 0.97
    assert (result.predict(raw[["icu", "lab", "age"]]) == result.predict(raw)).all()
    assert (result.predict(raw.to_numpy(float)) == truth).mean() < 0.8  # arrays are taken as they are
    loaded = trained(tmp_path)
    assert loaded.features == ("age", "lab", "icu")
    assert (loaded.predict(raw) == truth).mean() > 0.97


def test_scaled_frames_have_the_bits_of_training_rows() -> None:
    table = wards()
    data = md.datasets.frame(table, target="died", client="hospital").standardise()
    result = md.run(md.Newton(), md.Federation(P, clients=data), 3, progress=False)
    assert torch.equal(result.outputs(table[["lab", "icu", "age"]]), result.outputs(data.X))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t[["age", "icu"]], "the frame has no 'lab', which training had.*reindex"),
        (
            lambda t: t[["age", "lab"]].assign(ward="icu"),
            "no 'icu', which training had, and has 'ward', which training did not have",
        ),
        (lambda t: t, r"training had no 'died', 'hospital'; leave such columns out, frame\[list\(result.features\)\]"),
        (lambda t: t[["age", "lab"]].assign(icu="M"), "row 0, column 'icu': 'M' is not a number.*get_dummies"),
        (
            lambda t: t[["age", "lab", "icu"]].assign(lab=t.lab.where(t.index != 7)),
            "row 7, column 'lab': nan is not a number; fill it",
        ),
        (lambda t: t[["age", "lab"]].to_numpy(), "rows have 2 columns, training rows 3: age, lab, icu"),
        (lambda t: np.zeros(3), r"X has shape \[3\]; give rows"),
        (lambda t: np.array([[0.0, np.nan, 1.0]]), "row 0, column 1: nan is not finite"),
        (lambda t: np.array([["a", "b", "c"]]), "row 0, column 0: a is text; code categories"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(change: Any, said: str) -> None:
    with pytest.raises(md.BadData, match=said):
        trained().predict(change(wards()))


@pytest.mark.shapes
def test_arrays_of_another_width_get_a_sentence_of_ours() -> None:
    clients = [(RNG.normal(size=(30, 4)), np.arange(30) % 2)] * 2
    result = md.run(md.Newton(), md.Federation(P, clients=clients), 1, progress=False)
    assert result.features == ()
    with pytest.raises(
        md.BadData, match=r"rows of shape \[3\] do not fit the model, whose first layer takes 4 columns"
    ):
        result.predict(np.zeros((2, 3)))


def test_names_come_with_frames_wherever_they_are_given(tmp_path: Path) -> None:
    table = wards()
    X, y = table[["age", "lab", "icu"]], table["died"]
    named = ("age", "lab", "icu")
    assert md.datasets.Dataset(X, y).features == named
    assert md.Federation(P, clients=[(X, y), (X, y)]).data.features == named
    with pytest.raises(md.BadData, match="client 1: X has no names of columns, and other clients' have: age, lab, icu"):
        md.Federation(P, clients=[(X, y), (X.to_numpy(float), y)])
    unnamed = X.set_axis(range(3), axis=1)
    assert md.Federation(P, clients=[(unnamed, y), (X.to_numpy(float), y)]).data.features == ()
    with pytest.raises(md.BadData, match="two columns 'age'"):
        md.Federation(P, clients=[(X.set_axis(["age", "age", "icu"], axis=1), y)])
    usual = table.rename(columns={"died": "label", "hospital": "client"})
    assert md.Federation(P, clients=usual).data.features == named
    assert md.Federation(P, clients=[part.drop(columns="client") for _, part in usual.groupby("client")]).data.features
    table.astype({"icu": int}).to_csv(tmp_path / "wards.csv", index=False)
    read = md.datasets.csv(tmp_path / "wards.csv", target="died", keys=["hospital"]).standardise()
    assert read.features == named
    kept = md.datasets.saved(md.datasets.disk.save(read, tmp_path / "kept"))
    assert kept.features == named
    assert kept.scaling is not None
    assert kept.scaling.same(read.scaling)
    assert read.map(torch.tanh).features == ()  # the names would not be those of tanh(age)
    swapped = md.Federation(P, clients=[(X, y), (X[["lab", "age", "icu"]], y)], test=(X[["icu", "lab", "age"]], y))
    assert torch.equal(swapped.data.X[len(X) :], swapped.data.X[: len(X)])
    assert torch.equal(swapped.data.X_test, swapped.data.X[: len(X)])
    with pytest.raises(
        md.BadData,
        match="client 1: the frame lacks icu and adds ward, of the columns age, lab, icu; give all clients the",
    ):
        md.Federation(P, clients=[(X, y), (X.rename(columns={"icu": "ward"}), y)])
    with pytest.raises(md.BadData, match="X_test has the columns lab, age, icu, X age, lab, icu"):
        md.datasets.Dataset(X, y, X[["lab", "age", "icu"]], y)


def test_names_and_scaling_are_no_part_of_the_identity_of_a_run() -> None:
    data = md.datasets.frame(wards(), target="died", client="hospital")
    bare = md.datasets.Dataset(data.X, data.y, classes=2, keys=data.keys, name="frame", labels=data.labels)
    feds = [md.Federation(P, clients=d) for d in (data, bare)]
    assert feds[0].identity() == feds[1].identity()


def test_standardising_twice_is_one_scaling() -> None:
    data = md.datasets.frame(wards(), target="died", client="hospital")
    twice = data.standardise().standardise()
    assert twice.scaling is not None
    assert torch.allclose(twice.scaling(data.X), twice.X, atol=1e-5)


def test_later_test_rows_are_taken_by_name_and_must_have_the_scale_of_training() -> None:
    data = md.datasets.frame(wards(), target="died", client="hospital").standardise()
    later = wards()[["icu", "age", "lab", "died", "hospital"]]
    rows = md.datasets.frame(later, target="died", client="hospital")
    with pytest.raises(md.BadData, match=r"the test rows are not.*standardise\(like=data\)"):
        md.Federation(P, clients=data, test=rows)
    lacking = md.datasets.frame(later.drop(columns="icu"), target="died", client="hospital")
    with pytest.raises(md.BadData, match="lacks icu; give the columns of the training rows"):
        md.Federation(P, clients=data, test=lacking)
    ordered = md.datasets.frame(later[list(wards().columns)], target="died", client="hospital")
    fed = md.Federation(P, clients=data, test=ordered.standardise(like=data))
    assert md.run(md.Newton(), fed, 4, progress=False).summary["accuracy"] > 0.97
    plain = md.datasets.frame(wards(), target="died", client="hospital")
    swapped = md.Federation(P, clients=plain, test=rows)
    assert torch.equal(swapped.data.X_test[:, 2], rows.X[:, 0])
    with pytest.raises(md.RecipeError, match="the data set in like= is not standardised"):
        rows.standardise(like=plain)


def test_columns_that_differ_are_named_at_every_door() -> None:
    table = wards().drop(columns="hospital")
    data = md.datasets.frame(table, target="died").standardise()
    usual = table.rename(columns={"died": "label"})
    of = {"data": data, "partition": md.partitions.IID(2)}
    with pytest.raises(md.BadData, match="lacks icu; give the columns"):
        md.Federation(P, **of, test=usual.drop(columns="icu"))
    with pytest.raises(md.BadData, match="adds ward; give the columns"):
        md.Federation(P, **of, test=usual.assign(ward=1))
    with pytest.raises(md.BadData, match=r"standardise\(like=.*shape \[3\], but rows of frame \[2\]"):
        md.datasets.frame(table.drop(columns="icu"), "died").standardise(like=data)
    with pytest.raises(md.BadData, match="lacks icu and adds ward"):
        md.datasets.frame(table.rename(columns={"icu": "ward"}), "died").standardise(like=data)
    bare = md.datasets.Dataset(table[["age", "lab", "icu"]].to_numpy(float), table["died"].to_numpy())
    with pytest.raises(md.BadData, match="the training rows are standardised, but the test rows are not"):
        md.Federation(P, **of, test=bare)
    assert md.Federation(P, **of, test=bare.standardise(like=data)).data.X_test is not None


def test_arrays_beside_standardised_rows_are_taken_as_they_are_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = wards().drop(columns="hospital")
    data = md.datasets.frame(table, target="died").standardise()
    with caplog.at_level("WARNING", "medley"):
        md.Federation(P, data=data, partition=md.partitions.IID(2), test=(data.X, data.y))
    assert "these rows are already scaled in the same way" in caplog.text


def test_scaling_without_names_is_applied_to_a_frame() -> None:
    table = wards()
    rows = table[["age", "lab", "icu"]]
    data = md.datasets.Dataset(rows.to_numpy(float), table["died"].to_numpy()).standardise()
    result = md.run(md.Newton(), md.Federation(P, data=data, partition=md.partitions.IID(2)), 6, progress=False)
    assert (result.predict(rows) == table["died"]).mean() > 0.97
    with pytest.raises(md.BadData, match="the frame has 2 columns, but the training rows had 3"):
        result.predict(rows[["age", "lab"]])


def test_a_run_does_not_begin_at_a_result_of_other_columns(tmp_path: Path) -> None:
    table = wards().drop(columns="hospital")
    of = {"partition": md.partitions.IID(2)}
    fed = md.Federation(P, data=md.datasets.frame(table, "died").standardise(), **of)
    swapped = md.datasets.frame(table[["lab", "age", "icu", "died"]], "died").standardise()
    other = md.run(md.Newton(), md.Federation(P, data=swapped, **of), 4, progress=False)
    for init in (other, other.save(tmp_path / "run")):
        with pytest.raises(md.RecipeError, match="the result has them in the order lab, age, icu"):
            md.run(md.Newton(), fed, 1, init=init, progress=False)
    same = md.run(md.Newton(), fed, 4, progress=False)
    again = md.run(md.Newton(), fed, 1, init=same, progress=False)
    assert again.history[0]["loss"] == pytest.approx(same.summary["loss"])


@pytest.mark.parametrize("names", [("home", "went"), (1, 2), (-1, 1), (0, 1)])
def test_raw_labels_of_test_rows_are_taken_by_name(names: tuple[Any, Any]) -> None:
    tables = [t.assign(died=np.where(t["died"] == "yes", names[1], names[0])) for t in (wards(), wards())]
    data = md.datasets.frame(tables[0].drop(columns="hospital"), target="died").standardise()
    later = tables[1].drop(columns="hospital").rename(columns={"died": "label"})
    of = {"data": data, "partition": md.partitions.IID(2)}
    numbered = torch.tensor([names.index(v) for v in later["label"]])
    for y in (None, later["label"], *([numbered] if isinstance(names[0], str) else [])):
        test = later if y is None else (later.drop(columns="label"), y)
        result = md.run(md.Newton(), md.Federation(P, **of, test=test), 6, progress=False)
        right = (result.predict(later.drop(columns="label")) == later["label"]).mean()
        assert result.summary["accuracy"] == pytest.approx(float(right))
        assert right > 0.97


def test_whole_numbers_of_test_rows_have_the_training_rows_coding(caplog: pytest.LogCaptureFixture) -> None:
    table = wards().drop(columns="hospital")
    data = md.datasets.frame(table.assign(died=1 + (table["died"] == "yes")), target="died")
    rows, softmax = table.drop(columns="died")[:5], md.problems.Softmax(mu=1e-2)
    of = {"data": data, "partition": md.partitions.IID(2)}
    for y, labels in (([1, 1, 1, 1, 1], (1, 2)), ([1, 2, 1, 2, 1], (1, 2)), ([0, 1, 0, 1, 0], ())):
        fed = md.Federation(softmax, **of, test=(rows, np.array(y)))
        assert (fed.data.labels, fed.data.classes) == (labels, len(labels) or 3)
        assert fed.data.y_test.tolist() == [v - bool(labels) for v in y]  # type: ignore[union-attr]
    assert "the test rows have the labels 0, which no training row has" in caplog.text
    with pytest.raises(md.BadData, match=r"Logistic has two classes, and frame has 3 labels: 0 \(0 rows\)"):
        md.Federation(P, **of, test=(rows, np.array([0, 1, 0, 1, 0])))


def test_places_and_labels_of_a_data_set_that_names_its_labels_are_asked_about() -> None:
    table = wards().drop(columns="hospital")
    X, y = table.drop(columns="died"), (table["died"] == "yes").to_numpy().astype(int)
    data = md.datasets.Dataset(X, y, labels=(1, 2))
    of = {"data": data, "partition": md.partitions.IID(2)}
    for numbers, places in (([1, 2], [0, 1]), ([0, 1], [0, 1])):
        assert md.Federation(P, **of, test=(X[:2], np.array(numbers))).data.y_test.tolist() == places  # type: ignore[union-attr]
    with pytest.raises(md.BadData, match="may be the labels 1, 2, or their numbers from 0; pass a frame"):
        md.Federation(P, **of, test=(X[:2], np.array([1, 1])))
    for test in (X[:2].assign(label=[1, 1]), md.datasets.Dataset(X[:2], [0, 0], labels=(1, 2))):
        assert md.Federation(P, **of, test=test).data.y_test.tolist() == [0, 0]  # type: ignore[union-attr]


def test_a_result_of_other_labels_or_another_scaling_begins_no_run(caplog: pytest.LogCaptureFixture) -> None:
    rows, y = np.random.default_rng(0).normal(size=(20, 2)), np.array(["ill", "well"] * 10)

    def federation(shift: float | None = None, labels: Any = ("ill", "well")) -> md.Federation:
        data = md.datasets.Dataset(rows + (shift or 0), y, labels=labels)
        data = data if shift is None else data.standardise()
        return md.Federation(md.problems.Logistic(mu=1e-2), data=data, partition=md.partitions.IID(2))

    plain, scaled = (md.run(md.FedAvg(), federation(shift), 1) for shift in (None, 0))
    for fed, init, said in (
        (
            federation(labels=("well", "ill")),
            plain,
            "the data has the labels 'well', 'ill', but the result has 'ill', 'well'",
        ),
        (federation(3), scaled, "was trained on rows that were standardised differently; pass"),
    ):
        with pytest.raises(md.RecipeError, match=said):
            md.run(md.FedAvg(), fed, 1, init=init)
        assert md.run(md.FedAvg(), fed, 0, init=init.x).x.tolist() == init.x.tolist()
    assert md.run(md.FedAvg(), federation(0), 0, init=scaled).x.tolist() == scaled.x.tolist()
    assert "the result's rows" not in caplog.text
    md.run(md.FedAvg(), federation(0), 0, init=plain)
    assert "the result's rows were not standardised, but these are standardised" in caplog.text
