"""Scans and their masks, in a folder for each hospital: images of slices, or NIfTI volumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...contract import BadData, RecipeError, checked
from ...runtime.versions import install
from ..dataset import Dataset
from ..files import Place, called, find_folder
from .folders import ENDINGS, decoded

VOLUMES = (".nii", ".nii.gz")
"""Extensions of NIfTI volumes."""

LOSSY = {".gif", ".jpeg", ".jpg", ".webp"}
"""Extensions of image files that may not keep the grey of each pixel."""


class Scan(NamedTuple):
    """The slices of one file, [slices, height, width], and the classes of their pixels."""

    hospital: str
    patient: str
    pixels: NDArray[np.float32]
    mask: NDArray[np.int64]


@checked("datasets")
def scan_folder(
    path: Place,
    spacing: float | None = None,
    size: int | None = None,
    classes: int | None = None,
    folder: Place | None = None,
) -> Dataset:
    """Scans with a mask each, for segmentation: ``<hospital>/images/<scan>`` and ``<hospital>/masks/<scan>``.

    A scan is an image file of one slice, or a NIfTI volume of many. A volume is turned by its header, so that its axes
    point to the patient's right, front and head, and each axial slice is a row. Rows are X [n, 1, height, width],
    float32: an image's grey in [0, 1], a volume's own numbers; and y [n, height, width], class numbers from 0, the
    background. An image's mask has the grey of each class, such as 0 and 255, and classes are numbered in ascending
    order of grey over all files; a volume's mask has class numbers.

    Keys are "client", the hospital, and "patient": the scan's folder below ``images`` if there is one, else its name.
    ``data.split(test=0.2, together="patient")`` keeps a patient's slices together. Images need Pillow, the extra
    ``images``; volumes need nibabel, the extra ``imaging``.

    Args:
        path: The folder, or its name in the folder of data sets.
        spacing: Millimetres between pixels, to which volumes are resampled within slices: linearly, masks by the
            nearest pixel. Default None: all volumes must have the same.
        size: Height and width to which slices are cut or filled with 0, about their middle; default None, they must be
            alike.
        classes: The number of classes with the background; default the number that masks have.
        folder: The folder to look in first; default none.

    Raises:
        RecipeError: ``spacing`` or ``size`` is not above 0, or Pillow or nibabel is missing.
        BadData: There is no such folder, or no scan; a scan has no mask, or one of another shape or place; spacings or
            sizes differ. Names the file.
    """
    call = called("scan_folder", path)
    for name, value in (("spacing", spacing), ("size", size)):
        if value is not None and not value > 0:
            raise RecipeError(f"{call}: {name}={value} must be above 0", name)
    direct = Path(path).expanduser()
    root = direct if folder is None and direct.is_dir() else find_folder(call, str(path), "*/", folder) / path
    scans = [*_scans(root, call, spacing)]
    if not scans:
        raise BadData(f"{call}: {root} has no scans in the layout <hospital>/images/<scan> and <hospital>/masks/<scan>")
    scans = _of_one_size(scans, call, size)
    X = torch.from_numpy(np.concatenate([s.pixels for s in scans]))[:, None]
    y = torch.from_numpy(np.concatenate([s.mask for s in scans]))
    counts = [len(s.pixels) for s in scans]
    keys = {
        "client": np.repeat([s.hospital for s in scans], counts),
        "patient": np.repeat([f"{s.hospital}/{s.patient}" for s in scans], counts),
    }
    most = int(y.max()) + 1
    if classes is not None and most > classes:
        raise BadData(f"{call}: the masks have {most} classes with the background, and classes={classes}")
    return Dataset(X, y, classes=classes or max(2, most), keys=keys, name=root.name or "scans")


def _of_one_size(scans: list[Scan], call: str, size: int | None) -> list[Scan]:
    """The scans, cut or filled to this size. Raises BadData for two that differ without one."""
    if size is not None:
        return [s._replace(pixels=_about_middle(s.pixels, size), mask=_about_middle(s.mask, size)) for s in scans]
    first = scans[0]
    for s in scans:
        if s.pixels.shape[1:] != first.pixels.shape[1:]:
            other, expected = ("×".join(map(str, of.pixels.shape[1:])) for of in (s, first))
            raise BadData(
                f"{call}: {s.patient} of {s.hospital} has slices of {other} pixels, and {first.patient} of "
                f"{first.hospital} {expected}; pass size= to cut or fill all"
            )
    return scans


def _scans(root: Path, call: str, spacing: float | None) -> Iterator[Scan]:
    """The scans of all hospitals, in the order of their names. Raises BadData as `scan_folder` does."""
    pairs = []
    for hospital in sorted(f for f in root.iterdir() if (f / "images").is_dir()):
        images = hospital / "images"
        masks = {_scan_name(f, hospital / "masks"): f for f in (hospital / "masks").rglob("*") if _stem(f)}
        for image in sorted(f for f in images.rglob("*") if _stem(f)):
            inside = image.relative_to(images)
            mask = masks.pop(_scan_name(image, images), None)
            if mask is None:
                raise BadData(
                    f"{call}: {image} has no mask in {hospital / 'masks'}; masks have the names of their images"
                )
            if mask.suffix.lower() in LOSSY:
                raise BadData(f"{call}: {mask} is compressed with loss, which changes classes; save masks as PNG")
            patient = str(inside.parent) if inside.parent != Path() else str(_stem(image))
            pairs.append((hospital.name, patient, image, mask))
        if masks:
            raise BadData(
                f"{call}: {min(masks.values())} is the mask of no image in {images}; add the image or remove it"
            )
    volumes = [pair for pair in pairs if pair[2].name.lower().endswith(VOLUMES)]
    if volumes and len(volumes) < len(pairs):
        odd = next(pair[2] for pair in pairs if pair not in volumes)
        raise BadData(f"{call}: {odd} is an image among NIfTI volumes; give all scans in one form")
    if volumes:
        yield from _of_volumes(volumes, call, spacing)
    elif pairs:
        if spacing is not None:
            raise RecipeError(f"{call}: spacing={spacing} is for NIfTI volumes; images have no millimetres", "spacing")
        yield from _of_images(pairs, call)


def _scan_name(file: Path, root: Path) -> tuple[str, str]:
    """The folder of a scan or a mask below ``root``, and its name without the extension."""
    return str(file.relative_to(root).parent), str(_stem(file))


def _stem(file: Path) -> str | None:
    """A scan's name without its extension; None for other files."""
    for ending in sorted((*ENDINGS, *VOLUMES), key=len, reverse=True):
        if file.name.lower().endswith(ending) and not file.name.startswith("."):
            return file.name[: -len(ending)]
    return None


