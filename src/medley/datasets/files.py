"""Places of data files, and readers of binary formats."""

from __future__ import annotations

import difflib
import gzip
import io
import logging
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from ..contract.errors import BadData, RecipeError
from ..rows.numbers import SEPARATED

log = logging.getLogger("medley")

Place = str | os.PathLike[str]

EXPECTED = {
    "a9a": "libsvm/a9a",
    "cifar10": "cifar-10-batches-bin/data_batch_1.bin",
    "cifar100": "cifar-100-binary/train.bin",
    "emnist": "EMNIST/raw/emnist-balanced-train-images-idx3-ubyte",
    "fashion_mnist": "FashionMNIST/raw/train-images-idx3-ubyte",
    "femnist": "femnist/data/train/*.json",
    "heart_disease": "flamby/processed.cleveland.data",
    "mnist": "MNIST/raw/train-images-idx3-ubyte",
    "msd_years": "msd_year_subset.npz",
    "online_news": "online_news_subset.npz",
    "sentiment140": "sentiment140_subset.npz",
    "sentiment140_tokens": "sentiment140_subset.npz",
    "shakespeare": "shakespeare/data/train/*.json",
    "tcga_brca": "flamby/brca.csv",
    "tiny_imagenet": "tiny-imagenet-200/val/val_annotations.txt",
    "tiny_imagenet50": "packed/tinyimagenet50_jpeg.npz",
    "w8a": "libsvm/w8a",
}
"""The first file of each published set that is read from disk, from the folder that holds the data sets."""


def find(
    call: str, names: Sequence[str], folder: Place | None = None, inside: Sequence[str] = (), gz: bool = False
) -> list[Path]:
    """The paths of files that lie in one folder: in ``folder``, else $MEDLEY_DATA, else ~/.cache/medley.

    Args:
        folder: The folder to look in first; default none.
        inside: Sub-folders that are tried before each folder itself; default none.
        gz: Whether a file with ``.gz`` appended counts too; default False.

    Raises BadData if a file is in none of the folders; names the file and every folder.
    """
    looked = places(folder, inside)
    endings = ("", ".gz") if gz else ("",)
    nearest = list(names)
    for place in looked:
        found = {
            name: place / (name + end)
            for name in names
            for end in reversed(endings)
            if (place / (name + end)).is_file()
        }
        if len(found) == len(names):
            return list(found.values())
        nearest = min(nearest, [name for name in names if name not in found], key=len)
    raise BadData(
        f"{call}: {nearest[0]}{' (or .gz)' if gz else ''} is in none of {', '.join(map(str, looked))}. "
        "Put the file into one of them, pass folder=, or set MEDLEY_DATA to the folder that holds the data sets."
    )


