"""The register of a site: which rows the sums had that have left it, by patient.

A figure is a sum over a set of rows. If you have several figures, you also have every linear combination: the
difference of "all" and "everyone up to 90" is a figure of the people above 90. The register keeps the sets, and a new
one leaves only if no linear combination of all of them depends on fewer patients than the site's least number.

With the sets as rows of a matrix B of zeros and ones [sets, patients], this means: every vector of B's row space except
0 has at least ``least`` entries that are not 0. A patient whose row was corrected has x before and x + δ after it: a
combination that leaves no x must have that many δ.

**The file** has a line of JSON for each of these: its form and its key's fingerprint; rows, ``[patient, version,
cells]``, with a keyed digest of each cell; ``[row, null, cells]`` for columns that came later; the rows of a table;
``[column, rows]``, a set whose sum has left. Rows of a set are bits, the first row first. Places in the frame do not
matter. ``Register(frame, file, least)`` reads and writes it; a line is on the disk before `admit` returns True.
"""

from __future__ import annotations

import contextlib
import copy
import json
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from filelock import FileLock

from ..contract import BadData, MedleyError
from ..rows.coding import folded
from ..storage.atomic import append, flush, make_folder, write, writing
from .cells import factorized
from .likeness import same_patients
from .rules import light, recoverable

FORM = 2
"""The form of the file."""

DIGEST = 6
"""The bytes of a cell's digest."""

REMEDY = "what has left is not known; put back copies of the file and of its key, made after the last study"
"""What to do about a damaged register."""


def file_of(folder: str | Path, name: str) -> Path:
    """The register of a site with this name: a file in the folder, whatever the name is."""
    plain = quote(name, safe=" ")
    return Path(folder) / f"{plain.replace('.', '%2E', 1) if plain.startswith('.') else plain}.jsonl"


