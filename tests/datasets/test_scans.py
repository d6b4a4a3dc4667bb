"""Folders of scans and masks: slices as images, and NIfTI volumes whichever way they lie."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md

Image: Any = pytest.importorskip("PIL.Image")
nibabel: Any = pytest.importorskip("nibabel")
scan_folder = md.datasets.scan_folder


def image(folder: Path, name: str, pixels: np.ndarray, mask: np.ndarray) -> None:
    for part, array in (("images", pixels), ("masks", mask)):
        file = folder / part / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array.astype(np.uint8)).save(file)


def volume(folder: Path, name: str, pixels: np.ndarray, mask: np.ndarray, affine: np.ndarray) -> None:
    for part, array in (("images", pixels.astype(np.float32)), ("masks", mask.astype(np.uint8))):
        (folder / part).mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(array, affine), folder / part / name)


def body(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A volume (right, front, head) with a block of class 1 that lies off the middle."""
    pixels = np.random.default_rng(seed).normal(size=(12, 10, 3)).round(3)
    mask = np.zeros((12, 10, 3))
    mask[2:6, 1:4, :2] = 1
    return pixels, mask


def test_images_have_their_greys_as_classes_and_patients_stay_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = {}
    for hospital in ("Bern", "Chur"):
        for patient in ("p1", "p2"):
            for k in range(3):
                pixels, mask = rng.integers(0, 256, (6, 5)), 255 * rng.integers(0, 2, (6, 5))
                truth[hospital, patient, k] = pixels, mask
                image(tmp_path / hospital, f"{patient}/{k}.png", pixels, mask)
    data = scan_folder(tmp_path)
    assert data.X.shape == (12, 1, 6, 5)
    assert data.classes == 2
    assert np.array_equal(data.X[4, 0].numpy() * 255, truth["Bern", "p2", 1][0])
    assert np.array_equal(data.y[4].numpy() * 255, truth["Bern", "p2", 1][1])
    assert data.keys["client"].tolist() == ["Bern"] * 6 + ["Chur"] * 6
    assert data.keys["patient"].tolist()[:6] == ["Bern/p1"] * 3 + ["Bern/p2"] * 3
    parts = data.split(test=0.25, together="patient", seed=1)
    assert parts.y_test is not None
    assert len(parts.y_test) == 3
    cut = scan_folder(tmp_path, size=4)
    assert torch.equal(cut.X, data.X[:, :, 1:5, :4])
    filled = scan_folder(tmp_path, size=7)
    assert torch.equal(filled.y[:, :6, 1:6], data.y)


def test_the_way_a_volume_lies_changes_nothing(tmp_path: Path) -> None:
    pixels, mask = body()
    right = np.diag([2.0, 2.0, 5.0, 1.0])
    volume(tmp_path / "a" / "Bern", "p.nii.gz", pixels, mask, right)
    first = scan_folder(tmp_path / "a")
    assert first.X.shape == (3, 1, 10, 12)
    assert np.array_equal(first.y[0].numpy(), mask[:, ::-1, 0].T)
    ways = [*itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3))]
    assert len(ways) == 48
    for k, (axes, signs) in enumerate(ways):
        # The same body with its axes in another order, some of them the other way, in another unit.
        flips = [v.transpose(axes)[tuple(slice(None, None, sign) for sign in signs)] for v in (pixels, mask)]
        affine = np.zeros((4, 4))
        affine[3, 3] = 1
        for column, (axis, sign) in enumerate(zip(axes, signs, strict=True)):
            affine[axis, column] = sign * right[axis, axis]
            affine[axis, 3] = 0 if sign > 0 else right[axis, axis] * (pixels.shape[axis] - 1)
        home = tmp_path / f"b{k}" / "Bern"
        volume(home, "p.nii", *flips, affine / [[1000], [1000], [1000], [1]] if k == 47 else affine)
        if k == 47:
            for part in ("images", "masks"):
                one = nibabel.load(home / part / "p.nii")
                one.header.set_xyzt_units("meter")
                nibabel.save(nibabel.Nifti1Image(np.asarray(one.dataobj), None, one.header), home / part / "q.nii")
                (home / part / "p.nii").unlink()
        other = scan_folder(tmp_path / f"b{k}", spacing=2.0)
        assert torch.equal(first.X, other.X)
        assert torch.equal(first.y, other.y)


