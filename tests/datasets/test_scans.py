"""Folders of scans and masks: slices as images, and NIfTI volumes whichever way they lie."""

from __future__ import annotations

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
    # The same body with its axes in another order, two of them the other way.
    turned = np.array([[0, 0, -2.0, 22.0], [2.0, 0, 0, 0], [0, -5.0, 0, 10.0], [0, 0, 0, 1.0]])
    volume(tmp_path / "b" / "Bern", "p.nii", *(v.transpose(1, 2, 0)[:, ::-1, ::-1] for v in (pixels, mask)), turned)
    first, other = scan_folder(tmp_path / "a"), scan_folder(tmp_path / "b")
    assert torch.equal(first.X, other.X)
    assert torch.equal(first.y, other.y)
    assert first.X.shape == (3, 1, 10, 12)
    assert np.array_equal(first.y[0].numpy(), mask[:, ::-1, 0].T)


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