def locate(path: Place, folder: Place | None, inside: Sequence[str], call: str) -> Path:
    """A user's file: the path itself if ``folder`` is None and the file exists, else the file that `find` finds.

    Raises BadData if the file is not found; names all places, the working directory too, and files with a similar name.
    """
    given = Path(path).expanduser()
    if folder is None and given.is_file():
        return given
    if given.is_dir():
        raise BadData(f"{call}: {path} is a folder; give the path of a file in it.")
    try:
        return find(call, [str(path)], folder, inside)[0]
    except BadData as e:
        beside = [given.parent.resolve()] if folder is None else []
        files = {f.name for place in (*beside, *places(folder, inside)) if place.is_dir() for f in place.iterdir()}
        near = difflib.get_close_matches(given.name, files, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        if folder is not None or (inside and given.name == str(path) and not given.suffix):  # such as "w8a"
            raise BadData(f"{e}{hint}") from None
        looked = ", ".join(map(str, places(folder, inside)))
        raise BadData(
            f"{call}: there is no {given.name} in {beside[0]}.{hint} Names are also looked up in {looked}; "
            "folder= or MEDLEY_DATA gives another folder."
        ) from None


def called(reader: str, path: Place, **given: str | None) -> str:
    """A reader's call as messages show it, without arguments that are None: "datasets.npz('a.npz', X='rows')"."""
    return (
        f"datasets.{reader}({', '.join([repr(str(path)), *(f'{k}={v!r}' for k, v in given.items() if v is not None)])})"
    )


def reencode(file: Path) -> str:
    """Advice for a CSV file that is not in UTF-8: UTF-16 if it has that byte order mark, else Latin-1."""
    with file.open("rb") as stream:
        start = stream.read(14)
    code = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
    how = f"encoding={code!r}, {SEPARATED}" + (", skiprows=1" if b"sep=" in start.replace(b"\0", b"") else "")
    return f"Save it so, or read it by datasets.frame(pandas.read_csv(path, {how}), target=...)."


PACKED = {
    b"\x1f\x8b": "is packed by gzip; unpack it first, gzip -d FILE, or give datasets.frame(pandas.read_csv(path), ...)",
    b"PK": "is a zip archive, as .xlsx is; save it as CSV, or give datasets.frame(pandas.read_excel(path), ...)",
    b"\xd0\xcf": "is a file of Excel's; save it as CSV, or give datasets.frame(pandas.read_excel(path), ...)",
    b"BZ": "is packed by bzip2; unpack it first, or give datasets.frame(pandas.read_csv(path), ...)",
    b"\xfd7": "is packed by xz; unpack it first, or give datasets.frame(pandas.read_csv(path), ...)",
    b"PA": "is a Parquet file; give datasets.parquet(path, ...)",
}
"""The first two bytes of files that are no text, with the end of a sentence about each."""

MAGIC = {b"PK": b"PK\x03\x04", b"BZ": b"BZh", b"PA": b"PAR1"}
"""More of the first bytes, where two could begin a text."""


def refuse_packed(file: Path, call: str) -> None:
    """Raise BadData, naming the call, for a file whose first bytes are not those of a text."""
    with file.open("rb") as stream:
        first = stream.read(4)
    if (said := PACKED.get(first[:2])) and first.startswith(MAGIC.get(first[:2], first[:2])):
        raise BadData(f"{call}: {file} {said}")


def check_delimiter(delimiter: str, call: str) -> None:
    """Raise RecipeError, naming the call, unless the text can stand between the cells of a CSV file."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise RecipeError(f"{call}: delimiter must be one character, no quote or line end", "delimiter")


def read_bytes(path: Path, call: str) -> bytes:
    """The content of a file, unpacked if it starts like gzip.

    Raises ``BadData``, naming ``call`` and file, if the gzip stream is damaged or larger than `unpacked_limit`.
    """
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            content = stream.read((most := unpacked_limit(len(raw))) + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise BadData(f"{call}: {path} is a damaged or truncated gzip file ({error}). Fetch it again.") from None
    if len(content) > most:
        raise too_large(f"{call}: {path}", len(raw), most)
    return content


def unpacked_limit(packed: int) -> int:
    """The most bytes that this many packed ones may become: 256 MiB, or 100 for one. Images and text become 2 to 10."""
    return max(1 << 28, 100 * packed)


def too_large(what: str, packed: int, most: int) -> BadData:
    """The error for a file that would fill the memory."""
    return BadData(
        f"{what}: {packed} packed bytes become more than {most}, as no data set's do. If it is meant, unpack it first."
    )


def read_idx(path: Path, dims: int, call: str) -> np.ndarray:
    """An array of unsigned bytes from an idx file, packed with gzip or not.

    Raises BadData if the file has another magic number, or a size that its header does not announce.
    """
    raw = read_bytes(path, call)
    head = 4 + 4 * dims
    if len(raw) < head or raw[:4] != bytes((0, 0, 8, dims)):
        raise BadData(
            f"{call}: {path} starts with {raw[:4].hex() or 'nothing'}, not with {bytes((0, 0, 8, dims)).hex()}: "
            f"it is no idx file of bytes with {dims} dimensions."
        )
    shape = struct.unpack(f">{dims}I", raw[4:head])
    size = int(np.prod(shape, dtype=object))
    if len(raw) - head != size:
        raise BadData(
            f"{call}: {path} announces {'×'.join(map(str, shape))} = {size} bytes after its header "
            f"and has {len(raw) - head}: truncated, or not what it says. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def read_records(path: Path, labels: int, pixels: int, call: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of label bytes and pixel bytes (CIFAR's binary versions), as [n, labels] and [n, pixels].

    Args:
        labels: Label bytes of a record, which come first.
        pixels: Pixel bytes of a record.

    Raises BadData if the file is empty or ends in the middle of a record.
    """
    raw = read_bytes(path, call)
    size = labels + pixels
    if not raw or len(raw) % size:
        raise BadData(
            f"{call}: {path} has {len(raw)} bytes, no multiple of a record's {size}: truncated, or another format. "
            "The binary version of the data set is needed."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return rows[:, :labels], rows[:, labels:]


def read_npz(path: Path, names: Sequence[str], call: str) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name; nothing is unpickled.

    Raises RecipeError if the file lacks a name, and BadData if the file is damaged or holds an array of objects.
    """
    try:
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise BadData(f"{call}: {path} is a single array; an .npz archive of named arrays is needed.")
            for name in names:
                if name not in archive.files:
                    raise RecipeError.unknown(name, archive.files, f"{call}: {path}")
            wanted = {*names, *(f"{name}.npy" for name in names)}
            size = sum(part.file_size for part in archive.zip.infolist() if part.filename in wanted)
            if size > (most := unpacked_limit(path.stat().st_size)):
                raise too_large(f"{call}: {path}", path.stat().st_size, most)
            return {name: archive[name] for name in names}
    except (BadData, RecipeError):
        raise
    except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise BadData(f"{call}: {path} cannot be read as an npz file of plain arrays ({error}).") from None


def warn_of_unread(path: Path, names: Collection[str], call: str) -> None:
    """Say in the log which arrays of an npz file are not among these names."""
    with np.load(path, allow_pickle=False) as archive:
        if rest := [name for name in archive.files if name not in names]:
            log.warning(
                "%s does not read %s; name a test set's arrays in X_test= and y_test=, and clients in client=",
                call, ", ".join(rest),
            )  # fmt: skip


def find_folder(call: str, name: str, pattern: str, folder: Place | None = None, inside: Sequence[str] = ()) -> Path:
    """The folder that holds a sub-folder ``name`` with files of this pattern; searched for as in `find`.

    Args:
        pattern: Pattern of the files in it, for example "*.json".
        inside: Sub-folders that are tried before each folder itself; default none.

    Raises BadData if there is no such folder; names all places.
    """
    looked = places(folder, inside)
    for place in looked:
        if any((place / name).glob(pattern)):
            return place
    raise BadData(
        f"{call}: {name}/{pattern} is in none of {', '.join(map(str, looked))}. "
        "Put the files into one of them, pass folder=, or set MEDLEY_DATA to the folder that holds the data sets."
    )


def there(name: str) -> bool:
    """Whether the first file of a set in `EXPECTED` lies in one of the folders, packed with gzip or not."""
    folder, _, file = EXPECTED[name].rpartition("/")
    # find() also takes files that lie in the folder itself, or in another sub-folder; reading finds those.
    return any(any((root / folder).glob(file + end)) for root in places() for end in ("", ".gz"))


def places(folder: Place | None = None, inside: Sequence[str] = ()) -> list[Path]:
    """The folders in which data sets are looked for, in this order; the arguments are those of `find`."""
    roots = [Path(folder).expanduser()] if folder is not None else []
    if os.environ.get("MEDLEY_DATA"):
        roots.append(Path(os.environ["MEDLEY_DATA"]).expanduser())
    roots.append(Path.home() / ".cache" / "medley")
    return [root / sub for root in roots for sub in (*inside, "")]
