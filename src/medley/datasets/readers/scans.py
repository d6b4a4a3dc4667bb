"""Scans and their masks, in a folder for each hospital: images of slices, or NIfTI volumes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...contract import BadData, RecipeError, at_least, checked, in_range, positive
from ...runtime.versions import install
from ..dataset import Dataset
from ..files import Place, called, find_folder
from .folders import ENDINGS, decoded

log = logging.getLogger("medley")

VOLUMES = (".nii", ".nii.gz")
"""Extensions of NIfTI volumes."""

LOSSY = {".gif", ".jpeg", ".jpg", ".webp"}
"""Extensions of image files that may not keep the grey of each pixel."""

MILLIMETRES = {"unknown": 1.0, "mm": 1.0, "meter": 1000.0, "micron": 0.001}
"""The units of a NIfTI header."""

TILT = 15.0
"""The most degrees between a volume's axes and the patient's at which its slices are still called axial."""


Pair = tuple[str, str, Path, Path]
"""A hospital, a patient, an image and its mask."""


class Scan(NamedTuple):
    """The slices of one file, [slices, height, width], and the classes of their pixels."""

    hospital: str
    patient: str
    pixels: NDArray[np.float32]
    mask: NDArray[np.int64]


@checked("datasets")
def scan_folder(
    path: Place,
    spacing: Annotated[float, positive] | None = None,
    size: Annotated[int, at_least(1)] | None = None,
    classes: int | None = None,
    greys: Sequence[Annotated[int, in_range(0, 255)]] | None = None,
    same_patients: bool | None = None,
    folder: Place | None = None,
) -> Dataset:
    """Scans with a mask each, for segmentation: ``<hospital>/images/<scan>`` and ``<hospital>/masks/<scan>``.

    A scan is an image file of one slice, or a NIfTI volume of many. A volume is turned by its header, so that its axes
    point to the patient's right, front and head, and each axial slice is a row; the thickness of slices is left as it
    is. Rows are X [n, 1, height, width], float32: an image's grey in [0, 1], a volume's own numbers; and y [n, height,
    width], class numbers from 0, the background. An image's mask has the grey of each class, 0 for the background, and
    classes are numbered in ascending order of grey over all files; a volume's mask has class numbers.

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
        greys: For images, the grey of each class, from the background's, such as (0, 128, 255); default those that
            masks have. Give them if another folder, such as another hospital's, may lack a class.
        same_patients: Whether one name at two hospitals is one patient; default None, they are two, which is logged.
        folder: The folder to look in first; default none.

    Raises:
        RecipeError: ``spacing`` or ``size`` is not above 0, ``greys`` are alike or not as many as ``classes``, or
            Pillow or nibabel is missing.
        BadData: There is no such folder, or no scan; a scan has no mask, or one of another shape or place; a header has
            no orientation, or one far from the patient's axes; spacings, sizes or classes differ. Names the file.
    """
    call = called("scan_folder", path)
    if greys is not None and (len(greys) < 2 or len({*greys}) < len(greys) or classes not in (None, len(greys))):
        also = "" if classes is None else f", as many as classes={classes}"
        raise RecipeError(f"{call}: greys={greys!r} must be at least two different greys{also}", "greys")
    direct = Path(path).expanduser()
    root = direct if folder is None and direct.is_dir() else find_folder(call, str(path), "*/", folder) / path
    scans = [*_scans(root, call, spacing, classes, greys)]
    if not scans:
        raise BadData(f"{call}: {root} has no scans in the layout <hospital>/images/<scan> and <hospital>/masks/<scan>")
    scans = _of_one_size(scans, call, size)
    X = torch.from_numpy(np.concatenate([s.pixels for s in scans]))[:, None]
    y = torch.from_numpy(np.concatenate([s.mask for s in scans]))
    counts = [len(s.pixels) for s in scans]
    keys = {
        "client": np.repeat([s.hospital for s in scans], counts),
        "patient": np.repeat(_patients(scans, call, same_patients), counts),
    }
    most = int(y.max()) + 1
    if classes is not None and most > classes:
        raise BadData(f"{call}: the masks have {most} classes with the background, and classes={classes}")
    return Dataset(X, y, classes=classes or len(greys or ()) or max(2, most), keys=keys, name=root.name or "scans")


def _patients(scans: list[Scan], call: str, same: bool | None) -> list[str]:
    """Each scan's patient. Logs one whose name two hospitals have, unless ``same`` says whether they are one."""
    if same:
        return [s.patient for s in scans]
    hospitals = {s.patient: s.hospital for s in scans}
    twice = next((s for s in scans if hospitals[s.patient] != s.hospital), None)
    if same is None and twice is not None:
        log.warning(
            "%s: %s and %s both have a patient %s, read as two people; if one name is one person everywhere, pass "
            "same_patients=True, so that a split keeps all of them together; else pass same_patients=False",
            *(call, twice.hospital, hospitals[twice.patient], twice.patient),
        )
    return [f"{s.hospital}/{s.patient}" for s in scans]


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


