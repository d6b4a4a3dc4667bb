"""Folders of image files, one per class."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch

from ...contract import BadData, RecipeError, at_least, checked
from ...rows.tensors import DEEP
from ...runtime.versions import install
from ..dataset import Dataset
from ..files import Place, called, find_folder
from ..ingest.keys import refuse_parts

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Extensions of image files, in upper or lower case; other files are left out."""


@checked("datasets")
def image_folder(
    path: Place,
    size: Annotated[int, at_least(1)] | None = None,
    channels: Literal[1, 3] = 3,
    clients: bool = False,
    folder: Place | None = None,
) -> Dataset:
    """Image files in a folder for each class, ``<class>/<image>``, as float32 pixels in [0, 1], [n, channels, h, w].

    Classes have their folders' names, in the order of the alphabet. Files whose names are not those of images, and
    folders that begin with "." or "__", are left out. A pixel takes four bytes a channel, and five while files are
    read. It needs Pillow, the extra ``images``.

    Args:
        path: The folder, or its name in the folder of data sets.
        size: Height and width to which images are resized, whatever their shape; default None, they must be alike.
        channels: 3 (default) for red, green and blue, 1 for grey.
        clients: Whether the layout is ``<client>/<class>/<image>``, which gives the key "client"; default False.
        folder: The folder to look in first; default none.

    Raises:
        RecipeError: ``size`` is below 1, or Pillow is missing.
        BadData: There is no such folder, no image, or one class only; an image cannot be read, has more than eight
            bits a channel, or another size. Names the file.
    """
    call = called("image_folder", path)
    direct = Path(path).expanduser()
    root = direct if folder is None and direct.is_dir() else find_folder(call, str(path), "*/", folder) / path
    homes = _folders(root) if clients else [root]
    refuse_parts([folder.name for folder in _folders(root)], f"{call}: the folders of {root} are called {{}}")
    files = [(file, home.name.strip()) for home in homes for kind in _folders(home) for file in _images(kind)]
    kinds = [file.parent.name.strip() for file, _ in files]
    names = tuple(sorted({*kinds}))
    if len(names) < 2:
        layout = "<client>/<class>/<image>" if clients else "<class>/<image>"
        other = "without clients=True" if clients else "with clients=True, for <client>/<class>/<image>"
        content = f"the one class {names[0]!r}" if names else "no images"
        raise BadData(
            f"{call}: {root} has {content} in the layout {layout}; give two classes at least, or try {other}; "
            f"images are files that end in {', '.join(sorted(ENDINGS))}"
        )
    empty = [kind for kind in _folders(root) if not clients and kind.name.strip() not in names]
    if empty:
        raise BadData(f"{call}: {empty[0]} has no images; remove the folder, or put some there.")
    X = decoded([(str(file), file) for file, _ in files], call, channels, size)
    y = torch.tensor([*map(names.index, kinds)])
    keys = {"client": np.array([home for _, home in files])} if clients else {}
    return Dataset(X, y, classes=len(names), keys=keys, name=root.name or "images", labels=names)


def _folders(root: Path) -> list[Path]:
    return sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith((".", "__")))


def _images(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in ENDINGS and not f.name.startswith("."))


def decoded(
    images: Sequence[tuple[str, Path | bytes]], call: str, channels: int = 3, size: int | None = None, side: int = 0
) -> torch.Tensor:
    """Pixels of image files [n, channels, h, w], as float32 in [0, 1].

    Args:
        images: the name of each in messages, and its path or its bytes
        size: height and width to which images are resized; default None, they must be alike
        side: height and width that each must have; default 0, as the first image

    Raises RecipeError if Pillow is missing, BadData, with the name and the row, for an image that cannot be read.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise RecipeError(f"{call} needs Pillow to read images: {install('images')}.") from None
    X = np.empty((len(images), channels, side, side), np.uint8)
    for row, (name, source) in enumerate(images):
        try:
            raw = source if isinstance(source, bytes) else source.read_bytes()
        except OSError as error:
            raise BadData(f"{call}: {name} cannot be read ({error}). Unpack the archive again.", row=row) from None
        try:
            with Image.open(io.BytesIO(raw)) as image:
                if image.mode.startswith(DEEP):
                    raise BadData(f"{call}: {name} has more than 8 bits a channel; convert it to 8.", row=row)
                pixels = image.convert("RGB" if channels == 3 else "L")
                if size is not None and pixels.size != (size, size):
                    pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            if isinstance(error, BadData):
                raise
            why = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
            raise BadData(f"{call}: {name} is no readable image{why}; mend or remove it.", row=row) from None
        wide, high = pixels.size
        if not row and not side:
            X = np.empty((len(images), channels, high, wide), np.uint8)
        if (high, wide) != X.shape[2:]:
            other = f"not {side}×{side}" if side else f"{images[0][0]} {X.shape[3]}×{X.shape[2]}"
            remedy = "Fetch it again" if side else "pass size= to resize all"
            raise BadData(f"{call}: {name} is {wide}×{high}, {other}; {remedy}.", row=row)
        X[row] = np.asarray(pixels).reshape(high, wide, channels).transpose(2, 0, 1)
    return torch.from_numpy(X.astype(np.float32)).div_(255)
