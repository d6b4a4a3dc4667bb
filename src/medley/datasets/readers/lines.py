"""Lines of CSV files as columns of numbers and text."""

from __future__ import annotations

import csv as csvfile
import logging
import math
from array import array
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...contract import BadData, Place, RecipeError
from ...rows.numbers import FLAGS, SEPARATED, is_number, no_number, numbers

log = logging.getLogger("medley")

BLOCK = 128
"""Lines whose cells are converted together; of more, Python's collector of garbage takes longer than the reading."""


class Lines:
    """The lines of a CSV file. Excel's first line, ``sep=;``, says the delimiter."""

    def __init__(self, stream: Any, delimiter: str, call: str, missing: bool = False) -> None:
        self.call = call
        self.delimiter = delimiter
        self.start = 0
        self.missing = missing
        self.flags = set[int]()
        self.typed = set[int]()
        self.width = 0
        self.row = 0
        start = stream.tell() if stream.seekable() else 0
        first = stream.readline()
        text = first.rstrip("\r\n").strip('"')
        if text and text[:4] == "sep=" and len(text) == 5:
            if delimiter not in (",", text[4]):
                raise RecipeError(f"{call}: the first line says {text!r}; leave delimiter= out", "delimiter")
            self.delimiter = text[4]
            self.start = 1
        else:
            stream.seek(start)
        spaced = self.delimiter == " "  # else spaces before a quote do not count, as those around text
        self.reader = csvfile.reader(stream, delimiter=self.delimiter, strict=True, skipinitialspace=not spaced)
        first = self._block(1)
        while first == [[]]:
            first = self._block(1)
        self.first = first[0] if first else []

    def _block(self, size: int) -> list[list[str]]:
        """The next lines. Raises BadData, naming the line, for a quote that is not closed in its line."""
        before = self.reader.line_num
        block = list[list[str]]()
        try:
            block.extend(islice(self.reader, size))
        except csvfile.Error as e:
            raise self._quoted(before + sum(map(_lines, block)) + 1, str(e)) from None
        if self.reader.line_num != before + len(block):
            for k, cells in enumerate(block):
                if _lines(cells) > 1 and any("\n" in c and self.delimiter in c for c in cells):
                    line = before + sum(map(_lines, block[:k])) + 1
                    end = self.start + line + _lines(cells) - 1
                    raise self._quoted(
                        line, f"its cell goes on to line {end}", "; if it is meant, take out the line break"
                    )
        if any(len(cells) != self.width for cells in block) and self.width:
            self._refuse_width(block, before)
        return block

    def _refuse_width(self, block: list[list[str]], before: int) -> None:
        """Raise BadData for the first line of a block with another number of cells; empty lines do not count."""
        row = self.row
        for k, cells in enumerate(block):
            if cells and len(cells) != self.width:
                line = self.start + before + sum(map(_lines, block[: k + 1]))
                message = f"it has {len(cells)} cells, the header {self.width} (line {line}); "
                if len(cells) > self.width and not any(cells[self.width :]):
                    message += f"if each row ends in {self.delimiter!r}, give the header one, too, and drop that column"
                elif len(cells) > self.width:
                    message += f"put cells with {self.delimiter!r} in quotes"
                else:
                    message += "complete the row, or drop it" if any(map(str.strip, cells)) else "drop this blank line"
                raise BadData(message, place=Place(self.call, row=row))
            row += bool(cells)

    def _quoted(self, line: int, reason: str, more: str = "") -> BadData:
        return BadData(
            f"{self.call}: line {self.start + line} of the file has a quote that is not closed there, or one within a "
            f"cell ({reason}), so that other rows would be read as part of it; remove that quote, or write it as "
            f"two{more}"
        )

    def read(
        self, header: Sequence[str], numeric: Sequence[int], named: Sequence[int], again: bool
    ) -> tuple[np.ndarray, list[list[str]]]:
        """Numbers [n, columns] of some columns, and the texts of each of some others.

        Args:
            again: whether the first line is a row

        Raises BadData, naming row and column, for a row of another length and for a cell that is not a number.
        """
        values = array("d")
        texts = [list[str]() for _ in named]
        rows = 0
        self.width, self.row = len(header), int(again)
        block = [self.first] if again else []
        while block := block or self._block(BLOCK):
            block = [cells for cells in block if cells]
            if not block:
                continue
            columns = [*zip(*block, strict=True)]
            values.frombytes(self._numbers(columns, numeric, header, rows).tobytes())
            for cells_of, j in zip(texts, named, strict=True):
                cells_of += map(str.strip, columns[j])
            rows += len(block)
            self.row = rows
            block = []
        return np.frombuffer(values, np.float64).reshape(rows, len(numeric)), texts

    def _numbers(
        self, columns: Sequence[Sequence[str]], numeric: Sequence[int], header: Sequence[str], first: int
    ) -> np.ndarray:
        """The cells of the numeric columns of some rows, which begin at row ``first``."""
        out = np.empty((len(columns[0]), len(numeric)))
        for k, j in enumerate(numeric):
            cells = columns[j]
            if j not in self.typed and (some := {*map(str.strip, cells)} - ({""} if self.missing else set())):
                self.typed.add(j)
                if some <= FLAGS.keys():
                    self.flags.add(j)
            place = Place(self.call, column=header[j])
            try:
                if j in self.flags:
                    out[:, k] = self._flags(cells, place)
                    continue
                with suppress(ValueError):
                    out[:, k] = np.fromiter(map(float, cells), np.float64, len(out))
                    if (np.abs(out[:, k]) < 2**53).all() and "_" not in "".join(cells):
                        continue
                named = {header[i]: np.array(columns[i]) for i in numeric}
                out[:, k] = numbers(np.array(cells, object), place, named, self.missing)
            except BadData as e:
                raise e.at(place.at(first + (e.row or 0))) from None
        return out

    def _flags(self, cells: Sequence[str], place: Place) -> list[float]:
        """Cells of a column of True and False as numbers. Raises BadData for the first that is neither."""
        values = FLAGS | ({"": math.nan} if self.missing else {})
        row = next((r for r, c in enumerate(cells) if c.strip() not in values), None)
        if row is None:
            return [values[c.strip()] for c in cells]
        if is_number(cells[row]):
            raise BadData(f"{cells[row]!r} among True and False; write all the same way", place=place.at(row))
        raise no_number(cells[row], place.at(row))