def test_spacings_are_made_alike_or_refused(tmp_path: Path) -> None:
    pixels, mask = body()
    volume(tmp_path / "Bern", "p.nii", pixels, mask, np.diag([2.0, 2.0, 5.0, 1.0]))
    fine = [v.repeat(2, 0).repeat(2, 1) for v in (pixels, mask)]
    affine = np.diag([1.0, 1.0, 5.0, 1.0])
    affine[:2, 3] = -0.5  # the middle of the first of four pixels
    volume(tmp_path / "Chur", "q.nii", *fine, affine)
    with pytest.raises(
        md.BadData, match=r"q.nii has 1.0 × 1.0 mm between pixels, and .*p.nii 2.0 × 2.0; pass spacing="
    ):
        scan_folder(tmp_path)
    data = scan_folder(tmp_path, spacing=2.0)
    assert data.X.shape == (6, 1, 10, 12)
    assert torch.equal(data.y[:3], data.y[3:])
    assert torch.allclose(data.X[:3], data.X[3:], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mask", r"images/1.png has no mask in .*masks; masks have the names of their images"),
        ("alone", r"masks/1.png is the mask of no image in .*images; add the image or remove it"),
        ("lossy", r"masks/1.jpg is compressed with loss, which changes classes; save masks as PNG"),
        ("codes", r"the masks of Bern have the greys \[0, 255\], and those of Chur \[0, 1\]; give each class the same"),
        ("size", r"1.png is 6×5 and its mask 4×5; give both in one size"),
        ("greys", "the masks have 65 different greys or more|the masks have [0-9]+ different greys"),
        ("shapes", r"has slices of 4×4 pixels, and .* 6×5; pass size="),
        ("place", "their headers place them elsewhere"),
        ("mixed", "is an image among NIfTI volumes; give all scans in one form"),
        ("broken", "p.nii or its mask is no readable NIfTI volume"),
        ("classes", "the masks have 2 classes with the background, and classes=1"),
        ("none", "has no scans in the layout <hospital>/images/<scan>"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path: Path, name: str, message: str) -> None:
    pixels = np.arange(30).reshape(6, 5)
    mask = 255 * (pixels > 9)
    home = tmp_path / "Bern"
    more: dict[str, Any] = {}
    if name in ("place", "broken", "mixed"):
        volume(home, "p.nii", *body(), np.diag([2.0, 2.0, 5.0, 1.0]))
    if name == "place":
        nibabel.save(nibabel.Nifti1Image(body()[1].astype(np.uint8), np.eye(4)), home / "masks" / "p.nii")
    if name == "broken":
        (home / "images" / "p.nii").write_bytes(b"no volume")
    if name in ("mask", "size", "shapes", "mixed", "classes", "alone", "codes"):
        image(home, "1.png", pixels, mask)
    if name == "mask":
        (home / "masks" / "1.png").unlink()
    if name == "alone":
        (home / "images" / "1.png").unlink()
    if name == "lossy":
        image(home, "1.jpg", pixels, mask)
    if name == "codes":
        image(tmp_path / "Chur", "2.png", pixels, mask // 255)
    if name == "size":
        image(home, "1.png", pixels, mask)
        Image.fromarray(mask[:4].astype(np.uint8)).save(home / "masks" / "1.png")
    if name == "greys":
        image(home, "1.png", np.zeros((9, 9)), np.arange(81).reshape(9, 9))
    if name == "shapes":
        image(tmp_path / "Chur", "2.png", pixels[:4, :4], mask[:4, :4])
    if name == "classes":
        more = {"classes": 1}
    if name == "none":
        (home / "images").mkdir(parents=True)
    with pytest.raises(md.BadData, match=message):
        scan_folder(tmp_path, **more)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "Basel has no scans in .*Basel/images; put them there, or remove the folder"),
        ("twice", "masks/1.bmp and .*masks/1.png have one name; remove one of them"),
        ("colours", "masks/1.png has colours; save masks in grey, with one grey for each class"),
        ("ground", r"the masks have the greys \[255\], and none is 0, the background; pass greys="),
        ("absent", r"the masks have the greys \[0, 255\], and classes=3; pass greys="),
        ("lacks", r"the masks of Bern have the greys \[255\], which greys=\(0, 128\) lacks"),
        ("gaps", r"the masks have the class numbers \[0, 255\]; .*, or pass classes=256"),
        ("lost", "the header of .*images/p.nii does not say how the volume lies"),
        ("tilted", "the axes of .*images/p.nii are 30° from the patient's, so it has no axial slices; resample it"),
        ("four", r"images/p.nii has the shape \(12, 10, 3, 1\) and its mask \(12, 10, 3, 1\)"),
    ],
)
def test_what_classes_and_headers_leave_open_is_named(tmp_path: Path, name: str, message: str) -> None:
    pixels = np.arange(30).reshape(6, 5)
    mask = 255 * (pixels > 9)
    home = tmp_path / "Bern"
    if name in ("lost", "tilted", "gaps", "four"):
        angle = np.radians(30 if name == "tilted" else 0)
        affine = np.eye(4)
        affine[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        volumes = [v * (255 if name == "gaps" else 1) for v in body()]
        deep = [v[..., None] if name == "four" else v for v in volumes]
        volume(home, "p.nii", *deep, None if name == "lost" else affine)  # type: ignore[arg-type]
    else:
        image(home, "1.png", pixels, np.stack([mask, 0 * mask, mask], 2) if name == "colours" else mask)
    if name == "empty":
        (tmp_path / "Basel" / "images").mkdir(parents=True)
    if name == "twice":
        image(home, "1.bmp", pixels, mask)
    if name == "ground":
        image(home, "1.png", pixels, mask * 0 + 255)
    more: dict[str, Any] = {"absent": {"classes": 3}, "lacks": {"greys": (0, 128)}}.get(name, {})
    with pytest.raises(md.BadData, match=message):
        scan_folder(tmp_path, **more)


def test_a_network_segments_what_it_reads(tmp_path: Path) -> None:
    for k, hospital in enumerate(("Bern", "Chur")):
        for p in range(4):
            pixels, mask = body(10 * k + p)
            volume(tmp_path / hospital, f"{p}.nii.gz", pixels + 3 * mask, mask, np.diag([2.0, 2.0, 5.0, 1.0]))
    data = scan_folder(tmp_path).split(test=0.25, together="patient")
    net = md.problems.Network(torch.nn.Conv2d(1, 2, 3, padding=1))
    fed = md.Federation(
        net, data=data, partition=md.partitions.ByKey("client"), pace=md.scenarios.Pace(lr=0.5, batch=4)
    )
    result = md.run(md.FedAvg(), fed, rounds=10, metrics=["dice"], progress=False)
    assert result.client_names == ("Bern", "Chur")
    assert result.summary["dice"] > 0.8


def test_a_hospital_without_a_class_has_the_same_numbers(tmp_path: Path) -> None:
    pixels = np.zeros((6, 5))
    mask = np.repeat([0, 0, 128, 128, 255, 255], 5).reshape(6, 5)
    image(tmp_path / "a" / "Bern", "1.png", pixels, mask)
    image(tmp_path / "b" / "Chur", "1.png", pixels, np.where(mask == 128, 0, mask))
    image(tmp_path / "b" / "Chur", "empty.png", pixels, 0 * mask)
    first = scan_folder(tmp_path / "a")
    other = scan_folder(tmp_path / "b", greys=(0, 128, 255))
    assert first.classes == other.classes == 3
    assert torch.equal(other.y[0], torch.where(first.y[0] == 1, 0, first.y[0]))
    assert not other.y[1].any()
    swapped = scan_folder(tmp_path / "a", greys=(0, 255, 128))
    assert torch.equal(swapped.y, torch.tensor([0, 2, 1])[first.y])


def test_a_patient_of_two_hospitals_is_one_or_two_as_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for hospital in ("Bern", "Chur"):
        for patient in ("p1", hospital):
            image(tmp_path / hospital, f"{patient}/1.png", np.zeros((4, 4)), np.zeros((4, 4)))
    with caplog.at_level(logging.WARNING, "medley"):
        two = scan_folder(tmp_path)
    assert "Bern and Chur both have a patient p1, read as two people" in caplog.text.replace(
        "Chur and Bern", "Bern and Chur"
    )
    caplog.clear()
    assert sorted({*two.keys["patient"]}) == ["Bern/Bern", "Bern/p1", "Chur/Chur", "Chur/p1"]
    assert scan_folder(tmp_path, same_patients=False).keys["patient"].tolist() == two.keys["patient"].tolist()
    one = scan_folder(tmp_path, same_patients=True)
    assert sorted({*one.keys["patient"]}) == ["Bern", "Chur", "p1"]
    for seed in range(6):
        parts = one.split(test=0.4, together="patient", seed=seed)
        assert not {*parts.keys["patient"]} & {*parts.test_keys["patient"]}
    assert caplog.text == ""


def test_a_tilted_volume_can_be_read_once_it_is_resampled(tmp_path: Path) -> None:
    processing = pytest.importorskip("nibabel.processing")
    angle = np.radians(30)
    affine = np.diag([2.0, 2.0, 5.0, 1.0])
    affine[:2, :2] = 2 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    volume(tmp_path / "Bern", "p.nii", *body(), affine)
    for part, order in (("images", 3), ("masks", 0)):
        file = tmp_path / "Bern" / part / "p.nii"
        nibabel.save(processing.resample_to_output(nibabel.load(file), order=order), file)
    data = scan_folder(tmp_path)
    volume_of_body = 4 * 3 * 2 * 2.0 * 2.0 * 5.0
    assert float((data.y > 0).sum()) == pytest.approx(volume_of_body, rel=0.25)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"greys": (0, 0, 255)}, r"greys=\(0, 0, 255\) must be at least two different greys$"),
        ({"greys": (0,)}, r"greys=\(0,\) must be at least two different greys$"),
        ({"greys": (0, 128, 255), "classes": 2}, r"must be at least two different greys, as many as classes=2"),
        ({"greys": (0, 255, 999)}, r"each a whole number in \[0, 255\]"),
        ({"greys": (0, -1, 255)}, r"each a whole number in \[0, 255\]"),
    ],
)
def test_greys_are_different_greys_one_for_each_class(tmp_path, settings, text) -> None:
    with pytest.raises(md.RecipeError, match=text):
        scan_folder(tmp_path, **settings)
