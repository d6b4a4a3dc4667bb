"""Image sets in their published formats, as float32 pixels in [0, 1], [n, channels, height, width].

All readers look for their files in ``folder``, else $MEDLEY_DATA, else ~/.cache/medley. With ``normalise=True`` they
subtract the training mean of each channel and divide by its standard deviation. CIFAR also takes
``normalise="published"``: `CONSTANTS`, which do not depend on the rows in the files. They raise ``BadData`` for files
that are missing or damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, RecipeError, checked
from . import on_use
from .dataset import Dataset
from .files import Place, find
from .formats import read_idx, read_npz, read_records
from .on_use import by_row
from .readers.folders import decoded

FASHION = ("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CONSTANTS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""Mean and standard deviation of each channel over all training images, to four digits, as is usual."""

Normalise = bool | Literal["published"]

EMNIST = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}
"""EMNIST's splits and their numbers of classes."""


@checked("datasets")
def mnist(folder: Place | None = None, normalise: bool = False) -> Dataset:
    """MNIST: 60,000 + 10,000 handwritten digits, 28×28, from its four idx files (LeCun et al., 1998).

    They lie under ``MNIST/raw`` or in the folder itself, packed with gzip or not.
    """
    return _idx("mnist", folder, ("MNIST/raw", "MNIST"), "0123456789", normalise)


@checked("datasets")
def fashion_mnist(folder: Place | None = None, normalise: bool = False) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 pieces of clothing, 28×28, in MNIST's format (Xiao, Rasul, Vollgraf, 2017)."""
    return _idx("fashion_mnist", folder, ("FashionMNIST/raw", "FashionMNIST"), FASHION, normalise)


def _idx(
    name: str,
    folder: Place | None,
    inside: Sequence[str],
    labels: Sequence[str],
    normalise: bool,
    classes: int | None = None,
    parts: Sequence[str] = ("train", "t10k"),
    call: str = "",
) -> Dataset:
    """The set in four idx files; ``classes`` is the number of classes without names."""
    kinds = {"images-idx3": 3, "labels-idx1": 1}
    call = call or f"datasets.{name}()"
    paths = find(call, [f"{part}-{kind}-ubyte" for part in parts for kind in kinds], folder, inside, gz=True)
    X, y, X_test, y_test = (read_idx(path, dims, call) for path, dims in zip(paths, [*kinds.values()] * 2, strict=True))
    if name.startswith("emnist"):  # its images lie transposed, and its letters count from 1
        X = X.transpose(0, 2, 1)
        X_test = X_test.transpose(0, 2, 1)
    rows = (_pixels(X[:, None]), _labels(y), _pixels(X_test[:, None]), _labels(y_test))
    if name == "emnist_letters":
        rows = (rows[0], rows[1] - 1, rows[2], rows[3] - 1)
    data = Dataset(*rows, classes or len(labels), name=name, labels=tuple(labels))
    return data.standardise() if normalise else data