Pair = tuple[str, str, Path, Path]
"""A hospital, a patient, an image and its mask."""


def _of_images(pairs: list[Pair], call: str) -> Iterator[Scan]:
    """One slice of each image."""
    read = [(decoded([(str(f), f)], call, 1), decoded([(str(m), m)], call, 1)) for _, _, f, m in pairs]
    by_hospital: dict[str, set[int]] = {}
    for (hospital, *_), (_, mask) in zip(pairs, read, strict=True):
        by_hospital.setdefault(hospital, set()).update(np.unique((mask.numpy() * 255).round().astype(int)).tolist())
    greys = np.array(sorted(set().union(*by_hospital.values())))
    for hospital, some in by_hospital.items():
        odd = next((other for other, more in by_hospital.items() if not (some <= more or more <= some)), None)
        if odd is not None:
            raise BadData(
                f"{call}: the masks of {hospital} have the greys {sorted(some)[:8]}, and those of {odd} "
                f"{sorted(by_hospital[odd])[:8]}; give each class the same grey at all hospitals"
            )
    if len(greys) > 64:
        raise BadData(
            f"{call}: the masks have {len(greys)} different greys, more than classes can be; save them without "
            "compression, as PNG, with one grey for each class"
        )
    for (hospital, patient, image, _), (pixels, mask) in zip(pairs, read, strict=True):
        if pixels.shape != mask.shape:
            sizes = ["×".join(map(str, t.shape[2:])) for t in (pixels, mask)]
            raise BadData(f"{call}: {image} is {sizes[0]} and its mask {sizes[1]}; give both in one size")
        classes = np.searchsorted(greys, (mask[0].numpy() * 255).round().astype(int))
        yield Scan(hospital, patient, pixels[0].numpy(), classes)