def _scans(
    root: Path, call: str, spacing: float | None, classes: int | None, greys: Sequence[int] | None
) -> Iterator[Scan]:
    """The scans of all hospitals, in the order of their names. Raises BadData as `scan_folder` does."""
    folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith((".", "__")))
    pairs = [pair for folder in folders for pair in _pairs(folder, call)]
    empty = set(folders) - {root / pair[0] for pair in pairs}
    if pairs and empty:
        raise BadData(
            f"{call}: {min(empty)} has no scans in {min(empty) / 'images'}; put them there, or remove the folder"
        )
    volumes = [pair for pair in pairs if pair[2].name.lower().endswith(VOLUMES)]
    if volumes and len(volumes) < len(pairs):
        odd = next(pair[2] for pair in pairs if pair not in volumes)
        raise BadData(f"{call}: {odd} is an image among NIfTI volumes; give all scans in one form")
    if volumes:
        if greys is not None:
            raise RecipeError(f"{call}: greys= is for images; the masks of volumes have class numbers", "greys")
        yield from _of_volumes(volumes, call, spacing, classes)
    elif pairs:
        if spacing is not None:
            raise RecipeError(f"{call}: spacing={spacing} is for NIfTI volumes; images have no millimetres", "spacing")
        yield from _of_images(pairs, call, classes, greys)


def _pairs(hospital: Path, call: str) -> list[Pair]:
    """The images of one hospital with their masks. Raises BadData for an image or a mask that is alone."""
    images = hospital / "images"
    by_name = _by_name(hospital / "masks", call)
    pairs = []
    for name, image in _by_name(images, call).items():
        mask = by_name.pop(name, None)
        if mask is None:
            raise BadData(f"{call}: {image} has no mask in {hospital / 'masks'}; masks have the names of their images")
        if mask.suffix.lower() in LOSSY:
            raise BadData(f"{call}: {mask} is compressed with loss, which changes classes; save masks as PNG")
        pairs.append((hospital.name, name[1] if name[0] == "." else name[0], image, mask))
    if by_name:
        raise BadData(
            f"{call}: {min(by_name.values())} is the mask of no image in {images}; add the image or remove it"
        )
    return pairs


def _by_name(root: Path, call: str) -> dict[tuple[str, str], Path]:
    """The files of scans or masks below a folder by `_scan_name`. Raises BadData for two of one name."""
    out = dict[tuple[str, str], Path]()
    for file in sorted(f for f in root.rglob("*") if _stem(f)):
        name = _scan_name(file, root)
        if name in out:
            raise BadData(f"{call}: {out[name]} and {file} have one name; remove one of them")
        out[name] = file
    return out


def _scan_name(file: Path, root: Path) -> tuple[str, str]:
    """The folder of a scan or a mask below ``root``, and its name without the extension."""
    return str(file.relative_to(root).parent), str(_stem(file))


def _stem(file: Path) -> str | None:
    """A scan's name without its extension; None for other files."""
    for ending in sorted((*ENDINGS, *VOLUMES), key=len, reverse=True):
        if file.name.lower().endswith(ending) and not file.name.startswith("."):
            return file.name[: -len(ending)]
    return None


def _of_images(pairs: list[Pair], call: str, classes: int | None, greys: Sequence[int] | None) -> Iterator[Scan]:
    """One slice of each image."""
    read = []
    for hospital, patient, image, mask in pairs:
        pixels = decoded([(str(image), image)], call, 1)[0].numpy()
        colours = (decoded([(str(mask), mask)], call)[0].numpy() * 255).round().astype(int)
        if (colours != colours[:1]).any():
            raise BadData(f"{call}: {mask} has colours; save masks in grey, with one grey for each class")
        if pixels.shape[1:] != colours.shape[1:]:
            sizes = ["×".join(map(str, t.shape[1:])) for t in (pixels, colours)]
            raise BadData(f"{call}: {image} is {sizes[0]} and its mask {sizes[1]}; give both in one size")
        read.append(Scan(hospital, patient, pixels, colours[:1]))
    by_hospital: dict[str, set[int]] = {}
    for scan in read:
        by_hospital.setdefault(scan.hospital, set()).update(np.unique(scan.mask).tolist())
    order = np.array(_greys(by_hospital, call, classes) if greys is None else greys)
    odd = next((name for name, some in by_hospital.items() if some - {*order.tolist()}), None)
    if odd is not None:
        more = sorted(by_hospital[odd] - {*order.tolist()})
        raise BadData(f"{call}: the masks of {odd} have the greys {more[:8]}, which greys={greys} lacks")
    sorter = np.argsort(order)
    yield from (scan._replace(mask=sorter[np.searchsorted(order, scan.mask, sorter=sorter)]) for scan in read)


