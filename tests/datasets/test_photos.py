"""EMNIST's idx files, Tiny ImageNet's folders, CIFAR's published constants."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from medley import datasets
from medley.cli import information
from medley.contract.errors import BadData, RecipeError
from medley.datasets import files, images

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDLEY_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def test_emnist_is_upright_and_letters_count_from_0(tmp_path: Path) -> None:
    folder = tmp_path / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    pixels = RNG.integers(0, 256, (5, 28, 28), np.uint8)
    for part, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        (folder / f"emnist-letters-{part}-images-idx3-ubyte").write_bytes(idx(pixels[rows]))
        labels = np.array([1, 26, 2, 3, 4], np.uint8)[rows]
        (folder / f"emnist-letters-{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    d = datasets.emnist("letters", tmp_path)
    assert torch.equal((d.X[:, 0] * 255).round().byte(), torch.from_numpy(pixels[:3]).transpose(1, 2))
    assert (d.y.tolist(), d.classes) == ([0, 25, 1], 26)
    with pytest.raises(BadData, match=r"emnist\('digits'\): emnist-digits-train-images-idx3-ubyte"):
        datasets.emnist("digits", tmp_path)
    with pytest.raises(RecipeError, match="Did you mean 'letters'"):
        datasets.emnist("leters")  # type: ignore[arg-type]


def write_tiny(root: Path) -> dict[str, np.ndarray]:
    image = pytest.importorskip("PIL.Image")
    colours = {"n02": (255, 0, 0), "n01": (0, 255, 0), "n03": (0, 0, 255)}
    for wnid, colour in colours.items():
        place = root / "train" / wnid / "images"
        place.mkdir(parents=True)
        for k in range(2):
            image.new("RGB", (64, 64), colour).save(place / f"{wnid}_{k}.JPEG", quality=95)
    place = root / "val" / "images"
    place.mkdir(parents=True)
    for k in range(3):
        image.new("L", (64, 64), 80 * k).save(place / f"val_{k}.JPEG", "JPEG", quality=95)
    notes = "".join(f"val_{k}.JPEG\t{wnid}\t0\t0\t62\t62\n" for k, wnid in enumerate(("n03", "n01", "n02")))
    (root / "val" / "val_annotations.txt").write_text(notes)
    return {wnid: np.array(colour) / 255 for wnid, colour in colours.items()}


def test_tiny_imagenet_reads_its_original_layout(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    colours = write_tiny(root)
    d = datasets.tiny_imagenet(tmp_path, classes=3)
    assert d.X_test is not None
    assert d.y_test is not None
    assert d.X.shape == (6, 3, 64, 64)
    assert (d.y.tolist(), d.labels) == ([0, 0, 1, 1, 2, 2], ("n01", "n02", "n03"))
    for row, wnid in ((0, "n01"), (2, "n02"), (4, "n03")):
        assert d.X[row].mean((1, 2)).tolist() == pytest.approx(colours[wnid].tolist(), abs=0.01)
    assert d.y_test.tolist() == [2, 0, 1]
    assert d.X_test.mean((2, 3))[:, 1].tolist() == pytest.approx([0, 80 / 255, 160 / 255], abs=0.01)
    two = datasets.tiny_imagenet(tmp_path, classes=2)
    assert two.y_test is not None
    assert (len(two.X), two.y_test.tolist(), two.classes) == (4, [0, 1], 2)
    with pytest.raises(RecipeError, match="has 3 class folders, but you passed classes=200"):
        datasets.tiny_imagenet(tmp_path)
    (root / "train" / "n02" / "images" / "n02_1.JPEG").write_bytes(b"no image")
    with pytest.raises(BadData, match=r"n02_1\.JPEG is no readable image") as caught:
        datasets.tiny_imagenet(tmp_path, classes=3)
    assert caught.value.row == 3
    (root / "val" / "images" / "val_1.JPEG").unlink()
    (root / "train" / "n02" / "images" / "n02_1.JPEG").unlink()
    with pytest.raises(BadData, match=r"val_1\.JPEG cannot be read .*Unpack"):
        datasets.tiny_imagenet(tmp_path, classes=3)
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn09\n")
    with pytest.raises(BadData, match=r"val_annotations\.txt, line 1: 'n09' is no class"):
        datasets.tiny_imagenet(tmp_path, classes=3)


def test_cifar_is_normalised_by_its_published_constants(tmp_path: Path) -> None:
    rows = RNG.integers(0, 256, (4, 3074), np.uint8)
    rows[:, :2] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    for name in ("train", "test"):
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    raw, d = datasets.cifar100(tmp_path), datasets.cifar100(tmp_path, normalise="published")
    mean, sd = (torch.tensor(v)[:, None, None] for v in images.CONSTANTS["cifar100"])
    assert torch.allclose(d.X * sd + mean, raw.X, atol=1e-6)
    assert torch.allclose(d.X_test * sd + mean, raw.X, atol=1e-6)  # type: ignore[operator]
    assert not torch.allclose(datasets.cifar100(tmp_path, normalise=True).X, d.X, atol=1e-2)
    with pytest.raises(RecipeError, match="normalise='usual'"):
        datasets.cifar100(tmp_path, normalise="usual")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(files.EXPECTED))
def test_every_reader_looks_where_the_list_says(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        getattr(datasets, name)(folder=tmp_path)
    folder, _, file = files.EXPECTED[name].rpartition("/")
    sub, _, wanted = (
        (folder, "", file)
        if name not in ("femnist", "shakespeare")
        else (folder.removesuffix("/train"), "", "train/*.json")
    )
    if name == "tiny_imagenet":
        sub, wanted = "tiny-imagenet-200", "val/val_annotations.txt"
    assert f"{wanted} " in str(caught.value)
    assert str(tmp_path / sub) in str(caught.value)
    assert (information._expected(name), information._is_present(name)) == (files.EXPECTED[name], "no")