def _of_volumes(pairs: list[Pair], call: str, spacing: float | None) -> Iterator[Scan]:
    """The axial slices of each volume, turned by its header and resampled to this spacing."""
    try:
        import nibabel
    except ImportError:
        raise RecipeError(f"{call} needs nibabel to read NIfTI volumes: {install('imaging')}.") from None
    first: tuple[Path, tuple[float, float]] | None = None
    for hospital, patient, image, mask in pairs:
        try:
            scan, truth = (nibabel.as_closest_canonical(nibabel.load(f)) for f in (image, mask))
            pixels = np.asarray(scan.get_fdata(), np.float32)
            labels = np.asarray(truth.get_fdata())
        except Exception as error:
            raise BadData(f"{call}: {image} or its mask is no readable NIfTI volume ({error})") from None
        if pixels.ndim != 3 or pixels.shape != labels.shape or not np.allclose(scan.affine, truth.affine, atol=1e-3):
            raise BadData(
                f"{call}: {image} has the shape {pixels.shape} and its mask {labels.shape}, or their headers place "
                "them elsewhere; give both as three-dimensional volumes in one geometry"
            )
        if not np.isfinite(pixels).all() or (labels != labels.round()).any() or labels.min() < 0:
            raise BadData(f"{call}: {image} has numbers that are not finite, or its mask no class numbers from 0")
        wide, deep = (round(float(z), 3) for z in scan.header.get_zooms()[:2])
        first = first or (image, (wide, deep))
        if spacing is None and first[1] != (wide, deep):
            raise BadData(
                f"{call}: {image} has {wide} × {deep} mm between pixels, and {first[0]} {first[1][0]} × {first[1][1]}; "
                "pass spacing= in millimetres, and all are resampled to it"
            )
        slices = _resampled(pixels, (wide, deep), spacing, order=1)
        yield Scan(hospital, patient, slices, _resampled(labels, (wide, deep), spacing, order=0).astype(np.int64))


def _resampled(
    volume: NDArray[np.floating], between: tuple[float, float], spacing: float | None, order: int
) -> NDArray[np.float32]:
    """The axial slices [slices, height, width] of a volume, head first upwards, with ``spacing`` mm between pixels."""
    from scipy.ndimage import zoom

    if spacing is not None and between != (spacing, spacing):
        factors = (between[0] / spacing, between[1] / spacing, 1)
        volume = zoom(volume, factors, order=order, mode="nearest", grid_mode=True)
    # From (right, front, head) to slices whose rows run from front to back.
    slices: NDArray[np.float32] = np.ascontiguousarray(volume.transpose(2, 1, 0)[:, ::-1]).astype(np.float32)
    return slices


def _about_middle(slices: NDArray, size: int) -> NDArray:  # type: ignore[type-arg]
    """Slices cut, or filled with 0, to size × size about their middle."""
    out = np.zeros((len(slices), size, size), slices.dtype)
    target = []
    source = []
    for length in slices.shape[1:]:
        taken = min(size, length)
        target.append(slice((size - taken) // 2, (size - taken) // 2 + taken))
        source.append(slice((length - taken) // 2, (length - taken) // 2 + taken))
    out[:, target[0], target[1]] = slices[:, source[0], source[1]]
    return out