@checked("datasets")
def cifar10(folder: Place | None = None, normalise: Normalise = False) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour photographs, 32×32, from the binary version (Krizhevsky, 2009)."""
    call = "datasets.cifar10()"
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    parts = [read_records(path, 1, 3072, call) for path in find(call, names, folder, ("cifar-10-batches-bin",))]
    y, X = (np.concatenate(p) for p in zip(*parts[:-1], strict=True))
    y_test, X_test = parts[-1]
    data = Dataset(
        _photos(X), _labels(y[:, 0]), _photos(X_test), _labels(y_test[:, 0]), 10, name="cifar10", labels=CIFAR10
    )
    return _normalised(data, normalise)


@checked("datasets")
def cifar100(folder: Place | None = None, normalise: Normalise = False) -> Dataset:
    """CIFAR-100: colour photographs of 100 classes, 32×32, from the binary version (Krizhevsky, 2009).

    ``keys["coarse"]`` holds the superclass, 0..19, of every training row.
    """
    call = "datasets.cifar100()"
    train, test = find(call, ["train.bin", "test.bin"], folder, ("cifar-100-binary",))
    y, X = read_records(train, 2, 3072, call)
    y_test, X_test = read_records(test, 2, 3072, call)
    keys = {"coarse": y[:, 0].astype(np.int64)}
    data = Dataset(_photos(X), _labels(y[:, 1]), _photos(X_test), _labels(y_test[:, 1]), 100, keys, name="cifar100")
    return _normalised(data, normalise)


def _normalised(data: Dataset, normalise: Normalise) -> Dataset:
    if normalise == "published":
        mean, sd = (torch.tensor(values)[:, None, None] for values in CONSTANTS[data.name])
        return data.map(lambda X: by_row(X, lambda X: X.sub_(mean).div_(sd)))  # in place: the reader has just made them
    return data.standardise() if normalise else data


@checked("datasets")
def emnist(
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "balanced",
    folder: Place | None = None,
    normalise: bool = False,
) -> Dataset:
    """EMNIST: handwritten digits and letters, 28×28, from its idx files (Cohen et al., 2017).

    They lie under ``EMNIST/raw``, ``EMNIST``, ``gzip`` or in the folder itself, packed with gzip or not. The files hold
    images transposed; here they are upright. Letters count from 0. The idx files do not say who wrote a row;
    `datasets.femnist` does.

    Args:
        split: "balanced" (default, 47 classes), "byclass" (62), "bymerge" (47), "digits" (10), "letters" (26) or
            "mnist" (10).
        folder: The folder to look in first; default none.
        normalise: Whether to standardise; default False.

    Raises RecipeError if the split is unknown, and BadData if a file is missing or damaged.
    """
    call = f"datasets.emnist({split!r})"
    inside = ("EMNIST/raw", "EMNIST", "gzip")
    parts = [f"emnist-{split}-{part}" for part in ("train", "test")]
    return _idx(f"emnist_{split}", folder, inside, (), normalise, EMNIST[split], parts, call)


@checked("datasets")
def tiny_imagenet(folder: Place | None = None, normalise: bool = False, classes: int = 200) -> Dataset:
    """Tiny ImageNet in its original layout: 100,000 + 10,000 photographs of 200 classes, 64×64 (Le & Yang, 2015).

    The layout is ``train/<wnid>/images/*.JPEG``, ``val/images/*.JPEG`` and ``val/val_annotations.txt``, under
    ``tiny-imagenet-200`` or in the folder itself. Classes are numbered in the order of their wnids. All 200 take 5.4 GB
    as float32. Decoding needs Pillow, the extra ``images``.

    Args:
        folder: The folder to look in first; default none.
        normalise: Whether to standardise; default False.
        classes: Number of classes, the first in the order of wnids; default 200.

    Raises RecipeError if there are fewer classes, or Pillow is missing, and BadData if a file is missing or
    damaged, or an image is not 64×64.
    """
    call = "datasets.tiny_imagenet()"
    (notes,) = find(call, ["val/val_annotations.txt"], folder, ("tiny-imagenet-200",))
    root = notes.parent.parent
    wnids = sorted(path.name for path in root.glob("train/*/") if path.is_dir())
    if not 1 <= classes <= len(wnids):
        raise RecipeError(
            f"{call}: {root}/train has {len(wnids)} class folders, but you passed classes={classes}; pass 1 to "
            f"{len(wnids)}",
            "classes",
        )
    labels = {wnid: k for k, wnid in enumerate(wnids[:classes])}
    train = list[tuple[Path, int]]()
    for wnid, k in labels.items():
        train += [(path, k) for path in sorted((root / "train" / wnid).glob("images/*.JPEG"))]
    if not train:
        raise BadData(f"{call}: there are no images in {root}/train/<wnid>/images/*.JPEG. Unpack the archive again.")
    val = []
    for number, line in enumerate(notes.read_text(encoding="utf-8").splitlines(), 1):
        name, wnid, *_ = [*line.split("\t"), "", ""]
        if wnid not in wnids:
            raise BadData(f"{call}: {notes}, line {number}: {wnid!r} is no class of {root}/train. Unpack it again.")
        if wnid in labels:
            val.append((root / "val" / "images" / name, labels[wnid]))
    X, y = _photo_files(train, call)
    X_test, y_test = _photo_files(val, call) if val else (None, None)
    data = Dataset(X, y, X_test, y_test, classes, name="tiny_imagenet", labels=tuple(labels))
    return data.standardise() if normalise else data


def _photo_files(rows: list[tuple[Path, int]], call: str) -> tuple[Tensor, Tensor]:
    return _decoded([(str(path), path) for path, _ in rows], call), torch.tensor([k for _, k in rows])


@checked("datasets")
def tiny_imagenet50(folder: Place | None = None, normalise: bool = False) -> Dataset:
    """Fifty classes of Tiny ImageNet: 10,000 + 2,500 photographs, 64×64, from one npz file of JPEGs.

    The file is ``tinyimagenet50_jpeg.npz``, in the folder or under ``packed``. It holds ``jpeg_*`` (bytes end to end),
    ``offset_*`` and ``y_*`` for train and val, and ``names``. Decoding needs Pillow, the extra
    ``images``; without it RecipeError is raised.
    """
    call = "datasets.tiny_imagenet50()"
    (path,) = find(call, ["tinyimagenet50_jpeg.npz"], folder, ("packed",))
    names = [f"{kind}_{part}" for part in ("train", "val") for kind in ("jpeg", "offset", "y")]
    arrays = read_npz(path, [*names, "names"], call)
    data = Dataset(
        _jpegs(arrays["jpeg_train"], arrays["offset_train"], call),
        _labels(arrays["y_train"]),
        _jpegs(arrays["jpeg_val"], arrays["offset_val"], call),
        _labels(arrays["y_val"]),
        len(arrays["names"]),
        name="tiny_imagenet50",
        labels=tuple(map(str, arrays["names"])),
    )
    return data.standardise() if normalise else data


def _jpegs(blob: np.ndarray, offset: np.ndarray, call: str) -> Tensor:
    raw = blob.tobytes()
    if len(offset) < 2 or offset[0] != 0 or offset[-1] != len(raw) or (np.diff(offset) <= 0).any():
        raise BadData(f"{call}: the file's offsets do not fit its {len(raw)} bytes of JPEGs; fetch the file again.")
    return _decoded([(f"image {k}", raw[a:b]) for k, (a, b) in enumerate(pairwise(offset))], call)


def _decoded(images: list[tuple[str, Path | bytes]], call: str) -> Tensor:
    numbers = np.arange(len(images))
    raw = sum(len(image) for _, image in images if isinstance(image, bytes))
    return on_use.rows(len(images), lambda some: decoded([images[k] for k in numbers[some]], call, side=64), raw)


def _photos(X: np.ndarray) -> Tensor:
    return _pixels(X.reshape(-1, 3, 32, 32))


def _pixels(X: np.ndarray) -> Tensor:
    return on_use.rows(len(X), lambda some: torch.from_numpy(X[some].astype(np.float32)).div_(255), X.nbytes)


def _labels(y: np.ndarray) -> Tensor:
    return torch.from_numpy(y.astype(np.int64))