def _greys(by_hospital: dict[str, set[int]], call: str, classes: int | None) -> list[int]:
    """The grey of each class in ascending order. Raises BadData if hospitals' masks may mean different classes."""
    greys = sorted(set().union(*by_hospital.values()))
    for hospital, some in by_hospital.items():
        odd = next((other for other, more in by_hospital.items() if not (some <= more or more <= some)), None)
        if odd is not None:
            raise BadData(
                f"{call}: the masks of {hospital} have the greys {sorted(some)[:8]}, and those of {odd} "
                f"{sorted(by_hospital[odd])[:8]}; give each class the same grey at all hospitals, and if one lacks a "
                "class, pass greys="
            )
    if len(greys) > 64:
        raise BadData(
            f"{call}: the masks have {len(greys)} different greys, more than classes can be; save them without "
            "compression, as PNG, with one grey for each class"
        )
    if greys[0] != 0 or (classes is not None and len(greys) < classes):
        lack = "none is 0, the background" if greys[0] != 0 else f"classes={classes}"
        raise BadData(
            f"{call}: the masks have the greys {greys}, and {lack}; pass greys= with the grey of each class, from the "
            "background's"
        )
    return greys


def _of_volumes(pairs: list[Pair], call: str, spacing: float | None, classes: int | None) -> Iterator[Scan]:
    """The axial slices of each volume, turned by its header and resampled to this spacing."""
    first: tuple[Path, tuple[float, float]] | None = None
    numbers = set[int]()
    for hospital, patient, image, mask in pairs:
        pixels, labels, (wide, deep) = _volume(image, mask, call)
        numbers.update(np.unique(labels).astype(int).tolist())
        first = first or (image, (wide, deep))
        if spacing is None and first[1] != (wide, deep):
            raise BadData(
                f"{call}: {image} has {wide} × {deep} mm between pixels, and {first[0]} {first[1][0]} × {first[1][1]}; "
                "pass spacing= in millimetres, and all are resampled to it"
            )
        slices = _resampled(pixels, (wide, deep), spacing, order=1)
        yield Scan(hospital, patient, slices, _resampled(labels, (wide, deep), spacing, order=0).astype(np.int64))
    if classes is None and max(numbers) >= max(2, len(numbers | {0})):
        raise BadData(
            f"{call}: the masks have the class numbers {sorted(numbers)[:8]}; number classes from 0 without gaps, or "
            f"pass classes={max(numbers) + 1} if some are in no mask"
        )


def _volume(image: Path, mask: Path, call: str) -> tuple[NDArray[Any], NDArray[Any], tuple[float, float]]:
    """A volume and its mask (right, front, head), and the millimetres between pixels in its slices."""
    try:
        import nibabel
        from nibabel.affines import obliquity, voxel_sizes
    except ImportError:
        raise RecipeError(f"{call} needs nibabel to read NIfTI volumes: {install('imaging')}.") from None
    try:
        volumes = [nibabel.load(f) for f in (image, mask)]
        oriented = [bool(v.header["sform_code"] or v.header["qform_code"]) for v in volumes]
        scan, truth = map(nibabel.as_closest_canonical, volumes)
        pixels = np.asarray(scan.get_fdata(), np.float32)
        labels = np.asarray(truth.get_fdata())
        unit = MILLIMETRES[scan.header.get_xyzt_units()[0]]
    except Exception as error:
        raise BadData(f"{call}: {image} or its mask is no readable NIfTI volume ({error})") from None
    if not all(oriented):
        file = mask if oriented[0] else image
        raise BadData(
            f"{call}: the header of {file} does not say how the volume lies (its sform and qform codes are 0); set it, "
            "such as by nibabel: volume.set_sform(affine, code=1)"
        )
    if pixels.ndim != 3 or pixels.shape != labels.shape or not np.allclose(scan.affine, truth.affine, atol=1e-3):
        raise BadData(
            f"{call}: {image} has the shape {pixels.shape} and its mask {labels.shape}, or their headers place "
            "them elsewhere; give both as three-dimensional volumes in one geometry"
        )
    tilt = float(np.degrees(obliquity(scan.affine)).max())
    if tilt > TILT:
        raise BadData(
            f"{call}: the axes of {image} are {tilt:.0f}° from the patient's, so it has no axial slices; resample it "
            "and its mask, such as by nibabel.processing.resample_to_output(volume), with order=0 for the mask"
        )
    if not np.isfinite(pixels).all() or (labels != labels.round()).any() or labels.min() < 0:
        raise BadData(f"{call}: {image} has numbers that are not finite, or its mask no class numbers from 0")
    wide, deep = (round(float(z) * unit, 3) for z in voxel_sizes(scan.affine)[:2])
    return pixels, labels, (wide, deep)


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