def _lines(cells: Sequence[str]) -> int:
    """How many lines of the file these cells are."""
    return 1 + sum(c.count("\n") for c in cells)


def names_of_columns(first: Sequence[str], header: bool | None, delimiter: str, call: str) -> list[str]:
    """The names in a file's first line, or "0", "1", ... if ``header`` is False.

    Raises RecipeError for a line with another delimiter. Raises BadData for an empty file, and for a first line of
    numbers, unless ``header`` says that they are names. If somebody wrote a frame without column names, its first line
    is 0, 1, ...; Medley takes these as names and says so in the log.
    """
    if not first:
        raise BadData(f"{call}: the file is empty; its first line should name the columns")
    if first[0].startswith("#") and len(first) == 1:
        raise BadData(f"{call}: the first line, {first[0]!r:.60}, names no columns; remove the lines above their names")
    if 2 * sum(not cell.strip() for cell in first) > len(first):
        text = next((cell for cell in first if cell.strip()), "")
        raise BadData(
            f"{call}: the first line, {text!r:.60}, does not name its {len(first)} columns; remove the lines above "
            "their names"
        )
    if len(first) == 1 and (other := next((c for c in ";\t|," if c in first[0] and c != delimiter), None)):
        raise RecipeError(f"{call}: the header is one column, {first[0]!r}; pass delimiter={other!r}", "delimiter")
    counted = [str(j) for j in range(len(first))]
    if header is False:
        return counted
    values = [name for name in first if is_number(name)]
    odd = [name for name in values if not name.strip().lstrip("+-").isdigit()]
    if header is None and (odd or 2 * len(values) >= max(2, len(first))) and values != counted[: len(values)]:
        raise BadData(
            f"{call}: the first line has numbers, {', '.join(values[:5])}, where names of columns belong; say "
            "header=False if it is a row (columns are then called '0', '1', ...), or header=True if these are names"
        )
    if header is None and values and values == counted[: len(values)]:
        log.warning(
            "%s: the first line, %s, is taken for the names of columns, as of a frame that has none; "
            "say header=False if it is a row, or header=True if these are names",
            call,
            ", ".join(first[:5]),
        )
    return [name.strip() for name in first]


