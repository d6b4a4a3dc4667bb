from __future__ import annotations

import gzip
import io
import lzma
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import medley as md
from medley import Federation, datasets
from medley.contract.errors import BadData, RecipeError
from medley.datasets.formats import read_idx
from medley.partitions import ByKey
from medley.problems import Logistic
from medley.rows.sparse import Sparse

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (7, 28, 28), np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)


@pytest.fixture(autouse=True)
def _nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDLEY_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_mnist(folder: Path, pack: Callable[[bytes], bytes] = bytes, end: str = "") -> Path:
    folder.mkdir(parents=True)
    for part, rows in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        (folder / f"{part}-images-idx3-ubyte{end}").write_bytes(pack(idx(IMAGES[rows])))
        (folder / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(idx(LABELS[rows])))
    return folder


@pytest.mark.parametrize(("pack", "end"), [(bytes, ""), (gzip.compress, ".gz"), (gzip.compress, "")])
def test_mnist_reads_back_what_was_written(tmp_path: Path, pack: Callable[[bytes], bytes], end: str) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", pack, end)
    d = datasets.mnist(tmp_path)
    assert d.X_test is not None
    assert d.y_test is not None
    assert torch.equal(d.X, torch.from_numpy(IMAGES[:5, None].astype(np.float32)) / 255)
    assert torch.equal((d.X_test * 255).round().byte(), torch.from_numpy(IMAGES[5:, None]))
    assert (d.y.tolist(), d.y_test.tolist()) == ([3, 1, 4, 1, 5], [9, 2])
    assert (d.classes, d.name) == (10, "mnist")
    n = datasets.mnist(tmp_path, normalise=True)
    assert float(n.X.mean()) == pytest.approx(0, abs=1e-6)
    assert float(n.X.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = write_mnist(tmp_path / "home" / ".cache" / "medley" / "FashionMNIST" / "raw")
    assert datasets.fashion_mnist().X.shape == (5, 1, 28, 28)
    set_by_user = write_mnist(tmp_path / "data" / "FashionMNIST")
    (set_by_user / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(5, np.uint8)))
    monkeypatch.setenv("MEDLEY_DATA", str(tmp_path / "data"))
    assert datasets.fashion_mnist().y.tolist() == [0] * 5
    given_folder = write_mnist(tmp_path / "given")
    (given_folder / "train-labels-idx1-ubyte").write_bytes(idx(np.ones(5, np.uint8)))
    assert datasets.fashion_mnist(given_folder).y.tolist() == [1] * 5
    # A folder that lacks one of the files is not completed from another one.
    (given_folder / "t10k-labels-idx1-ubyte").unlink()
    assert datasets.fashion_mnist(given_folder).y.tolist() == [0] * 5
    (set_by_user / "t10k-labels-idx1-ubyte").unlink()
    (cache / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadData, match="t10k-labels-idx1-ubyte") as caught:
        datasets.fashion_mnist(given_folder)
    for part in ("fashion_mnist()", str(given_folder), str(set_by_user), str(cache), "MEDLEY_DATA"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw[:-1], "promises 5×28×28 = 3920 bytes, but 3919 follow"),
        (lambda raw: raw + b"\0", "but 3921 follow"),
        (lambda raw: b"", "starts with nothing"),
        (lambda raw: b"\0\0\x0d\3" + raw[4:], "00000d03, not with 00000803"),
        (lambda raw: idx(LABELS), "00000801"),
        (lambda raw: gzip.compress(raw)[:-20], "damaged or truncated gzip"),
        (lambda raw: gzip.compress(raw)[:40] + b"\xff" * 50, "damaged or truncated gzip"),
        (lambda raw: idx(IMAGES[:4]), r"X is \[4, 1, 28, 28\] and y is \[5\]"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes], says: str) -> None:
    file = write_mnist(tmp_path / "MNIST") / "train-images-idx3-ubyte"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BadData, match=says):
        datasets.mnist(tmp_path)


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    (write_mnist(tmp_path / "MNIST") / "train-labels-idx1-ubyte").write_bytes(idx(np.array([1, 2, 10, 3, 4], np.uint8)))
    with pytest.raises(BadData, match="row 2, column 'y': 10 is no label") as caught:
        datasets.mnist(tmp_path)
    assert caught.value.row == 2


