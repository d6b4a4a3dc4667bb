"""Folders of image files become data sets, and what is wrong with them is named with its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import medley as md

Image: Any = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDLEY_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def write(place: Path, count: int = 3, size: tuple[int, int] = (4, 6)) -> list[np.ndarray]:
    """This many images [h, w, 3] of this height and width, as files of the folder."""
    place.mkdir(parents=True)
    pixels = [RNG.integers(0, 256, (*size, 3), np.uint8) for _ in range(count)]
    for k, image in enumerate(pixels):
        Image.fromarray(image).save(place / f"{k}.png")
    return pixels


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for kind in ("dog", "cat"):
        write(tmp_path / "pets" / kind)
    return tmp_path / "pets"


def test_classes_are_folders_and_pixels_are_the_files(tmp_path: Path) -> None:
    dogs, cats = (write(tmp_path / "pets" / kind) for kind in ("dog", "cat"))
    (tmp_path / "pets" / "dog" / "notes.txt").write_text("no image")
    write(tmp_path / "pets" / ".trash")
    data = md.datasets.image_folder(tmp_path / "pets")
    assert (data.labels, data.y.tolist(), data.name, data.keys) == (("cat", "dog"), [0] * 3 + [1] * 3, "pets", {})
    whole = torch.from_numpy(np.stack([*cats, *dogs])).permute(0, 3, 1, 2).float() / 255
    assert torch.equal(data.X, whole)
    named = md.datasets.image_folder("pets", size=8, channels=1, folder=tmp_path)
    assert named.X.shape == (6, 1, 8, 8)
    assert 0 <= float(named.X.min()) < float(named.X.max()) <= 1


def test_clients_are_folders_of_folders(tmp_path: Path) -> None:
    for client, kinds in (("Bern", ("cat", "dog")), ("Lyon", ("dog",))):
        for kind in kinds:
            write(tmp_path / "pets" / client / kind, 2)
    data = md.datasets.image_folder(tmp_path / "pets", clients=True)
    assert (data.y.tolist(), data.keys["client"].tolist()) == ([0, 0, 1, 1, 1, 1], ["Bern"] * 4 + ["Lyon"] * 2)
    network = md.problems.Network(nn.Sequential(nn.Flatten(), nn.Linear(72, 2)))
    fed = md.Federation(network, clients=data)
    assert fed.client_names == ("Bern", "Lyon")
    assert set(md.run(md.FedAvg(), fed, 1, progress=False).predict(data.X)) <= {"cat", "dog"}
    with pytest.raises(md.BadData, match=r"has no images in the layout <class>/<image>; .* try with clients=True"):
        md.datasets.image_folder(tmp_path / "pets")


def test_unequal_sizes_name_the_file_and_the_remedy(pets: Path) -> None:
    write(pets / "emu", 1, (5, 5))
    said = r"emu/0.png is 5×5, .*cat/0.png 6×4; pass size="
    with pytest.raises(md.BadData, match=said) as e:
        md.datasets.image_folder(pets)
    assert e.value.row == 6
    assert md.datasets.image_folder(pets, size=4).X.shape == (7, 3, 4, 4)


def test_files_that_cannot_be_read_are_named(pets: Path) -> None:
    whole = (pets / "dog" / "1.png").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"no image", whole[:20] + b"junk" + whole[24:]):
        (pets / "dog" / "1.png").write_bytes(damaged)
        with pytest.raises(md.BadData, match=r"dog/1.png is no readable image") as e:
            md.datasets.image_folder(pets)
        assert e.value.row == 4
    Image.fromarray(np.full((4, 6), 30000, np.uint16)).save(pets / "dog" / "1.png")
    with pytest.raises(md.BadData, match=r"dog/1.png has more than 8 bits a channel"):
        md.datasets.image_folder(pets)


def test_folders_without_classes_or_images_are_refused(pets: Path, tmp_path: Path) -> None:
    with pytest.raises(md.BadData, match=r"has no images in the layout <client>/<class>/<image>; .*without"):
        md.datasets.image_folder(pets, clients=True)
    (pets / "emu").mkdir()
    with pytest.raises(md.BadData, match=r"emu has no images; remove the folder"):
        md.datasets.image_folder(pets)
    write(tmp_path / "one" / "cat", 1)
    with pytest.raises(md.BadData, match=r"has the one class 'cat'"):
        md.datasets.image_folder(tmp_path / "one")
    with pytest.raises(md.BadData, match=r"image_folder\('nowhere'\): nowhere/\*/ is in none of"):
        md.datasets.image_folder("nowhere")
    with pytest.raises(md.RecipeError, match="size=0"):
        md.datasets.image_folder(pets, size=0)
    with pytest.raises(md.RecipeError, match="channels"):
        md.datasets.image_folder(pets, channels=2)  # type: ignore[arg-type]


def test_spaces_of_a_folder_do_not_count(tmp_path: Path) -> None:
    for kind in ("cat", "cat ", "dog"):
        write(tmp_path / kind, 1)
    data = md.datasets.image_folder(tmp_path)
    assert (data.y.tolist(), data.labels) == ([0, 0, 1], ("cat", "dog"))


@pytest.mark.parametrize("clients", [False, True])
def test_parts_of_a_data_set_are_no_clients_and_no_classes(clients: bool, tmp_path: Path) -> None:
    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            (tmp_path / part / kind).mkdir(parents=True)
    with pytest.raises(md.BadData, match=r"the folders of .* are called test, train, which are parts of one data set"):
        md.datasets.image_folder(tmp_path, clients=clients)
