"""Files as spreadsheets, exports and other libraries leave them: read as they are meant, or refused with a remedy."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from medley import datasets
from medley.contract.errors import BadData
from medley.numerics.scaling import Scaling
from medley.rows.coding import Coding, Column

ODD_FILES = {
    "a,b,y\n9007199254740993,5,0\n": "row 0, column 'a': 9007199254740993 has too many digits",
    "a,b,y\n1,2,0\n\u22125,5,0\n": r"row 1, column 'a': '\u22125' has another sign for minus; write '-'",
    "a,b,y\n(5),5,0\n": "'\\(5\\)' is a number in brackets",
    "a,b,y\n5-Jan-2024,5,0\n": "'5-Jan-2024' is a date; .*to_datetime",
    "a,b,y\n05.01.2024,5,0\n": "'05.01.2024' is a date; .*dayfirst=True",
    "a,b,y\nPT3H,5,0\n": "'PT3H' is a duration; .*to_timedelta",
    "a,b,y\n--,5,0\n": "'--' says that there is no number",
    "a,b,y\nTRUE,2,0\n" + "FALSE,2,1\n" * 200 + "1,2,0\n": "row 201, column 'a': '1' among True and False",
    "a,b,y\n1,2,0,\n": "row 0: it has 4 cells, the header 3 .line 2.; if each row ends in ','",
    "a,b,y\n1,5,2,0\n": "row 0: .*; put cells with ',' in quotes",
    "a,b,y\n1,5,2\n1,2\n": "row 1: .*; complete the row, or drop it",
    "a,b,y\n1,5,2\n  \n": "row 1: .*; drop this blank line",
    "# of 2024\na,b,y\n1,2,0\n": "'# of 2024', names no columns; remove the lines above",
    "a,,b,y\n1,2,3,0\n": "the column '' after 'a' has no name; give it one",
    "Export of 2024,,\na,b,y\n1,2,0\n": "'Export of 2024', does not name its 3 columns; remove the lines above",
    "a,b,y\n1,2,0\n3,4,1\n5,6,NA\n": "row 2, column 'y': 'NA' among numbers such as 0 says that there is no label",
    "a,b,y\n1,2,0\n3,4,k.A.\n": "row 1, column 'y': 'k.A.' among numbers such as 0 says",
    "a,b,y\n" + "1,2,0\n" * 300 + "1,\x002,0\n": "line 302 of the file has a NUL byte, .*tr -d",
    'a,"b,\nkg",y\n1,2,0\n': "its cell goes on to line 2.*if it is meant, take out the line break",
}


@pytest.mark.parametrize("content", ODD_FILES)
def test_a_file_as_people_have_it_is_refused_with_a_remedy(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    with pytest.raises(BadData, match=ODD_FILES[content]):
        datasets.csv(tmp_path / "a.csv", "y")


def test_lines_in_two_encodings_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("a,y\n1,ja\n2,größe\n".encode("cp1252") + "3,größe\n".encode())
    with pytest.raises(BadData, match=r"Line 4 is in UTF-8 and line 3 is not: convert the files before you join them"):
        datasets.csv(tmp_path / "a.csv", "y")


def test_a_space_before_a_quote_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a, "b", y\n1, "2", "ja, gut"\n3, 4, nein\n')
    data = datasets.csv(tmp_path / "a.csv", "y")
    assert (data.X.tolist(), data.labels, data.features) == ([[1, 2], [3, 4]], ("ja, gut", "nein"), ("a", "b"))


def test_codes_that_look_like_numbers_are_the_categories_that_they_are(tmp_path: Path) -> None:
    columns = Column("code", ("01", "1", "1E10")), Column("b")
    scaling = Scaling(
        torch.zeros(1, 4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.float64), True, Coding(columns)
    )
    (tmp_path / "a.csv").write_text("code,b,y\n01,TRUE,0\n1,FALSE,1\n1E10,TRUE,1\n")
    data = datasets.csv(tmp_path / "a.csv", "y", prepared=scaling)
    assert data.X.tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]]
    (tmp_path / "a.csv").write_text("code,b,y\n1.0,1,0\n2.0,0,1\n")
    scaling = Scaling(
        scaling.mean[:, :3], scaling.deviation[:, :3], True, Coding((Column("code", ("1", "2")), columns[1]))
    )
    assert datasets.csv(tmp_path / "a.csv", "y", prepared=scaling).X.tolist() == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_named_and_its_remedy_reads_it(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("a,b,y\n1,2,0\n3,4,1\n".encode(encoding))
    with pytest.raises(BadData, match=rf"no CSV file in UTF-8 .*encoding='{encoding}', sep=None, engine='python'"):
        datasets.csv(tmp_path / "a.csv", "y")
    read = pd.read_csv(tmp_path / "a.csv", encoding=encoding, sep=None, engine="python")
    assert datasets.frame(read, "y").X.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"X": np.array(3)}, "X is one value, 3; give rows"),
        ({"X": np.full((2, 1), 1e300)}, "row 0, column 0: it is too large for float32"),
        ({"X": np.array([["1"], ["2"]])}, "1 is a number as text; give numbers, X.astype"),
        ({"X": np.array([[1], ["a"]], object)}, r"holds Python objects, .*X.astype\(float\)"),
        ({"c": np.array([["u"], ["v"]])}, r"column 'c': it has the shape \[2, 1\]; give one name a row"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(arrays: dict[str, Any], match: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **({"X": np.eye(2), "y": np.array([0, 1]), "c": np.array(["u", "v"])} | arrays))
    with pytest.raises(BadData, match=match):
        datasets.npz(tmp_path / "a.npz", client="c")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("1 1:2\nb 1:3\n", "line 2 of .*could not convert.*labels are numbers"),
        ("1 2:2 1:3\n", "line 1 of .*ascending order"),
        ("1 1:2\n0 3000000000:1\n", r"line 2 of .*below 2\^31"),
        ("9007199254740993 1:1\n0 1:1\n", "row 0, column 'y': 9007199254740992 has more digits"),
        ("1\n0\n", "no row has an entry, so there are no columns; give n_features="),
    ],
)
def test_a_line_of_svmlight_that_cannot_be_read_is_named(content: str, match: str, tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text(content)
    with pytest.raises(BadData, match=match):
        datasets.svmlight(tmp_path / "a.svm")


def test_parquet_has_decimals_lists_and_preparations(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write = lambda **columns: pq.write_table(pa.table({"y": [0, 1], **columns}), tmp_path / "a.parquet")
    read = lambda **how: datasets.parquet(tmp_path / "a.parquet", "y", **how)
    write(a=[Decimal("1.50"), Decimal("2")], y=[Decimal("0.5"), Decimal("2")])
    assert (read().X.tolist(), read().y.tolist()) == ([[1.5], [2.0]], [0.5, 2.0])
    write(a=[Decimal(2**53 + 1), Decimal("2.5")])
    with pytest.raises(BadData, match=r"row 0, column 'a': 90071.* has too many digits"):
        read()
    write(a=[[1, 2], [3]])
    with pytest.raises(BadData, match=r"row 0, column 'a': .*a column for each in it, pandas.DataFrame"):
        read()
    write(a=["u", "v"])
    with pytest.raises(BadData, match=r"row 0, column 'a': 'u' is not a number; .*prepared="):
        read()
    coding = Coding((Column("a", ("u", "v")),))
    scaling = Scaling(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64), True, coding)
    assert read(prepared=scaling).X.tolist() == [[1, 0], [0, 1]]
    (tmp_path / "client=u").mkdir()
    pq.write_table(pa.table({"y": [0, 1], "a": [1.0, 2.0]}), tmp_path / "client=u" / "a.parquet")
    assert datasets.parquet(tmp_path / "client=u" / "a.parquet", "y").features == ("a",)
