"""Places of data files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from ..contract.errors import BadData

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
    """The paths of these files. All must be in one folder: ``folder``, else $MEDLEY_DATA, else ~/.cache/medley.

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
        present = {
            name: place / (name + end)
            for name in names
            for end in reversed(endings)
            if (place / (name + end)).is_file()
        }
        if len(present) == len(names):
            return list(present.values())
        nearest = min(nearest, [name for name in names if name not in present], key=len)
    raise BadData(
        f"{call}: {nearest[0]}{' (or .gz)' if gz else ''} is in none of {', '.join(map(str, looked))}. "
        "Put the file into one of them, pass folder=, or set MEDLEY_DATA to the folder that holds the data sets."
    )


def locate(path: Place, folder: Place | None, inside: Sequence[str], call: str) -> Path:
    """A user's file: the path itself if ``folder`` is None and the file exists, else the file that `find` finds.

    Raises BadData if the file is not found; names all places, the working directory too, and files with a similar name.
    """
    file = Path(path).expanduser()
    if folder is None and file.is_file():
        return file
    if file.is_dir():
        raise BadData(f"{call}: {path} is a folder; give the path of a file in it.")
    try:
        return find(call, [str(path)], folder, inside)[0]
    except BadData as e:
        parents = [file.parent.resolve()] if folder is None else []
        files = {f.name for place in (*parents, *places(folder, inside)) if place.is_dir() for f in place.iterdir()}
        near = difflib.get_close_matches(file.name, files, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        if folder is not None or (inside and file.name == str(path) and not file.suffix):  # such as "w8a"
            raise BadData(f"{e}{hint}") from None
        looked = ", ".join(map(str, places(folder, inside)))
        raise BadData(
            f"{call}: there is no {file.name} in {parents[0]}.{hint} Names are also looked up in {looked}; "
            "folder= or MEDLEY_DATA gives another folder."
        ) from None


def called(reader: str, path: Place, **arguments: str | None) -> str:
    """A reader's call as messages show it, without arguments that are None: "datasets.npz('a.npz', X='rows')"."""
    parts = [repr(str(path)), *(f"{k}={v!r}" for k, v in arguments.items() if v is not None)]
    return f"datasets.{reader}({', '.join(parts)})"


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


def is_present(name: str) -> bool:
    """Whether the first file of a set in `EXPECTED` lies in one of the folders, packed with gzip or not."""
    folder, _, file = EXPECTED[name].rpartition("/")
    # find() also takes files that lie in the folder itself, or in another sub-folder; reading finds those.
    return any(any((root / folder).glob(file + end)) for root in places() for end in ("", ".gz"))


def places(folder: Place | None = None, inside: Sequence[str] = ()) -> list[Path]:
    """The folders where Medley looks for data sets, in this order. For the arguments see `find`."""
    roots = [Path(folder).expanduser()] if folder is not None else []
    if os.environ.get("MEDLEY_DATA"):
        roots.append(Path(os.environ["MEDLEY_DATA"]).expanduser())
    roots.append(Path.home() / ".cache" / "medley")
    return [root / sub for root in roots for sub in (*inside, "")]