@given(junk=st.binary(max_size=64))
def test_no_bytes_whatever_break_the_idx_reader(junk: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "junk"
    file.write_bytes(bytes((0, 0, 8, 1)) + junk)
    try:
        read = read_idx(file, 1, "test")
    except BadData:
        return
    assert junk == struct.pack(">I", len(read)) + read.tobytes()


def test_cifar10_reads_its_binary_version(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    pixels = RNG.integers(0, 256, (12, 3, 32, 32), np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    for k, name in enumerate(names):
        rows = [bytes([labels[i]]) + pixels[i].tobytes() for i in (2 * k, 2 * k + 1)]
        (folder / name).write_bytes(b"".join(rows))
    d = datasets.cifar10(tmp_path)
    assert d.X_test is not None
    assert d.y_test is not None
    assert torch.equal(torch.cat([d.X, d.X_test]), torch.from_numpy(pixels.astype(np.float32)) / 255)
    assert torch.cat([d.y, d.y_test]).tolist() == labels.tolist()
    assert d.labels[9] == "truck"
    (folder / names[3]).write_bytes((folder / names[3]).read_bytes()[:-7])
    with pytest.raises(BadData, match=r"data_batch_4.bin has 6139 bytes, not a multiple of a record's 3073"):
        datasets.cifar10(tmp_path)


def test_cifar100_keeps_the_coarse_labels_as_keys(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 3072), np.uint8)
    for name in ("train.bin", "test.bin"):
        rows = [bytes([k, 90 + k]) + pixels[k].tobytes() for k in range(4)]
        (tmp_path / name).write_bytes(b"".join(rows))
    d = datasets.cifar100(tmp_path)
    assert (d.y.tolist(), d.keys["coarse"].tolist(), d.classes) == ([90, 91, 92, 93], [0, 1, 2, 3], 100)
    assert torch.equal(d.X.flatten(1), torch.from_numpy(pixels.astype(np.float32)) / 255)
    (tmp_path / "test.bin").write_bytes(b"")
    with pytest.raises(BadData, match="has 0 bytes"):
        datasets.cifar100(tmp_path)


def test_svmlight_numbers_labels_and_shares_columns_with_its_test_set(tmp_path: Path) -> None:
    (tmp_path / "toy").write_text("-1 1:0.5 3:2\n+1 2:1\n-1 \n")
    (tmp_path / "toy.t").write_text("+1 5:4\n")
    d = datasets.svmlight("toy", folder=tmp_path)
    assert d.X_test is not None
    assert d.X.tolist() == [[0.5, 0, 2, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert d.X_test.tolist() == [[0, 0, 0, 0, 4]]
    assert (d.y.tolist(), d.labels, d.classes) == ([0, 1, 0], (-1, 1), 2)
    thin = datasets.svmlight("toy", folder=tmp_path, sparse=True)
    assert thin.X_test is not None
    assert isinstance(thin.X, Sparse)
    assert isinstance(thin.X_test, Sparse)
    for a, b in ((thin.X, d.X), (thin.X_test, d.X_test)):
        assert torch.equal(a @ torch.eye(5), b)
    assert torch.equal(thin.y, d.y)
    (tmp_path / "values").write_text("0.25 1:1\n-3.5 1:2\n")
    assert datasets.svmlight(tmp_path / "values", regression=True).y.tolist() == [0.25, -3.5]
    (tmp_path / "words").write_text("yes 1:1\n")
    with pytest.raises(BadData, match="not in svmlight's format"):
        datasets.svmlight(tmp_path / "words")
    with pytest.raises(BadData, match="w8a is in none of"):
        datasets.w8a()


def test_csv_reads_features_classes_and_keys(tmp_path: Path) -> None:
    file = tmp_path / "flowers.csv"
    file.write_text(
        '\ufeffwide,kind,"site, old",long\n1,rose,7,2.5\n3,aster,9,-1e-3\n\n0.1,rose,7,4\n', encoding="utf-8"
    )
    d = datasets.csv(file, target="kind", keys=("site, old",))
    assert torch.equal(d.X, torch.tensor([[1, 2.5], [3, -1e-3], [0.1, 4]]))
    assert (d.y.tolist(), d.labels, d.classes, d.name) == ([1, 0, 1], ("aster", "rose"), 2, "flowers")
    assert d.keys["site, old"].tolist() == [7, 9, 7]
    r = datasets.csv(file, target="long", keys=("kind",), regression=True)
    assert torch.equal(r.y, torch.tensor([2.5, -1e-3, 4]))
    assert r.keys["kind"].tolist() == ["rose", "aster", "rose"]
    assert r.X.shape == (3, 2)
    assert datasets.csv("flowers.csv", "wide", ["kind"], regression=True, folder=tmp_path).X.shape == (3, 2)


def test_csv_classes_are_ordered_by_value(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("x,y\n1,10\n2,9\n3,-1\n")
    d = datasets.csv(file, "y")
    assert (d.y.tolist(), d.labels) == ([2, 1, 0], (-1, 9, 10))


@pytest.mark.parametrize(
    ("text", "says", "row", "column"),
    [
        ("x,z,y\n1,2,0\n1,nan,0\n", "row 1, column 'z': 'nan' says that there is no number", 1, 1),
        ("x,z,y\n1,2,0\n-inf,1,0\n", "row 1, column 'x': '-inf' is not finite", 1, 0),
        ("x,z,y\n1,2,0\n1,1e39,0\n", "row 1, column 'z': 1e\\+39 is too large for float32", 1, 1),
        ("x,z,y\n1,,0\n", "row 0, column 'z': it is empty", 0, 1),
        ("x,z,y\n1,2,0\n3,four,0\n", "row 1, column 'z': 'four' is not a number", 1, 1),
        ("x,z,y\n1,2\n", r"row 0: it has 2 cells, the header 3 \(line 2\)", 0, None),
        ("x,x,y\n1,2,0\n", "names 'x' twice", None, 1),
        ("x,z,y\n", "0 rows", None, None),
        ("y\n1\n", "0 features", None, None),
        ("x,y\n1,0\n2,1\n3,inf\n", "row 2, column 'y': inf says that there is no label", 2, 1),
        ("x,y\n1,0\n36028797018963969,1\n", "row 1, column 'x': 36028797018963969 has too many digits", 1, 0),
        ('x,y\n"1,2\n', "line 2 of the file has a quote that is not closed", None, None),
    ],
)
def test_csv_says_where_it_is_wrong(tmp_path: Path, text: str, says: str, row: int | None, column: int | None) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(BadData, match=says) as caught:
        datasets.csv(file, "y")
    assert (caught.value.row, caught.value.column) == (row, column)


def test_csv_names_the_nearest_column(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("width,label\n1,0\n")
    with pytest.raises(RecipeError, match="Did you mean 'label'") as caught:
        datasets.csv(file, "labels")
    assert caught.value.key == "labels"
    with pytest.raises(RecipeError, match="both target and key"):
        datasets.csv(file, "label", keys=["label"])
    file.write_bytes(b"width,label\n\xff\xfe,0\n")
    with pytest.raises(BadData, match="UTF-8"):
        datasets.csv(file, "label")


@pytest.mark.parametrize(("other", "shown"), [(";", "';'"), ("\t", r"'\\t'"), ("|", r"'\|'")])
def test_csv_with_another_delimiter_names_it(tmp_path: Path, other: str, shown: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text("price,shop,label\n1,2,0\n3,4,1\n".replace(",", other))
    with pytest.raises(RecipeError, match=f"the header is one column, 'price.*; pass delimiter={shown}"):
        datasets.csv(file, "label")
    assert datasets.csv(file, "label", delimiter=other).X.shape == (2, 2)


def test_npz_reads_arrays_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    X = RNG.normal(size=(6, 2, 3))
    file = tmp_path / "a.npz"
    np.savez(file, X=X, y=np.array([5, 7, 7, 5, 9, 9]), Xt=X[:2], yt=np.array([9, 5]), who=np.array(list("aabbcc")))
    d = datasets.npz(file, X_test="Xt", y_test="yt", keys=["who"])
    assert d.y_test is not None
    assert torch.equal(d.X, torch.from_numpy(X.astype(np.float32)))
    assert (d.y.tolist(), d.y_test.tolist(), d.labels) == ([0, 1, 1, 0, 2, 2], [2, 0], (5, 7, 9))
    assert "".join(d.keys["who"]) == "aabbcc"
    assert not caplog.text
    assert datasets.npz(file, regression=True).y.tolist() == [5, 7, 7, 5, 9, 9]
    assert "does not read Xt, yt, who; name a test set's arrays in X_test=" in caplog.text
    with pytest.raises(RecipeError, match=r"has no 'whom'\. Did you mean 'who'"):
        datasets.npz(file, keys=["whom"])
    with pytest.raises(RecipeError, match="or neither"):
        datasets.npz(file, X_test="Xt")


def test_npz_never_unpickles_and_refuses_damage(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, X=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(BadData, match="holds Python objects"):
        datasets.npz(file)
    np.savez(file, X=np.zeros((50, 50)), y=np.zeros(50))
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(BadData, match="plain arrays"):
        datasets.npz(file)
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(BadData, match="single array"):
        datasets.npz(file)


def test_parquet_reads_as_csv_does(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    file = tmp_path / "t.parquet"
    columns = {"x": [1.5, 2.5, 3.5], "on": [True, False, True], "kind": ["b", "a", "b"], "site": [3, 3, 8]}
    pq.write_table(pa.table(columns), file)
    d = datasets.parquet(file, target="kind", keys=["site"])
    assert d.X.tolist() == [[1.5, 1], [2.5, 0], [3.5, 1]]
    assert (d.y.tolist(), d.labels, d.keys["site"].tolist()) == ([1, 0, 1], ("a", "b"), [3, 3, 8])
    assert datasets.parquet(file, "x", ["kind"], regression=True).y.tolist() == [1.5, 2.5, 3.5]
    file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(BadData, match="no readable Parquet"):
        datasets.parquet(file, "y")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pyarrow", "PIL", "datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RecipeError, match=r"pip install .*\[parquet\]"):
        datasets.parquet(tmp_path / "t", "y")
    with pytest.raises(RecipeError, match=r"pip install .*\[hub\]"):
        datasets.hub("any", "image")
    write_tiny_imagenet(tmp_path, [b"x"])
    with pytest.raises(RecipeError, match=r"pip install .*\[images\]"):
        datasets.tiny_imagenet50(tmp_path)


def write_tiny_imagenet(folder: Path, jpegs: list[bytes]) -> None:
    blob = np.frombuffer(b"".join(jpegs), np.uint8)
    offset = np.cumsum([0, *map(len, jpegs)])
    y = np.arange(len(jpegs)) % 2
    arrays = {f"{kind}_{p}": v for p in ("train", "val") for kind, v in (("jpeg", blob), ("offset", offset), ("y", y))}
    np.savez(folder / "tinyimagenet50_jpeg.npz", names=np.array(["fish", "newt"]), **arrays)


def test_tiny_imagenet_decodes_its_jpegs(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    packed = []
    for colour in ((255, 0, 0), (0, 0, 255)):
        stream = io.BytesIO()
        Image.new("RGB", (64, 64), colour).save(stream, "JPEG", quality=95)
        packed.append(stream.getvalue())
    write_tiny_imagenet(tmp_path, packed)
    d = datasets.tiny_imagenet50(tmp_path)
    assert d.X.shape == (2, 3, 64, 64)
    means = d.X.mean((2, 3))
    assert torch.allclose(means, torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]), atol=0.02)
    assert (d.y.tolist(), d.labels) == ([0, 1], ("fish", "newt"))
    write_tiny_imagenet(tmp_path, [packed[0], packed[1][:30]])
    with pytest.raises(BadData, match="image 1 is no readable image"):
        datasets.tiny_imagenet50(tmp_path)
    write_tiny_imagenet(tmp_path, [packed[0], b""])
    with pytest.raises(BadData, match="offsets do not fit"):
        datasets.tiny_imagenet50(tmp_path)
    stream = io.BytesIO()
    Image.new("L", (32, 64)).save(stream, "JPEG")
    write_tiny_imagenet(tmp_path, [stream.getvalue()])
    with pytest.raises(BadData, match="image 0 is 32×64"):
        datasets.tiny_imagenet50(tmp_path)


def pack_lines(*lines: str) -> np.ndarray:
    return np.frombuffer(lzma.compress("\n".join(lines).encode()), np.uint8)


def test_sentiment140_weighs_words_and_leaves_neutral_tweets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {
        "y": np.array([1, 0, 1]),
        "user": np.array([4, 4, 6]),
        "seconds_since_20090401": np.array([10, 20, 30]),
        "text_xz": pack_lines("good day", "bad day", "good good day"),
        "y_test": np.array([0, 2, 1]),
        "text_test_xz": pack_lines("bad", "day", "good unseen"),
    }
    np.savez(tmp_path / "sentiment140_subset.npz", **arrays)
    d = datasets.sentiment140(features=2, folder=tmp_path)
    assert d.X_test is not None
    assert d.y_test is not None
    # The commonest terms are day and good, in 3 and 2 of 3 rows: smoothed idf ln(4/4) + 1 and ln(4/3) + 1. A second
    # "good" adds its logarithm, rows have norm 1, and an unseen word counts nothing.
    day, good = 1.0, np.log(4 / 3) + 1
    twice = (1 + np.log(2)) * good
    expected = [[day / np.hypot(day, good), good / np.hypot(day, good)], [1, 0]]
    expected.append([day / np.hypot(day, twice), twice / np.hypot(day, twice)])
    assert torch.allclose(d.X, torch.tensor(expected, dtype=torch.float32))
    assert d.X_test.tolist() == [[0, 0], [0, 1]]
    assert (d.y.tolist(), d.y_test.tolist(), d.keys["user"].tolist()) == ([1, 0, 1], [0, 1], [4, 4, 6])
    np.savez(tmp_path / "sentiment140_subset.npz", **{**arrays, "text_xz": pack_lines("one", "two")})
    with pytest.raises(BadData, match="2 lines of text but 3 labels"):
        datasets.sentiment140(folder=tmp_path)
    np.savez(tmp_path / "sentiment140_subset.npz", **{**arrays, "text_xz": arrays["text_xz"][:-20]})
    with pytest.raises(BadData, match="packed text is damaged"):
        datasets.sentiment140(folder=tmp_path)
    np.savez(tmp_path / "sentiment140_subset.npz", **{**arrays, "text_xz": pack_lines("a" * 1_000_000)})
    monkeypatch.setattr("medley.datasets.text.unpacked_limit", lambda packed: 100 * packed)
    with pytest.raises(BadData, match=r"the packed text: .* packed bytes become more than"):
        datasets.sentiment140(folder=tmp_path)


def test_online_news_takes_its_keys_from_the_flags(tmp_path: Path) -> None:
    names = ["words", "data_channel_is_tech", "data_channel_is_world", "weekday_is_monday"]
    x = np.array([[5, 0, 1, 1], [6, 1, 0, 0], [7, 0, 0, 1]], np.float32)
    np.savez(tmp_path / "online_news_subset.npz", x=x, shares=np.array([1, 10, 100]), columns=np.array(names))
    d = datasets.online_news(tmp_path)
    assert d.y.tolist() == pytest.approx(np.log([1, 10, 100]).tolist(), rel=1e-6)
    assert d.keys["channel"].tolist() == ["world", "tech", "other"]
    assert d.keys["weekday"].tolist() == ["monday", "other", "monday"]
    np.savez(tmp_path / "online_news_subset.npz", x=x, shares=np.array([1, 0, 100]), columns=np.array(names))
    with pytest.raises(BadData, match="row 1 has 0 shares"):
        datasets.online_news(tmp_path)


def test_msd_years_makes_years_the_clients(tmp_path: Path) -> None:
    np.savez(tmp_path / "msd_year_subset.npz", x=np.ones((3, 2)), y=np.array([1999, 2001, 1999], np.int16))
    d = datasets.msd_years(tmp_path)
    assert (d.y.tolist(), d.keys["year"].tolist(), d.classes) == ([1999, 2001, 1999], [1999, 2001, 1999], None)


class Split(dict):
    @property
    def column_names(self) -> list[str]:
        return list(self)


def test_hub_turns_columns_into_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in with the shape of the library's answers: a mapping of splits, columns by name."""
    grey = list(RNG.integers(0, 256, (4, 5, 6), np.uint8))
    colour = list(RNG.integers(0, 256, (4, 5, 6, 3), np.uint8))
    columns = Split(grey=grey, colour=colour, label=[0, 2, 1, 0], a=[1, 2, 3, 4], b=[0.5] * 4, who=list("xxyy"))
    columns["ragged"] = [grey[0], grey[0].T, grey[0], grey[0]]
    columns |= {"word": ["no", "yes", "no", "no"], "half": [0, 1, 0.5, 1], "far": [1e8, 1e8 + 1, 1e8 + 2, 1e8 + 3]}
    stand_in = ModuleType("datasets")
    asked: list[object] = []

    def load_dataset(*args: object, **kwargs: object) -> dict[str, Split]:
        asked.append((args, kwargs))
        return {"train": columns, "test": Split(columns)}

    monkeypatch.setattr(stand_in, "load_dataset", load_dataset, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    d = datasets.hub("some/set", "colour", keys=["who"], revision="abc")
    assert asked == [(("some/set", None), {"revision": "abc"})]
    assert d.X.shape == (4, 3, 5, 6)
    assert float(d.X[1, 2, 3, 4]) == pytest.approx(colour[1][3, 4, 2] / 255)
    assert (d.y.tolist(), d.classes, d.keys["who"].tolist()) == ([0, 2, 1, 0], 3, list("xxyy"))
    assert datasets.hub("some/set", "grey").X.shape == (4, 1, 5, 6)
    r = datasets.hub("some/set", ["a", "b"], target="a", regression=True, test=None)
    assert (r.X.tolist(), r.y.tolist(), r.classes) == ([[1, 0.5], [2, 0.5], [3, 0.5], [4, 0.5]], [1, 2, 3, 4], None)
    assert r.X_test is None
    words = datasets.hub("some/set", ["far", "b"], target="word")
    assert (words.y.tolist(), words.labels, words.X[:, 0].tolist()) == ([0, 1, 0, 0], ("no", "yes"), columns["far"])
    assert datasets.hub("some/set", "grey", target="far", regression=True).y.tolist() == columns["far"]
    assert datasets.hub("some/set", "grey", target="half").classes is None
    with pytest.raises(RecipeError, match="Did you mean 'label'"):
        datasets.hub("some/set", "grey", target="labels")
    with pytest.raises(RecipeError, match="Did you mean 'test'"):
        datasets.hub("some/set", "grey", test="tests")
    with pytest.raises(BadData, match="must all be equal"):
        datasets.hub("some/set", "ragged")


def test_a_file_that_is_nowhere_is_looked_for_by_name_in_the_working_directory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.csv").write_text("age,died\n1,0\n2,1\n")
    with pytest.raises(BadData, match=f"there is no patient.csv in {tmp_path}. Did you mean 'patients.csv'"):
        datasets.csv("patient.csv", target="died")
    (tmp_path / "wards.csv").mkdir()
    with pytest.raises(BadData, match=r"wards\.csv is a folder"):
        datasets.csv("wards.csv", target="died")
    (tmp_path / "none.csv").touch()
    with pytest.raises(BadData, match="the file is empty; its first line should name the columns"):
        datasets.csv("none.csv", target="died")


SITES = "age,site,died\n1,Bern,no\n2,Basel,yes\n3,Bern,no\n"


@pytest.mark.parametrize("column", ["site", "died"])
@pytest.mark.parametrize("cell", ["", "  "])
def test_an_empty_cell_is_no_class_and_no_client(tmp_path: Path, column: str, cell: str) -> None:
    text = SITES.replace("2,Basel,yes", f"2,{cell},yes" if column == "site" else f"2,Basel,{cell}")
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(BadData, match=f"row 1, column '{column}': it is empty.*; fill it in or drop the row"):
        datasets.csv(tmp_path / "x.csv", target="died", keys=["site"])


def test_blanks_around_a_name_make_no_other_class_or_client(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(SITES.replace("3,Bern,no", "3, Bern , no "))
    d = datasets.csv(tmp_path / "x.csv", target="died", keys=["site"])
    assert d.labels == ("no", "yes")
    assert d.keys["site"].tolist() == ["Bern", "Basel", "Bern"]


def test_parquet_takes_blank_names_as_csv_does(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "kind": ["a", " b", "a "], "site": ["S ", "S", " T"]}), file)
    d = datasets.parquet(file, "kind", ["site"])
    assert (d.labels, d.keys["site"].tolist()) == (("a", "b"), ["S", "S", "T"])
    for name, said in (("kind", "there is no label"), ("site", "it is empty, and names no client")):
        columns = {"x": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"], "site": ["S", "S", "T"], name: ["a", "b", " "]}
        pq.write_table(pa.table(columns), file)
        with pytest.raises(BadData, match=f"row 2, column '{name}': {said}"):
            datasets.parquet(file, "kind", ["site"])


@pytest.mark.parametrize(("encoding", "name"), [("cp1252", "größe €"), ("utf-16", "größe"), ("latin-1", "gr\x81ße")])
def test_a_file_in_another_encoding_has_a_remedy(encoding: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(f"{name},y\n1,0\n2,1\n".encode(encoding))
    with pytest.raises(BadData, match=rf"no CSV file in UTF-8 .*Save it so, or .*encoding='{encoding}'"):
        datasets.csv(tmp_path / "a.csv", target="y")


def test_what_a_table_may_not_mean_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = ["yes", "no", "NA"]
    for name, first, last in (("meant", 3, "no"), ("guessed", 0, "NA")):
        lines = [f"{k + first * (k % 2)},{k % 7},{labels[k % 2] if k else last}" for k in range(12)]
        (tmp_path / f"{name}.csv").write_text("id,age,died\n" + "\n".join(lines) + "\n")
        read = datasets.csv(tmp_path / f"{name}.csv", "died")
        Federation(md.problems.Softmax(), data=read, partition=md.partitions.IID(2))
        assert ("the column 'id' counts the rows" in caplog.text) == (name == "guessed")
        assert ("the label 'NA' is taken for a class (its rows: 1)" in caplog.text) == (name == "guessed")
    assert repr(read) == "Dataset(guessed: 12 rows [2], 3 classes (NA, no, yes))"
    caplog.clear()
    (tmp_path / "signs.csv").write_text("age,credit\n1,+\n2,-\n3,+\n")
    signs = datasets.csv(tmp_path / "signs.csv", "credit")
    Federation(Logistic(mu=0.1), data=signs, partition=md.partitions.IID(2))
    assert "taken for a class" not in caplog.text  # "-" is missing only where there is no "+"


ROWS = [(float(a), float(b), i % 2 if i % 3 else 1 - i % 2) for i, (a, b) in enumerate(RNG.normal(size=(60, 2)))]


def keyed(kind: str, names: list[str], folder: Path) -> datasets.Dataset:
    """60 rows of clients with these names in turn, from a file or a frame."""
    rows = [(*row, names[i % len(names)]) for i, row in enumerate(ROWS)]
    if kind == "csv":
        (folder / "k.csv").write_text("a,b,y,k\n" + "".join(f"{a},{b},{y},{k}\n" for a, b, y, k in rows))
        return datasets.csv(folder / "k.csv", "y", ["k"])
    X, y, k = [row[:2] for row in rows], [row[2] for row in rows], [row[3] for row in rows]
    if kind.startswith("npz"):
        given = np.array([v.encode() for v in k] if kind == "npz, bytes" else k)
        np.savez(folder / "k.npz", X=np.array(X), y=np.array(y), k=given)
        return datasets.npz(folder / "k.npz", keys=["k"])
    if kind == "lists":
        return datasets.Dataset(X, y, keys={"k": k})
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(rows, columns=["a", "b", "y", "k"])
    if kind == "frame":
        return datasets.frame(table, "y", "k")
    pytest.importorskip("pyarrow")
    table.to_parquet(folder / "k.parquet", index=False)
    return datasets.parquet(folder / "k.parquet", "y", ["k"])


@pytest.mark.parametrize("kind", ["csv", "frame", "lists", "npz", "npz, bytes", "parquet"])
@pytest.mark.parametrize(
    "names",
    [
        [f"8900000012180000{k:04d}" for k in range(3)],
        ["01", "1", "001"],
        ["1e2", "100", "10e1"],
        ["75", "2A"],
        ["1.0", "1", "1.00"],
        ["True", "true", "1"],
        ["nan", "None", "inf"],
        ["-0", "0", "+0", "1_0", "10"],
    ],
)
def test_names_of_clients_are_text_as_the_file_has_it(kind: str, names: list[str], tmp_path: Path) -> None:
    fed = Federation(Logistic(mu=0.1), data=keyed(kind, names, tmp_path), partition=ByKey("k"))
    assert sorted(fed.client_names) == sorted(names)
    assert sum(fed.describe().sizes) == 60


def test_whole_numbers_keep_the_order_of_clients(tmp_path: Path) -> None:
    data = keyed("csv", ["10", "9", "2"], tmp_path)
    assert Federation(Logistic(mu=0.1), data=data, partition=ByKey("k")).client_names == ("2", "9", "10")


def test_a_client_has_its_name_in_every_file(tmp_path: Path) -> None:
    """One file has numbers only, the other "2A" as well."""
    numbers, texts = (keyed("csv", names, tmp_path) for names in (["75", "80"], ["75", "2A"]))
    for data, test, want in ((numbers, texts, [30, 0]), (texts, numbers, [0, 30])):
        fed = Federation(Logistic(mu=0.1), data=data, test=test, partition=ByKey("k"))
        assert [len(rows) for rows in fed.whole(0)[0].tests or []] == want


def test_keys_that_numpy_would_merge_are_kept_or_refused() -> None:
    made = lambda keys: datasets.Dataset(np.zeros((4, 1)), [0, 1, 0, 1], keys={"k": keys})
    by = lambda keys: Federation(Logistic(mu=0.1), data=made(keys), partition=ByKey("k")).client_names
    assert by([2**63 + 1, -1, 2**63 + 2, -1]) == ("-1", str(2**63 + 1), str(2**63 + 2))
    with pytest.raises(BadData, match="of one kind, and 1 is int and '1' is str"):
        by([1, "1", 1, "1"])
    with pytest.raises(BadData, match="row 1, column 'k': 2 is masked"):
        by(np.ma.array([1, 2, 3, 4], mask=[0, 1, 0, 0]))


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["01", "1", "2"], ("01", "1", "2")),
        (["01234", "90210"], ("01234", "90210")),
        (["89000000121800000011", "89000000121800000012"], ("89000000121800000011", "89000000121800000012")),
        (["-1", "+1"], (-1, 1)),
        (["1.0", "2.0"], (1, 2)),
        (["1.000e+00", "0.000e+00"], (0, 1)),
        (["True", "False"], (False, True)),
        (["True"], (True,)),
        (["1E10", "1E11"], ("1E10", "1E11")),
        (["no", "1"], ("1", "no")),
    ],
)
def test_labels_are_apart_where_the_file_has_them_apart(cells: list[str], labels: object, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("x,y\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells * 2)))
    assert datasets.csv(tmp_path / "l.csv", "y").labels == labels


@pytest.mark.parametrize("cells", [["1.0", "1", "2"], ["1e2", "100", "5"]])
def test_two_spellings_of_one_label_are_asked_about(cells: list[str], tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("x,y\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)))
    with pytest.raises(
        BadData, match=f"row 1, column 'y': the labels {cells[0]!r} and {cells[1]!r} are the same number"
    ) as caught:
        datasets.csv(tmp_path / "l.csv", "y")
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("7.4,0.7,0,5\n7.8,0.8,0,5\n6.2,0.5,1,6\n", "asked"),
        ("1,2,3\n4,5,6\n", "asked"),
        ("0,0,1\n1,2,0\n", "asked"),
        ("5.1,3.5,setosa\n4,3,other\n", "asked"),
        ("1,0,1,yes\n2,1,1,no\n", "asked"),
        ("2019,2020,y\n1,2,0\n2,3,1\n", "asked"),
        ("0,1,2\n1,2,1\n2,3,0\n", "names"),  # as pandas writes a frame without names
        ("0,1,y\n1,2,1\n2,3,0\n", "names"),
        ("a,b,1\n1,2,0\n2,3,1\n", "names"),
    ],
)
def test_a_first_line_of_numbers_is_asked_about(
    text: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "h.csv").write_text(text)
    target = text.split("\n", maxsplit=1)[0].split(",")[-1]
    if kind == "asked":
        with pytest.raises(
            BadData, match=r"the first line has numbers, .*say header=False if it is a row .*header=True"
        ):
            datasets.csv(tmp_path / "h.csv", target)
        width = text.split("\n", maxsplit=1)[0].count(",")
        d = datasets.csv(tmp_path / "h.csv", str(width), header=False)
        assert (len(d.X), d.features) == (text.count("\n"), tuple(map(str, range(width))))
    else:
        assert len(datasets.csv(tmp_path / "h.csv", target).X) == 2
        assert ("is taken for the names of columns" in caplog.text) == text.startswith("0")
        caplog.clear()
        assert len(datasets.csv(tmp_path / "h.csv", target, header=True).X) == 2
        if target == "2":
            assert len(datasets.csv(tmp_path / "h.csv", target, header=False).X) == 3
        assert caplog.text == ""
    if text.startswith("2019"):
        assert datasets.csv(tmp_path / "h.csv", target, header=True).features == ("2019", "2020")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a;b;y\n1;2,6;0\n",
            "'2,6' is a number with a decimal comma; write a point, or datasets.frame.*decimal=','",
        ),
        (
            "a;sex;race;y\n1;m;b;0\n2;f;w;1\n",
            r"'m' is not a number; code such columns .'sex', 'race'.*prepare.*get_dummies",
        ),
        ("a;b;y\n1;2;0\n2;oops;1\n3;4;1\n4;4;0\n", "row 1, column 'b': 'oops' is not a number; mend it or drop"),
        (
            "a;when;y\n1;2020-01-01 10:00;0\n",
            r"'2020-01-01 10:00' is a date; give numbers, .*pandas.to_datetime",
        ),
        ("a;when;y\n1;10:30;0\n", "'10:30' is a time of day; give numbers, .*pandas.to_timedelta"),
        ("a;b;y;\n1;2;0;\n", "the column '' after the others has no name, as if each line ended in a delimiter"),
        ("a;b;y;;\n1;2;0;;\n", "the column '' after the others has no name"),
        ("a;b;y\n1;12%;0\n", "'12%' is a number with a sign or a unit; take that off"),
        ("a;b;y\n1;$ 3.50;0\n", "a number with a sign or a unit"),
        ("a;b;y\n1;70 kg;0\n", "a number with a sign or a unit"),
    ],
)
def test_a_csv_file_says_what_to_do_with_a_cell_that_is_no_number(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(BadData, match=said):
        datasets.csv(tmp_path / "c.csv", "y", delimiter=";")


def test_sites_agree_on_the_columns_of_their_svmlight_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = tmp_path / "a.svm", tmp_path / "b.svm"
    a.write_text("0 0:1 1:2\n1 2:3\n")
    b.write_text("0 1:4\n1 3:5\n")
    with caplog.at_level("WARNING", "medley"):
        assert datasets.svmlight(a).X.shape == (2, 3)
        assert not caplog.text
        assert datasets.svmlight(b).X.tolist() == [[4, 0, 0], [0, 0, 5]]
    assert "no row has an entry of column 0, so columns are taken to count from 1" in caplog.text
    sites = [datasets.svmlight(file, zero_based=True, n_features=4) for file in (a, b)]
    assert [s.X.tolist() for s in sites] == [[[1, 2, 0, 0], [0, 0, 3, 0]], [[0, 4, 0, 0], [0, 0, 0, 5]]]
    assert datasets.svmlight(b, zero_based=False, n_features=5).X.shape == (2, 5)
    with pytest.raises(BadData, match="it has an entry of column 0; give zero_based=True"):
        datasets.svmlight(a, zero_based=False)
    with pytest.raises(BadData, match="it has an entry of column 3, and n_features=3; give 4"):
        datasets.svmlight(b, zero_based=True, n_features=3)


@pytest.mark.parametrize("kind", ["csv", "frame"])
def test_cells_with_underscores_are_texts_and_commas_may_part_thousands(kind: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")

    def read(**columns: Any) -> Any:
        table = pd.DataFrame(columns)
        table.to_csv(tmp_path / "t.csv", index=False)
        return md.datasets.frame(table, "y") if kind == "frame" else md.datasets.csv(tmp_path / "t.csv", "y")

    with pytest.raises(BadData, match=r"2024_01.*not a number"):
        read(a=["2024_01", "2024_02"], y=[0, 1])
    with pytest.raises(BadData, match=r"1,500.*commas between thousands, or with a decimal comma; .*thousands=','"):
        read(a=["1,500", "2,600"], y=[0, 1])
    assert read(a=[0.0, 1.0], y=["2024_02", "2024_01"]).labels == ("2024_01", "2024_02")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("age;y\n50,5;0\n61,25;1\n", "utf-8"),
        ("age\ty\n50,5\t0\n61,25\t1\n", "utf-8"),
        ("age\tKöln\ty\n50.5\t1\t0\n61.25\t2\t1\n", "utf-16"),
        ("age;Köln;y\n50.5;1;0\n61.25;2;1\n", "latin-1"),
        ("sep=;\nage;Köln;y\n50.5;1;0\n61.25;2;1\n", "latin-1"),
    ],
)
def test_the_remedy_for_a_file_reads_it(tmp_path: Path, text: str, encoding: str) -> None:
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(BadData) as e:
        datasets.csv(path, "y", delimiter="\t" if "\t" in text else ";")
    arguments = re.search(r"pandas\.read_csv\(path, ([^)]*)\)", str(e.value))
    assert arguments
    read = eval(f"read_csv(path, {arguments[1]})", {"read_csv": pandas.read_csv, "path": path})
    assert datasets.frame(read, "y").X[:, 0].tolist() == [50.5, 61.25]


@pytest.mark.parametrize("text", ["1 120", "1\u202f120", "1'120", "1.120,5", "1.120.300"])
def test_signs_between_thousands_are_named(text: str) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [text, "12"], "y": [0, 1]})
    with pytest.raises(BadData, match="is a number with signs between thousands; take those out"):
        datasets.frame(table, "y")
