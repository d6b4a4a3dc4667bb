"""Frames of pandas and data sets of Hugging Face, by the libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import medley as md

pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
P = md.problems.Logistic(mu=0.001, intercept=True)


def patients() -> Any:
    """300 patients of three hospitals, whose index is in disorder."""
    table = pd.DataFrame({"age": RNG.normal(0, 1, 300), "smoker": RNG.random(300) < 0.3})
    table["hospital"] = np.repeat(["north", "south", "west"], [200, 60, 40])
    table["died"] = np.where(table.age + table.smoker > 0.5, "yes", "no")
    return table.sample(frac=1, random_state=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: md.datasets.frame(t, target="dead"), "dead"),
        (
            lambda t: md.datasets.frame(t, target="died"),
            "row 0, column 'hospital': 'north' is not a number.*get_dummies",
        ),
        (
            lambda t: md.datasets.frame(t.assign(age=t.age.where(t.age < 2)), "died", "hospital"),
            "column 'age': nan is not a number",
        ),
        (
            lambda t: md.datasets.frame(t.assign(died=t.died.where(t.age < 2)), "died", "hospital"),
            "column 'died': there is no label",
        ),
        (lambda t: md.datasets.frame(t.iloc[:0], "died", "hospital"), "there are 0 rows of 2 features"),
        (lambda t: md.datasets.frame(pd.concat([t, t[["age"]]], axis=1), "died", "hospital"), "two columns 'age'"),
        (lambda t: md.datasets.frame(pd.concat([t, t[["hospital"]]], axis=1), "died", "hospital"), "two .*'hospital'"),
        (
            lambda t: md.datasets.frame(
                t.rename(columns={"age": "1"}).assign(**{"1": 0}).rename(columns={"smoker": 1}), "died", "hospital"
            ),
            "two columns '1'",
        ),
        (lambda t: md.datasets.frame(t, "died", "died"), "'died' cannot be both target and client"),
        (lambda t: md.Federation(P, clients=t), r"columns age, smoker, hospital, died: say which .*datasets\.frame"),
        (lambda t: md.Federation(P, clients=[t, t]), "client 0: a frame needs a column called label"),
        (lambda t: md.Federation(P, clients=md.datasets.frame(t[["age", "died"]], "died")), "the data set has 0 keys"),
        (
            lambda t: md.Federation(P, data=t.rename(columns={"died": "y"}), partition=md.partitions.ByKey("site")),
            "site",
        ),
    ],
)
def test_frames_that_do_not_fit_are_refused_by_column(change: Any, said: str) -> None:
    with pytest.raises(md.MedleyError, match=said):
        change(patients())


def test_columns_may_be_numbers() -> None:
    want = md.datasets.frame(table := patients(), target="died", client="hospital")
    numbered = table.rename(columns={"age": 0, "hospital": 2, "died": 3})
    d = md.datasets.frame(numbered, target=3, client=2)
    assert (d.features, list(d.keys), d.labels) == (("0", "smoker"), ["2"], want.labels)
    assert torch.equal(d.X, want.X)
    assert torch.equal(d.X, md.datasets.frame(numbered, "3", "2", features=[0, "smoker"]).X)


def test_figures_of_a_run_as_a_frame() -> None:
    r = md.run(md.Newton(), md.Federation(P, clients=md.datasets.frame(patients(), "died", "hospital")), 3)
    table = r.frame()
    assert list(table["round"]) == [0, 1, 2, 3]
    assert float(table["loss"].iloc[-1]) == r.history[-1]["loss"]


DIGITS = md.datasets.digits()


@pytest.fixture(name="hf")
def hugging_face() -> Any:
    """The package `datasets`, which `make test-extras` has."""
    found = pytest.importorskip("datasets")
    if not hasattr(found, "Dataset"):  # a folder of tests has the same name
        pytest.skip("the package `datasets` is not installed")
    return found


def test_hugging_face_data_sets_have_the_bits_of_arrays(hf: Any) -> None:
    parts = [slice(0, 200), slice(200, 330)]
    arrays = [(DIGITS.X[p], DIGITS.y[p]) for p in parts]
    sets = [hf.Dataset.from_dict({"image": X.tolist(), "label": y.tolist()}) for X, y in arrays]
    net = nn.Sequential(nn.Linear(64, 10))
    want = md.run(md.FedAvg(), md.Federation(md.problems.Network(net), clients=arrays), 2, engine="seq")
    for clients in (sets, [s.with_format("torch") for s in sets], [s.with_format("numpy") for s in sets]):
        fed = md.Federation(md.problems.Network(net), clients=clients)
        assert md.run(md.FedAvg(), fed, 2).digest == want.digest
    two = md.run(
        md.FedAvg(), md.Federation(md.problems.Network(net), clients=sets), 2, transport=md.transports.Processes(2)
    )
    assert two.digest == want.digest


def test_hugging_face_data_sets_are_dealt_by_a_column_and_tables_are_tables(hf: Any) -> None:
    own = hf.Dataset.from_dict({"image": DIGITS.X[:300].tolist(), "label": DIGITS.y[:300].tolist()})
    owned = own.add_column("user", (np.arange(300) % 3).tolist())
    by_user = md.partitions.ByKey("user")
    fed = md.Federation(md.problems.Network(nn.Linear(64, 10)), data=owned, partition=by_user)
    assert fed.draw(0).sizes.tolist() == [100, 100, 100]
    assert md.run(md.FedAvg(), fed, 1).status.outcome == "finished"
    table = hf.Dataset.from_pandas(patients().rename(columns={"died": "label"}), preserve_index=False)
    one = md.Federation(P, data=table, partition=md.partitions.ByKey("hospital"))
    two = md.Federation(P, clients=md.datasets.frame(table, target="label", client="hospital"))
    assert torch.allclose(md.run(md.Newton(), one, 3).x, md.run(md.Newton(), two, 3).x)
    with pytest.raises(md.RecipeError, match=r"has the parts train; pass one, as data=parts\['train'\]"):
        md.Federation(P, data=hf.DatasetDict({"train": table}), partition=by_user)


def test_hugging_face_numbers_of_other_class_names_are_refused(hf: Any) -> None:
    table = hf.Dataset.from_pandas(patients().rename(columns={"died": "label"}), preserve_index=False)
    table = table.remove_columns("hospital").map(lambda row: {"label": int(row["label"] in ("yes", 1, True))})
    named = [table.cast_column("label", hf.ClassLabel(names=[*names])) for names in (("no", "yes"), ("yes", "no"))]
    for how in ({"clients": [named[0], table, named[1]]}, {"clients": [named[0]] * 2, "test": named[1]}):
        with pytest.raises(md.BadData, match=r"labels 0, 1, ... are 'yes', 'no', and other.*align_labels") as e:
            md.Federation(P, **how)
        assert str(e.value).startswith("client 2: " if "test" not in how else "Federation(test=...): ")
    aligned = named[1].align_labels_with_mapping({"no": 0, "yes": 1}, "label")
    assert md.Federation(P, clients=[named[0], aligned]).sizes == [300, 300]


def test_hugging_face_tables_name_their_gaps_and_may_hold_all_clients(hf: Any) -> None:
    frame = patients().rename(columns={"died": "label", "hospital": "client"})
    table = hf.Dataset.from_pandas(frame, preserve_index=False)
    assert md.Federation(P, clients=table).client_names == md.Federation(P, clients=frame).client_names
    gap = hf.Dataset.from_dict({"a": [None, 1.0], "b": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(md.BadData, match=r"^client 0, row 0, column 'a': .*(empty|nan is not a number); fill it in"):
        md.Federation(P, clients=[gap])


def test_hugging_face_tokens_masks_and_images(hf: Any) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            mask = attention_mask[..., None].to(self.head.weight.dtype)
            out: Tensor = self.head((self.embed(input_ids) * mask).sum(1) / mask.sum(1))
            return out

    columns = {"input_ids": RNG.integers(0, 20, (80, 6)).tolist(), "attention_mask": np.ones((80, 6), int).tolist()}
    tokens = hf.Dataset.from_dict({**columns, "label": RNG.integers(0, 2, 80).tolist(), "text": ["a"] * 80})
    with pytest.raises(md.BadData, match=r"input 'text' is a str.*remove_columns\(\['text'\]\)"):
        md.Federation(md.problems.Network(Mean()), clients=[tokens])
    fed = md.Federation(md.problems.Network(Mean()), clients=[tokens.remove_columns("text")] * 2)
    r = md.run(md.FedAvg(), fed, 3)
    assert r.history[-1]["loss"] < r.history[0]["loss"]
    Image = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 255, (40, 8, 8, 3), dtype=np.uint8)
    photos = hf.Dataset.from_dict({"img": [Image.fromarray(a) for a in pixels], "label": ["cat", "dog"] * 20})
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    seen = md.run(md.FedAvg(), md.Federation(md.problems.Network(net), clients=[photos, photos]), 2)
    assert set(seen.predict(torch.rand(20, 3, 8, 8))) <= {"cat", "dog"}


@pytest.mark.parametrize("empty", [None, float("nan")])
def test_a_row_without_a_client_is_named(empty: Any) -> None:
    table = patients().reset_index(drop=True)
    table["hospital"] = table["hospital"].astype(object)
    table.loc[[5, 9], "hospital"] = empty
    with pytest.raises(
        md.BadData, match=r"row 5, column 'hospital': it is empty, and names no client \(in 2 rows"
    ) as e:
        md.datasets.frame(table, target="died", client="hospital")
    assert e.value.row == 5


@pytest.mark.parametrize("column", ["hospital", "died"])
def test_blanks_are_no_name_and_make_no_other(column: str) -> None:
    pd = pytest.importorskip("pandas")
    columns = {"age": [1.0, 2, 3], "hospital": ["Bern", "Basel", " Bern "], "died": ["no", "yes", "no "]}
    d = md.datasets.frame(pd.DataFrame(columns), "died", "hospital")
    assert (d.keys["hospital"].tolist(), d.labels) == (["Bern", "Basel", "Bern"], ("no", "yes"))
    with pytest.raises(md.BadData, match=f"row 1, column '{column}': (it is empty|there is no label)"):
        md.datasets.frame(pd.DataFrame(columns | {column: ["a", " ", "b"]}), "died", "hospital")


def test_the_index_of_a_frame_is_no_feature(tmp_path: Path) -> None:
    """Rows sorted by class have it in their index."""
    table = pd.DataFrame({"a": RNG.normal(size=20), "y": ["n"] * 10 + ["p"] * 10})
    table.to_csv(tmp_path / "rows.csv")
    said = r"rows.csv'\): the column '' is a frame's index as pandas writes it, .*; write the file with index=False"
    with pytest.raises(md.BadData, match=said):
        md.datasets.csv(tmp_path / "rows.csv", target="y")
    read = pd.read_csv(tmp_path / "rows.csv")
    with pytest.raises(md.BadData, match="the column 'Unnamed: 0' is a frame's index"):
        md.datasets.frame(read, target="y")
    with pytest.raises(md.BadData, match="the column 'Unnamed: 0' is a frame's index"):
        md.Federation(P, clients=[read])
    assert md.datasets.frame(read, target="y", features=["a"]).features == ("a",)
    table.to_csv(tmp_path / "rows.csv", index=False)
    assert md.datasets.csv(tmp_path / "rows.csv", target="y").features == ("a",)


def test_the_index_in_a_parquet_file_is_no_feature(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = pd.DataFrame({"a": RNG.normal(size=20), "y": ["n"] * 10 + ["p"] * 10}).sample(frac=1, random_state=0)
    table.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(md.BadData, match=r"'__index_level_0__' is a frame's index .*index=False"):
        md.datasets.parquet(tmp_path / "rows.parquet", target="y")
    table.to_parquet(tmp_path / "rows.parquet", index=False)
    assert md.datasets.parquet(tmp_path / "rows.parquet", target="y").features == ("a",)


def test_two_columns_that_may_be_the_target_are_named() -> None:
    table = patients().rename(columns={"died": "label", "hospital": "client"})
    both = table.assign(y=0)
    for give in (lambda: md.Federation(P, clients=both), lambda: md.Federation(P, clients=[both])):
        with pytest.raises(md.BadData, match=r"has 'label' and 'y', and either could be the target; .*target='label'"):
            give()
    places = table.rename(columns={"age": "x"}).assign(y=0.0)
    assert md.Federation(P, clients=places).data.features == ("x", "smoker", "y")


def test_hugging_face_rows_are_what_transforms_and_formats_make_of_them(hf: Any) -> None:
    X, y = DIGITS.X[:60, 20:22], DIGITS.y[:60] % 2
    images = hf.Dataset.from_dict({"image": DIGITS.X[:60].tolist(), "label": y.tolist()})
    turned = lambda b: {"image": [2 * torch.tensor(v) for v in b["image"]], "label": [1 - v for v in b["label"]]}
    net = md.problems.Network(nn.Linear(64, 2))
    data = md.Federation(net, clients=[images.with_transform(turned)]).data
    assert torch.allclose(data.X.float() + 0, 2 * DIGITS.X[:60])
    assert torch.equal(data.y, 1 - y)
    table = hf.Dataset.from_dict({"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "label": y.tolist()})
    other = lambda b: {"b": [2 * v for v in b["b"]], "a": b["a"], "label": [1 - v for v in b["label"]]}
    data = md.Federation(P, clients=[table, table.with_transform(other)]).data
    assert data.features == ("a", "b")
    assert torch.allclose(data.X[60:], data.X[:60] * torch.tensor([1.0, 2.0]))
    assert torch.equal(data.y[60:], 1 - y)
    assert md.Federation(P, clients=[table.with_format("torch", columns=["a", "label"])]).data.features == ("a",)
    swapped = md.Federation(P, clients=[table, table.select_columns(["b", "label", "a"])]).data
    assert torch.equal(swapped.X[60:], swapped.X[:60])
    for parts in (hf.DatasetDict(train=table, test=table), [table, hf.DatasetDict(train=table, test=table)]):
        with pytest.raises(md.BadData, match="parts of one data set"):
            md.Federation(P, clients=parts)
    with pytest.raises(md.BadData, match="an iterable data set has no numbered rows"):
        md.Federation(P, clients=[table.to_iterable_dataset()])


def test_predictions_of_a_hugging_face_data_set_are_those_of_its_rows(hf: Any) -> None:
    images = hf.Dataset.from_dict({"image": DIGITS.X[:60].tolist(), "label": DIGITS.y[:60].tolist()})
    r = md.run(md.FedAvg(), md.Federation(md.problems.Network(nn.Linear(64, 10)), clients=[images]), 2)
    assert (r.predict(images) == r.predict(DIGITS.X[:60])).all()
    assert (r.predict(images.remove_columns("label")) == r.predict(DIGITS.X[:60])).all()
    table = hf.Dataset.from_pandas(patients().drop(columns="hospital"), preserve_index=False)
    data = md.datasets.frame(table, "died").standardise()
    r = md.run(md.Newton(), md.Federation(P, data=data, partition=md.partitions.IID(2)), 4)
    assert (r.predict(table.select_columns(["smoker", "died", "age"])) == r.predict(data.X)).all()
    with pytest.raises(md.BadData, match="the data set has no 'smoker', which the training data had"):
        r.predict(table.remove_columns("smoker"))


def test_columns_without_a_name_after_the_others_are_no_index() -> None:
    table = pd.DataFrame({"a": [1.0, 2], "y": [0, 1], "Unnamed: 2": [None, None]})
    with pytest.raises(md.BadData, match="'Unnamed: 2' after the others has no name, as if each line ended in a"):
        md.datasets.frame(table, "y")


@pytest.mark.parametrize("column", ["y", "site"])
def test_features_that_name_the_target_or_the_client_are_refused(column: str) -> None:
    table = pd.DataFrame({"a": [0.0, 1.0], "y": [0, 1], "site": [3, 4]})
    role = {"y": "target", "site": "client"}[column]
    with pytest.raises(md.RecipeError, match=rf"features= has '{column}', the column of the {role}") as e:
        md.datasets.frame(table, "y", "site", features=["a", column])
    assert e.value.key == "features"


@pytest.mark.parametrize("form", [list, dict, "data"])
def test_a_column_client_of_a_clients_frame_is_no_input(form: Any) -> None:
    table = pd.DataFrame({"a": [0.0, 1.0], "y": [0, 1], "client": [3, 3]})
    given = {list: {"clients": [table]}, dict: {"clients": {"north": table}}}.get(form, {"data": table})
    more = {"partition": md.partitions.IID(1)} if "data" in given else {}
    with pytest.raises(md.BadData, match="has a column 'client', which would be an input; leave it out"):
        md.Federation(md.problems.Logistic(), **given, **more)