class Register:
    """The sets of rows whose sums have left a site, by the column that is summed.

    Args:
        frame: the site's rows
        file: keeps the sets for other processes and for the next study on these patients; None: memory does. Its key
            is beside it, and both belong to their owner alone
        least: the least number of rows that may be new, gone or changed since a table of which something has left
        id: the column that names a patient; empty if content does

    Its methods raise BadData for a register of other rows or a damaged one, and MedleyError if it cannot be written.
    """

    def __init__(self, frame: Any, file: str | Path | None = None, least: int = 1, id: str = "") -> None:
        self.frame = frame
        self.least = least
        self.id = id
        self.file = None if file is None else Path(file)
        self._forget()

    def _forget(self) -> None:
        """Begin again, from the file if there is one."""
        rows = range(len(self.frame)) if self.file is None else range(0)
        self.sets = dict[str, dict[bytes, np.ndarray]]()
        self.notes = dict[str, Any]()
        self._patient = list[int](rows)  # of each of the register's rows
        self._version = [0] * len(rows)
        self._cells = list[dict[str, int]]()
        self._tables = list[np.ndarray]()
        self._at = np.arange(len(rows)) if self.file is None else None  # the frame's rows among the register's
        self._plain = self.file is None  # whether these are the same, and each is a patient
        self._read = 0
        self._lines = 0
        self._pending = list[Any]()
        self._numbers = np.zeros(0, int)  # `_patient` as an array
        self._safe = dict[str, tuple[int, int, int]]()  # by key, how many sets hide so many patients of so many rows

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else writes meanwhile, and what others have written is known."""
        return contextlib.nullcontext() if self.file is None else self._reading(self.file)

    @contextlib.contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        with _locked(file):
            self._catch_up(file)
            if self._at is None:
                self._match()
            yield

    def beside(self, before: Register | None = None) -> Register:
        """A register in memory that begins with what has left by this one, and by one made before."""
        with self.reading():
            out = copy.copy(self)
            out.file, out.notes, out._safe = None, dict(self.notes), {}
            out.sets = {key: dict(sets) for key, sets in self.sets.items()}
        for key, sets in before.sets.items() if before else ():
            out.sets.setdefault(key, {}).update(sets)
        return out

    def admit(self, key: str, rows: Sequence[np.ndarray], least: int) -> bool:
        """Whether sums of ``key`` over these rows [n] may leave, given those that have left; if so, it is recorded."""
        with self.reading():
            sets = self._sets(rows)
            before = self.sets.get(key, {})
            if sets.keys() - before.keys() or self._safe.get(key) != (least, len(before), len(self._patient)):
                if not self._hides([*(before | sets).values()], least):
                    return False
                self._record(key, sets)
                self._safe[key] = least, len(self.sets[key]), len(self._patient)
        return True

    def add(self, keys: Iterable[str], rows: Sequence[np.ndarray]) -> None:
        """Record that sums of these keys over these rows [n] leave."""
        with self.reading():
            sets = self._sets(rows)
            for key in keys:
                self._record(key, sets)

    def _sets(self, rows: Sequence[np.ndarray]) -> dict[bytes, np.ndarray]:
        """The register's rows of the sets that are not empty, from rows [n] of the frame, each set once."""
        return {_packed(s): s for s in map(self.spread, rows) if s.any()}

    def _record(self, key: str, sets: Mapping[bytes, np.ndarray]) -> None:
        new = {packed: s for packed, s in sets.items() if packed not in self.sets.get(key, {})}
        self._write([[key, packed.hex()] for packed in new])
        self.sets.setdefault(key, {}).update(new)

    def note(self, key: str, make: Callable[[], Any]) -> Any:
        """What the register remembers under ``key``: ``make()``, if it remembers nothing yet; a value of JSON."""
        with self.reading():
            if key not in self.notes:
                value = make()
                self._write([{"note": key, "value": value}])
                self.notes[key] = value
            return self.notes[key]

    def spend(self, column: str, bits: Mapping[str, float], most: float) -> bool:
        """Enter bits that leave of a column, each key once; False, and nothing is entered, if all exceed ``most``."""
        with self.reading():
            new = {f"{column} bits {key}": v for key, v in bits.items()}
            new = {key: round(v, 2) for key, v in new.items() if v and key not in self.notes}
            if new and self.spent(column) + sum(new.values()) > most:
                return False
            self._write([{"note": key, "value": v} for key, v in new.items()])
            self.notes |= new
        return True

    def spent(self, column: str) -> float:
        """The bits of a column that have left."""
        return float(sum(v for key, v in self.notes.items() if key.startswith(f"{column} bits ")))

    def ordered(self, values: np.ndarray) -> np.ndarray:
        """Values of the frame's rows [n], in the register's order of rows; 0 for others, of which the last are cut."""
        with self.reading():
            assert self._at is not None
            out = values + 0.0
            if not self._plain:
                out = np.zeros(len(self._patient))
                out[self._at] = values + 0.0
            if len(out) and out[-1]:
                return out
            return out[: np.flatnonzero(out)[-1] + 1] if out.any() else out[:0]

    def spread(self, rows: np.ndarray) -> np.ndarray:
        """The register's rows, bool, from rows [n] of the frame."""
        assert self._at is not None
        if self._plain:
            return np.array(rows, bool)
        out = np.zeros(len(self._patient), bool)
        out[self._at[rows]] = True
        return out

    def persons(self, rows: np.ndarray) -> np.ndarray:
        """Patients, bool, from the register's rows; earlier sets may be shorter than it is now."""
        if self._plain:
            return rows
        if len(self._numbers) != len(self._patient):
            self._numbers = np.array(self._patient, int)
        out = np.zeros(len(self._patient), bool)
        out[self._numbers[np.flatnonzero(rows)]] = True
        return out

    def _hides(self, sets: Sequence[np.ndarray], least: int) -> bool:
        """Whether each linear combination of sums over these sets has at least that many patients."""
        of = [self.persons(s) for s in sets]
        if recoverable(of, least):
            return False
        if least <= 1 or not any(self._version) or not sets:
            return True
        B = np.array(of, float)
        D = np.zeros((len(sets), len(self._patient)))
        version = np.array(self._version, float)
        weights = np.sqrt(version * (version + 1.3))  # independent, so that no two versions cancel
        for row, s in zip(D, sets, strict=True):
            places = np.flatnonzero(s)
            np.add.at(row, self._numbers[places], weights[places])
        size, u = np.linalg.eigh(B @ B.T)
        both, counts = np.unique(np.vstack([B, D])[:, D.any(0)], axis=1, return_counts=True)
        none = u[:, size <= 1e-9 * max(size[-1], 1e-300)].T  # combinations in which no x is left
        return not none.size or not light(none @ both[len(B) :], counts, least)

    def _catch_up(self, file: Path) -> None:
        """Read what is new in the file. Raises BadData, naming the line, if it is damaged."""
        text = b""
        size = file.stat().st_size if file.exists() else 0
        if size > self._read and self._pending and self._at is not None:
            self._forget()  # others have written rows meanwhile, which may be the same
        if size < self._read:
            raise BadData(f"{file} is shorter than it was: {REMEDY}")
        if size:
            with writing(file), file.open("r+b") as f:
                f.seek(self._read)
                text = f.read()
                if text:
                    flush(f.fileno())  # what another process has written may not be on the disk yet
        end = text.rfind(b"\n") + 1  # a line that was not written to its end describes nothing that has left
        for k, line in enumerate(text[:end].splitlines(), self._lines + 1):
            try:
                self._take(json.loads(line), k)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as e:
                if isinstance(e, MedleyError):
                    raise
                self._forget()
                raise BadData(f"{file}: line {k} is damaged, or of another key: {REMEDY}") from None
        self._read += end
        self._lines += text[:end].count(b"\n")

    def _take(self, line: Any, number: int) -> None:
        """Take over one line. Raises ValueError, or another of its kind, for one that is damaged."""
        if number == 1 and (line["register"], line["of"]) != (FORM, self._fingerprint()):
            raise ValueError
        if isinstance(line, list):
            key, packed = line
            self.sets.setdefault("" + key, {})[bytes.fromhex(packed)] = self._unpacked(packed)
        elif "note" in line:
            self.notes[line["note"]] = line["value"]
        elif "table" in line:
            self._tables.append(self._unpacked(line["table"]))
        elif "columns" in line:
            for place, version, cells in line["rows"]:
                raw = dict(zip(line["columns"], _pieces(cells), strict=True))
                if version is None:  # of columns that came later
                    self._cells[range(len(self._cells))[place]] |= raw
                    continue
                self._patient.append(range(len(self._patient) + 1)[place])
                self._version.append(int(version))
                self._cells.append(raw)
        elif number > 1:
            raise ValueError

    def _unpacked(self, packed: str) -> np.ndarray:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8)).astype(bool)
        if bits[len(self._patient) :].any():
            raise ValueError
        return bits[: len(self._patient)]

    def _write(self, lines: list[Any]) -> None:
        """Put lines on the disk, the first time after the rows that they speak of."""
        if self.file is None or not lines:
            return
        text = "".join(json.dumps(line) + "\n" for line in [*self._pending, *lines]).encode()
        append(self.file, self._read, text)
        self._read += len(text)
        self._lines += text.count(b"\n")
        self._pending = []

    def _key(self) -> bytes:
        assert self.file is not None
        path = self.file.with_suffix(".key")
        if not path.exists():
            if self.file.exists() and self.file.stat().st_size:
                raise BadData(f"{path} is missing, the key of {self.file}: {REMEDY}")
            write(path, secrets.token_hex(32), owner_only=True)
        with writing(path):
            key = path.read_bytes().strip()
        if len(key) != 64:
            raise BadData(f"{path} is damaged, the key of {self.file}: {REMEDY}")
        return key

    def _fingerprint(self) -> str:
        return blake2b(b"register", key=self._key(), digest_size=8).hexdigest()

    def _digests(self) -> tuple[list[str], np.ndarray]:
        """The columns, and a keyed digest of each cell [n, columns]."""
        key = self._key()
        names = sorted(self.frame.columns)
        out = np.zeros((len(self.frame), len(names)), np.int64)
        for j, name in enumerate(names):
            column = self.frame[name]
            codes, kinds = factorized(column)
            texts = [*(plain(v, str(column.dtype)) for v in kinds.tolist()), ""]
            raw = [blake2b(f"{name}\0{v}".encode(), key=key, digest_size=DIGEST).digest() for v in texts]
            out[:, j] = np.array([int.from_bytes(v, "big") for v in raw])[codes]
        return names, out

    def _match(self) -> None:
        """Find the frame's rows in the register by their cells. Raises BadData if they cannot be its rows."""
        names, cells = self._digests()
        n = len(cells)
        of = self.id
        if of and (of not in names or len({*cells[:, names.index(of)]}) < n or self.frame[of].isna().any()):
            raise BadData(f"Rules(id={of!r}): name a column that has a different value in every row, and none missing")
        if not self._read:
            self._refuse_another()
        place = np.full(n, -1)
        groups = dict[tuple[str, ...], list[int]]()
        for e, mine in enumerate(self._cells):
            groups.setdefault(tuple(mine), []).append(e)
        for columns, members in groups.items():
            shared = [c for c in columns if c in names]
            kinds: dict[tuple[int, ...], list[int]] = {}
            for e in reversed(members):
                kinds.setdefault(tuple(self._cells[e][c] for c in shared), []).append(e)
            alike = [es for es in kinds.values() if len({tuple(self._cells[e].values()) for e in es}) > 1]
            if alike and of not in shared:
                gone = ", ".join(c for c in columns if c not in names)
                raise BadData(f"{self.file}: these rows cannot be told apart without {gone}; give these columns, too")
            at = [names.index(c) for c in shared]
            for i in np.flatnonzero(place < 0):
                same = kinds.get(tuple(cells[i, at].tolist()))
                if same:
                    place[i] = same.pop()
        self._place(names, cells, place)

    def _refuse_another(self) -> None:
        """Raise BadData if the folder has a register of these rows, or of this site's name in another spelling."""
        assert self.file is not None
        for other in sorted(self.file.parent.glob("*.jsonl")):
            if other == self.file or not other.with_suffix(".key").exists():
                continue
            same = _spelt(other) == _spelt(self.file)
            if not same:
                with contextlib.suppress(BadData):
                    same = Register(self.frame, other, 1, self.id)._has_patients()
            if same:
                site = unquote(other.stem)
                other_ids = f"; if they are other patients, give them {self.id} that no patient of {site!r} has"
                raise BadData(
                    f"{other} is the register of these rows, or of this site's name in another spelling: name the site "
                    f"{site!r}, as then{other_ids if self.id else ''}. A second register would give the patients away"
                )

    def _has_patients(self) -> bool:
        """Whether the file is a register of the frame's patients: of its ids, or of rows that are alike to its rows."""
        assert self.file is not None
        with _locked(self.file):
            self._catch_up(self.file)
            names, cells = self._digests()
        shared = [c for c in names if any(c in row for row in self._cells)]
        if not shared:
            return False
        mine = cells[:, [names.index(c) for c in shared]]
        theirs = np.array([[row.get(c, -1) for c in shared] for row in self._cells])
        if self.id in shared:
            at = shared.index(self.id)
            return 2 * len(np.intersect1d(mine[:, at], theirs[:, at])) >= min(len(mine), len(theirs))
        return same_patients(mine, theirs)

    def _place(self, names: list[str], cells: np.ndarray, place: np.ndarray) -> None:
        """Give rows that the register does not know a patient, and compare the table with earlier ones."""
        present = {self._patient[e] for e in place if e >= 0}
        rest = [e for e in range(len(self._patient)) if self._patient[e] not in present]
        before = np.array([[self._cells[e].get(c, -1) for c in names] for e in rest]).reshape(-1, len(names))
        patient = [*self._patient]
        version = [*self._version]
        at = place.copy()
        latest = dict[int, int]()  # the version of each patient
        for p, v in zip(patient, version, strict=True):
            latest[p] = max(v, latest.get(p, -1))
        fresh = np.flatnonzero(place < 0)
        for i in fresh:
            who = len(patient)
            at[i] = who
            if rest:
                alike = before == cells[i]
                score = alike.mean(1)
                if self.id:
                    ids = names.index(self.id)
                    score = np.where(before[:, ids] == -1, score, alike[:, ids])
                if score.max() > 0.5:  # the same patient, with another value
                    who = patient[rest[int(score.argmax())]]
                    before[[patient[e] == who for e in rest]] = -2
            latest[who] = 1 + latest.get(who, -1)
            version.append(latest[who])
            patient.append(who)
        self._compare(at, patient)
        lines: list[Any] = [] if self._read else [{"register": FORM, "of": self._fingerprint()}]
        lines += [{"columns": names, "rows": [[patient[at[i]], version[at[i]], _text(cells[i])] for i in fresh]}]
        for j, name in enumerate(names):
            more = [i for i in np.flatnonzero(place >= 0) if name not in self._cells[place[i]]]
            if more:
                lines += [{"columns": [name], "rows": [[int(place[i]), None, _text(cells[i, [j]])] for i in more]}]
        for e, row in zip(place, cells, strict=True):
            if e >= 0:
                self._cells[e] |= dict(zip(names, row.tolist(), strict=True))
        self._cells += [dict(zip(names, cells[i].tolist(), strict=True)) for i in fresh]
        self._patient = patient
        self._version = version
        self._at = at
        table = _packed(self.spread(np.ones(len(at), bool)))
        if table not in map(_packed, self._tables):
            self._pending = [*lines, {"table": table.hex()}]

    def _compare(self, at: np.ndarray, patient: list[int]) -> None:
        """Raise BadData unless the table is one of the register's, or differs from each in enough rows."""
        mine = {patient[e]: e for e in at}
        for table in self._tables:
            other = {patient[e]: e for e in np.flatnonzero(table)}
            new = mine.keys() - other.keys()
            gone = other.keys() - mine.keys()
            changed = [p for p in mine.keys() & other.keys() if mine[p] != other[p]]
            if 2 * (len(mine) - len(new)) < min(len(mine), len(other)):
                raise BadData(
                    f"{self.file} is a register of other rows, not of these {len(at)}; for other patients give another "
                    "folder. If these are the same, give the columns and codes that they had, or Rules(id=...): with "
                    "a register of its own a second table of the same patients gives them away"
                )
            for few, what in ((new, "new"), (gone, "gone"), (changed, "changed")):
                if 0 < len(few) < self.least:
                    raise BadData(
                        f"{self.file}: fewer than {self.least} rows are {what} since sums of these patients have left, "
                        f"and a difference would be about them; wait until at least {self.least} are {what}, or "
                        "give the table as it was"
                    )


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Nobody else uses the register in this file meanwhile. Raises BadData for links, MedleyError without a lock."""
    folder = make_folder(file.parent)
    lock = file.with_suffix(".lock")
    for path in (file, lock, file.with_suffix(".key")):
        if path.is_symlink():
            raise BadData(f"{path} is a link; put the file itself in {folder}")
    with writing(lock):
        lease = FileLock(lock, mode=0o600, is_singleton=True).acquire()
    with lease:
        yield


def _spelt(file: Path) -> str:
    return folded(unicodedata.normalize("NFKC", unquote(file.stem)))


def _packed(rows: np.ndarray) -> bytes:
    return np.packbits(rows).tobytes().rstrip(b"\0")


def _text(cells: np.ndarray) -> str:
    return b"".join(int(v).to_bytes(DIGEST, "big") for v in cells).hex()


def _pieces(cells: str) -> list[int]:
    raw = bytes.fromhex(cells)
    return [int.from_bytes(raw[k : k + DIGEST], "big") for k in range(0, len(raw), DIGEST)]


def plain(cell: Any, dtype: str = "") -> str:
    """A cell as a text that is the same after a file was read again: 5, 5.0 and "5", a day and its midnight."""
    text = str(np.float32(cell)) if dtype.lower() == "float32" else str(cell).strip()
    with contextlib.suppress(ValueError):
        number = float(cell if isinstance(cell, bool | np.bool_) else text)
        if abs(number) < 2**53:  # of larger whole numbers a float has not every digit
            return str(int(number)) if number == int(number) else repr(number)
    if text in ("<NA>", "NaT", "nan", "None"):
        return ""
    return text[:10] if text[10:] in (" 00:00:00", "T00:00:00") else text
