"""Checksums of files: whatever changes in them changes the sum."""

from __future__ import annotations

import torch

from medley.storage.formats import checksum

TEXTS = {"settings": "{}", "history": "1,2"}
STORE = {"x": torch.arange(5.0), "one": torch.tensor([7.0]), "scalar": torch.tensor(3), "none": torch.zeros(0)}


def test_every_byte_of_every_tensor_counts() -> None:
    sums = {checksum(TEXTS, STORE)}
    count = 0
    for name, t in STORE.items():
        for k in range(t.numel() * t.element_size()):
            raw = t.clone().reshape(-1).view(torch.uint8)
            raw[k] ^= 1
            sums.add(checksum(TEXTS, STORE | {name: raw.view(t.dtype).reshape(t.shape)}))
            count += 1
    assert count == 5 * 4 + 4 + 8
    assert len(sums) == 1 + count


def test_names_shapes_dtypes_and_texts_count_and_order_does_not() -> None:
    same = checksum(TEXTS, STORE)
    assert checksum(dict(reversed(TEXTS.items())), dict(reversed(STORE.items()))) == same
    renamed = {("y" if name == "x" else name): t for name, t in STORE.items()}
    others = [
        checksum(TEXTS, renamed),
        checksum(TEXTS, STORE | {"x": STORE["x"].reshape(1, 5)}),
        checksum(TEXTS, STORE | {"x": STORE["x"].view(torch.int32)}),
        checksum(TEXTS, STORE | {"none": torch.zeros(0, dtype=torch.int8)}),
        checksum(TEXTS | {"history": "1,3"}, STORE),
        checksum({"settings": "{}"}, STORE),
    ]
    assert len({same, *others}) == 1 + len(others)
