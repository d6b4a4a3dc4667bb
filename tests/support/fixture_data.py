"""Small files in the formats of real data sets, of random numbers."""

from __future__ import annotations

import io
import lzma
import struct
from pathlib import Path

import numpy as np


def write_all(folder: Path, rows: int = 400, test: int = 60) -> Path:
    """Write every data set of the recipes under papers/ to a folder for MEDLEY_DATA. Returns it.

    Args:
        folder: a new or an empty folder
        rows: training rows of each set; a multiple of 5
        test: test rows of each set
    """
    g = np.random.default_rng(0)
    for name, coarse in (("cifar-10-batches-bin", False), ("cifar-100-binary", True)):
        (folder / name).mkdir(parents=True)
        files = [("train.bin", rows), ("test.bin", test)]
        if not coarse:
            files = [(f"data_batch_{k}.bin", rows // 5) for k in range(1, 6)] + [("test_batch.bin", test)]
        for file, n in files:
            labels = np.arange(n) % (100 if coarse else 10)
            heads = [labels // 5, labels] if coarse else [labels]
            pixels = g.integers(0, 256, (n, 3072))
            records = np.concatenate([np.stack(heads, axis=1), pixels], axis=1)
            (folder / name / file).write_bytes(records.astype(np.uint8).tobytes())
    for name in ("MNIST", "FashionMNIST"):
        raw = folder / name / "raw"
        raw.mkdir(parents=True)
        for part, n in (("train", rows), ("t10k", test)):
            (raw / f"{part}-images-idx3-ubyte").write_bytes(_idx(g.integers(0, 256, (n, 28, 28))))
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(_idx(np.arange(n) % 10))
    _tiny_imagenet(folder / "packed", g, rows, test)
    _sentiment140(folder, g, rows, test)
    return folder


def _idx(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(np.uint8).tobytes()


def _tiny_imagenet(folder: Path, g: np.random.Generator, rows: int, test: int) -> None:
    from PIL import Image

    folder.mkdir()
    arrays: dict[str, np.ndarray] = {"names": np.array([f"n{k:02}" for k in range(50)])}
    for part, n in (("train", rows), ("val", test)):
        blobs = []
        for pixels in g.integers(0, 256, (n, 64, 64, 3), dtype=np.uint8):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG")
            blobs.append(file.getvalue())
        arrays[f"jpeg_{part}"] = np.frombuffer(b"".join(blobs), np.uint8)
        arrays[f"offset_{part}"] = np.cumsum([0, *map(len, blobs)])
        arrays[f"y_{part}"] = np.arange(n) % 50
    np.savez(folder / "tinyimagenet50_jpeg.npz", **arrays)  # type: ignore[arg-type]


def _sentiment140(folder: Path, g: np.random.Generator, rows: int, test: int) -> None:
    def text(n: int) -> np.ndarray:
        lines = [" ".join(f"word{w}" for w in g.integers(0, 500, 20)) for _ in range(n)]
        return np.frombuffer(lzma.compress("\n".join(lines).encode()), np.uint8)

    np.savez(
        folder / "sentiment140_subset.npz",
        y=np.arange(rows) % 2,
        user=np.arange(rows) // 4,
        seconds_since_20090401=np.arange(rows),
        text_xz=text(rows),
        y_test=np.arange(test) % 2,
        text_test_xz=text(test),
    )