def reencode(file: Path) -> str:
    """Advice for a CSV file that is not in UTF-8: UTF-16 if it has that byte order mark, else Windows' or Latin-1."""
    content = file.read_bytes()
    start = content[:14]
    code = "cp1252"
    try:
        code = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else code
        code = {b"\0": "utf-16-be", b"": code}.get(start[:1], "utf-16-le" if start[1:2] == b"\0" else code)
        content.decode(code)
    except UnicodeDecodeError:
        code = "latin-1"
    lines = [(k, line) for k, line in enumerate(content.split(b"\n"), 1) if not line.isascii()]
    right = [k for k, line in lines if _is_utf8(line)]
    if right and len(right) < len(lines) and code[:3] != "utf":
        wrong = next(k for k, line in lines if not _is_utf8(line))
        return f"Line {right[0]} is in UTF-8 and line {wrong} is not: convert the files before you join them."
    how = f"encoding={code!r}, {SEPARATED}" + (", skiprows=1" if b"sep=" in start.replace(b"\0", b"") else "")
    return f"Save it so, or read it by datasets.frame(pandas.read_csv(path, {how}), target=...)."


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


PACKED = {
    b"\x1f\x8b": "is packed by gzip; unpack it first, gzip -d FILE, or give datasets.frame(pandas.read_csv(path), ...)",
    b"PK": "is a zip archive, as .xlsx is; save it as CSV, or give datasets.frame(pandas.read_excel(path), ...)",
    b"\xd0\xcf": "is a file of Excel's; save it as CSV, or give datasets.frame(pandas.read_excel(path), ...)",
    b"BZ": "is packed by bzip2; unpack it first, or give datasets.frame(pandas.read_csv(path), ...)",
    b"\xfd7": "is packed by xz; unpack it first, or give datasets.frame(pandas.read_csv(path), ...)",
    b"PA": "is a Parquet file; give datasets.parquet(path, ...)",
    b"\x89P": "is a picture, not a table; give the path of a CSV file, or pictures in folders to datasets.folder",
    b"\xff\xd8": "is a picture, not a table; give the path of a CSV file, or pictures in folders to datasets.folder",
    b"%P": "is a PDF, not a table; save the table as CSV",
}
"""The first two bytes of files that are no text, with the end of a sentence about each."""

MAGIC = {b"PK": b"PK\x03\x04", b"BZ": b"BZh", b"PA": b"PAR1", b"%P": b"%PDF"}
"""More of the first bytes, where two could begin a text."""


def refuse_packed(file: Path, call: str) -> None:
    """Raise BadData, naming the call, for a file that does not begin like a text."""
    with file.open("rb") as stream:
        first = stream.read(4)
        clause = PACKED.get(first[:2])
        if clause and first.startswith(MAGIC.get(first[:2], first[:2])):
            raise BadData(f"{call}: {file} {clause}")
        if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return
        if b"\0" in first:
            raise BadData(f"{call}: {file} is no CSV file in UTF-8 (it has NUL bytes). {reencode(file)}")
        line = 1
        while block := stream.read(1 << 20):
            if (at := block.find(b"\0")) >= 0:
                line += block.count(b"\n", 0, at)
                raise BadData(
                    f"{call}: line {line} of the file has a NUL byte, which no text has; "
                    "remove such bytes, for example by tr -d '\\000' < FILE > OTHER"
                )
            line += block.count(b"\n")


def check_delimiter(delimiter: str, call: str) -> None:
    """Raise RecipeError, naming the call, unless the text can stand between the cells of a CSV file."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise RecipeError(f"{call}: delimiter must be one character, no quote or line end", "delimiter")
