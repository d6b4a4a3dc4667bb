"""Places of data files, and the words for a reader's call."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import medley as md
from medley.datasets import formats
from medley.datasets.files import called, find
from medley.datasets.formats import read_bytes, read_idx, read_npz, read_records
from medley.datasets.readers.lines import check_delimiter


def test_a_call_shows_its_path_and_the_arguments_that_were_given() -> None:
    assert called("npz", Path("a.npz"), X="rows", y=None) == "datasets.npz('a.npz', X='rows')"
    assert called("csv", "a b.csv") == "datasets.csv('a b.csv')"


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n"])
def test_a_delimiter_is_one_character_that_can_stand_between_cells(delimiter: str) -> None:
    check_delimiter(";", "csv()")
    with pytest.raises(md.RecipeError, match="one character") as caught:
        check_delimiter(delimiter, "csv()")
    assert caught.value.key == "delimiter"


def test_files_are_found_together_in_the_first_place_that_has_all(tmp_path: Path) -> None:
    for place, names in (("a", ["x"]), ("b/raw", ["x", "y.gz"])):
        (tmp_path / place).mkdir(parents=True)
        for name in names:
            (tmp_path / place / name).touch()
    assert find("call", ["x", "y"], tmp_path / "b", ["raw"], gz=True) == [
        tmp_path / "b" / "raw" / "x",
        tmp_path / "b" / "raw" / "y.gz",
    ]
    with pytest.raises(md.BadData, match=r"call: y is in none of .*MEDLEY_DATA"):
        find("call", ["x", "y"], tmp_path / "a")


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"abc" * 100)
    (tmp_path / "good").write_bytes(packed)
    (tmp_path / "bad").write_bytes(packed[:-9])
    assert read_bytes(tmp_path / "good", "call") == b"abc" * 100
    with pytest.raises(md.BadData, match=r"call: .*bad is a damaged or truncated gzip file"):
        read_bytes(tmp_path / "bad", "call")


def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 MB of gzip became 3 GB; an npz says its size before, and may lie about an array's."""
    assert (formats.unpacked_limit(1000), formats.unpacked_limit(10**9)) == (1 << 28, 10**11)
    monkeypatch.setattr(formats, "unpacked_limit", lambda packed: max(1 << 20, 100 * packed))
    bomb = gzip.compress(bytes(30 << 20))
    (tmp_path / "bomb").write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(md.BadData, match=rf"call: .*bomb: {len(bomb)} packed bytes become more than {100 * len(bomb)}"):
        read_bytes(tmp_path / "bomb", "call")
    np_bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(np_bomb, "w", zipfile.ZIP_DEFLATED) as z, z.open("x.npy", "w") as f:
        np.lib.format.write_array_header_1_0(f, {"descr": "|u1", "fortran_order": False, "shape": (30 << 20,)})
        for _ in range(30):
            f.write(bytes(1 << 20))
    with pytest.raises(md.BadData, match="packed bytes become more than"):
        read_npz(np_bomb, ["x"], "call")
    assert tracemalloc.get_traced_memory()[1] < 15 << 20
    tracemalloc.stop()
    with zipfile.ZipFile(np_bomb, "w") as z, z.open("x.npy", "w") as f:
        np.lib.format.write_array_header_1_0(f, {"descr": "|u1", "fortran_order": False, "shape": (1 << 60,)})
    with pytest.raises(md.BadData, match="cannot be read as an npz file"):
        read_npz(np_bomb, ["x"], "call")


def test_an_idx_file_has_the_size_that_it_announces(tmp_path: Path) -> None:
    file = tmp_path / "idx"
    file.write_bytes(struct.pack(">4B2I", 0, 0, 8, 2, 2, 3) + bytes(range(6)))
    assert read_idx(file, 2, "call").tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(md.BadData, match="not an idx file of bytes with 3 dimensions"):
        read_idx(file, 3, "call")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(md.BadData, match="promises 2×3 = 6 bytes, but 5 follow"):
        read_idx(file, 2, "call")


def test_records_are_labels_and_pixels(tmp_path: Path) -> None:
    file = tmp_path / "r"
    file.write_bytes(bytes([7, 1, 2, 8, 3, 4]))
    labels, pixels = read_records(file, 1, 2, "call")
    assert (labels.tolist(), pixels.tolist()) == ([[7], [8]], [[1, 2], [3, 4]])
    with pytest.raises(md.BadData, match="6 bytes, not a multiple of a record's 4"):
        read_records(file, 1, 3, "call")


def test_an_npz_file_is_read_by_name_and_unpickles_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.arange(3), o=np.array([{}], object))
    assert read_npz(tmp_path / "a.npz", ["X"], "call")["X"].tolist() == [0, 1, 2]
    with pytest.raises(md.RecipeError, match=r"has no 'x'\. Did you mean 'X'"):
        read_npz(tmp_path / "a.npz", ["x"], "call")
    with pytest.raises(md.BadData, match="holds Python objects"):
        read_npz(tmp_path / "a.npz", ["o"], "call")


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (gzip.compress(b"a,y\n1,2\n", mtime=0), "is packed by gzip; unpack it first"),
        (b"PK\x03\x04 and more", r"is a zip archive, as .xlsx is; .*pandas.read_excel"),
        (b"PAR1", r"is a Parquet file; give datasets.parquet"),
    ],
)
def test_a_file_that_is_no_text_is_named_and_no_header_is(first: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(first)
    with pytest.raises(md.BadData, match=rf"a\.csv {says}"):
        md.datasets.csv(tmp_path / "a.csv", "y")
    (tmp_path / "a.csv").write_text("PKU,PAID,y\n1,2,0\n3,4,1\n")  # names may begin so
    assert md.datasets.csv(tmp_path / "a.csv", "y").features == ("PKU", "PAID")


def test_error_cells_of_spreadsheets_are_missing_and_labels_like_dates_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,0\n#DIV/0!,1\n")
    with pytest.raises(md.BadData, match="'#DIV/0!' says that there is no number"):
        md.datasets.csv(tmp_path / "a.csv", "y")
    (tmp_path / "a.csv").write_text("a;y\n1;1,5\n2;2,5\n3;#N/A\n".replace("#N/A", "3,5"))
    data = md.datasets.csv(tmp_path / "a.csv", "y", delimiter=";")
    md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.IID(3))
    assert "the labels are taken for classes, but '1,5' is a number with a decimal comma" in caplog.text
