from __future__ import annotations

import errno
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import medley as md
from medley.contract.errors import MedleyError, WireError
from medley.storage import checkpoint
from medley.storage.as_json import plain
from support.toys import Memory, Server, Toy, federation

CLASSES = {"Server": Server, "Memory": Memory}


def state() -> dict[str, Any]:
    x = torch.tensor([0.1, float("nan"), -0.0, 5e-324], dtype=torch.float64)
    memories = {2: Memory(x / 3, 4), 0: Memory(torch.zeros(0))}
    return {"round": 3, "server": Server(x, x[1:], [0.1, 2.0]), "memories": memories, "history": [{"loss": 0.1 + 0.2}]}


def bits(t: torch.Tensor) -> list[int]:
    return t.reshape(-1).view(torch.uint8).tolist()


def test_state_comes_back_bit_by_bit(tmp_path: Path):
    original = state()
    checkpoint.save(tmp_path / "deep" / "er", original, {"lr": 0.1, "f": plain})
    back = checkpoint.load(tmp_path / "deep" / "er", CLASSES, {"f": "plain", "lr": 0.1})
    assert bits(back["server"].x) == bits(original["server"].x)
    assert bits(back["server"].c) == bits(original["server"].c)
    assert back["server"].log == [0.1, 2.0]
    assert {i: (bits(m.c), m.calls) for i, m in back["memories"].items()} == {
        i: (bits(m.c), m.calls) for i, m in original["memories"].items()
    }
    assert (back["round"], back["history"]) == (3, [{"loss": 0.1 + 0.2}])


def test_tensors_come_back_where_torch_puts_them(tmp_path: Path):
    """Some kernels give other bits at other alignments, and those in the file depend on the length of its header."""
    for k in range(8):
        checkpoint.save(tmp_path, {"x": torch.ones(3), "y": torch.ones(5), "z": torch.ones(64), "pad": "x" * k}, {})
        saved = checkpoint.load(tmp_path, {}, {})
        assert [saved[name].data_ptr() % 64 for name in "xyz"] == [0, 0, 0]


def test_every_flipped_bit_is_noticed(tmp_path: Path):
    checkpoint.save(tmp_path, state(), {})
    path = tmp_path / checkpoint.FILE
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    head = json.loads(good[8:header])
    step = max(1, len(good) // 700)
    at = [*range(0, len(good), step), *range(header - 40, header), *(good.index(k.encode()) for k in head)]
    blank = 0
    for k in at:
        for bit in (0, 3):
            bad = bytearray(good)
            bad[k] ^= 1 << bit
            path.write_bytes(bad)
            try:
                checkpoint.load(tmp_path, CLASSES, {})
            except WireError:
                continue
            # The header is padded with blanks at its end; JSON does not care for them.
            assert good[k : k + 1] == b" ", (k, bit, good[k - 20 : k + 20])
            blank += 1
    assert blank < 20
    path.write_bytes(good)
    assert checkpoint.load(tmp_path, CLASSES, {})["round"] == 3


@pytest.mark.parametrize(("of", "to"), [("F64", "I64"), ("[3,1]", "[1,3]")])
def test_a_type_or_a_shape_that_was_changed_is_noticed(tmp_path: Path, of: str, to: str):
    checkpoint.save(tmp_path, {"x": torch.ones(3, 1, dtype=torch.float64)}, {})
    path = tmp_path / checkpoint.FILE
    good = path.read_bytes()
    assert of.encode() in good
    path.write_bytes(good.replace(of.encode(), to.encode(), 1))
    with pytest.raises(WireError, match="damaged"):
        checkpoint.load(tmp_path, CLASSES, {})


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float):
    checkpoint.save(tmp_path, state(), {})
    path = tmp_path / checkpoint.FILE
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(WireError, match=r"checkpoint\.safetensors"):
        checkpoint.load(tmp_path, CLASSES, {})


def test_no_checkpoint_and_other_files(tmp_path: Path):
    with pytest.raises(WireError, match=r"there is no checkpoint in .*: nothing to resume"):
        checkpoint.load(tmp_path, CLASSES, {})
    save_file({"x": torch.ones(2)}, tmp_path / checkpoint.FILE)
    with pytest.raises(
        WireError, match=r"another version of medley wrote in format None, .*reads only format 6: finish it with"
    ):
        checkpoint.load(tmp_path, CLASSES, {})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.2, "f": "a"}, "lr was 0.1 there and is 0.2 here"),
        ({"lr": 0.1}, "f was 'a' there and is None here"),
        ({"lr": 0.1, "f": "a", "more": 1}, "more was None there and is 1 here"),
    ],
)
def test_the_first_setting_that_differs_is_named(tmp_path: Path, settings: dict[str, Any], words: str):
    checkpoint.save(tmp_path, state(), {"lr": 0.1, "f": "a"})
    with pytest.raises(
        WireError,
        match=f"is from another run: {words}; resume with the data, model and settings that it was started with",
    ):
        checkpoint.load(tmp_path, {}, settings)


def test_a_state_of_another_version_of_the_method_is_refused_with_the_remedy(tmp_path: Path):
    checkpoint.save(tmp_path, state(), {})
    words = "another version of the method saved it, with other fields of Server: .*start it again in another folder"
    with pytest.raises(WireError, match=words):
        checkpoint.load(tmp_path, {"Server": Memory, "Memory": Memory}, {})


def test_a_foreign_class_is_not_made(tmp_path: Path):
    checkpoint.save(tmp_path, state(), {})
    with pytest.raises(WireError, match="damaged or foreign state"):
        checkpoint.load(tmp_path, {"Server": Server}, {})


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MedleyError, match=r"cannot make the folder .*file"):
        checkpoint.save(tmp_path / "file" / "sub", state(), {})


Full = Callable[[], None]


def disk_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)


def test_a_full_disk_loses_neither_the_old_checkpoint_nor_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    toy = Toy()
    fed = federation(3)
    want = md.run(toy, fed, 5)

    def fill(row: dict[str, float]) -> None:
        if row["round"] == 3:
            disk_full(monkeypatch)

    with pytest.raises(MedleyError, match=r"cannot write .*No space left on device.*resume=") as caught:
        md.run(toy, fed, 5, checkpoint=tmp_path, checkpoint_every=2, on_round=fill)
    result = caught.value.result
    assert result.status.outcome == "failed"
    assert "No space left" in result.status.message
    assert [row["round"] for row in result.history] == [0, 1, 2, 3, 4]
    assert result["loss"] == want["loss"][:5]
    assert result.x.shape == want.x.shape
    assert not [*tmp_path.glob(".*.tmp")]
    monkeypatch.undo()
    assert torch.equal(md.run(toy, fed, 5, resume=tmp_path).x, want.x)


def test_a_full_disk_at_ctrl_c_loses_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(row: dict[str, float]) -> None:
        if row["round"] == 2:
            disk_full(monkeypatch)
            raise KeyboardInterrupt

    with pytest.raises(MedleyError, match="No space left") as caught:
        md.run(Toy(), federation(3), 5, checkpoint=tmp_path, on_round=stop)
    assert [row["round"] for row in caught.value.result.history] == [0, 1, 2]
    assert not (tmp_path / checkpoint.FILE).exists()


def mounted(folder: Path) -> bool:
    return os.system(f"mount -t tmpfs -o size=8k none {folder} 2>/dev/null") == 0


def test_a_disk_that_really_is_full(tmp_path: Path):
    if not mounted(tmp_path):
        pytest.skip("only root can mount a small disk here")
    try:
        checkpoint.save(tmp_path, {"x": torch.ones(4)}, {})
        with pytest.raises(MedleyError, match=r"cannot write .*the old file is untouched"):
            checkpoint.save(tmp_path, {"x": torch.ones(4000)}, {})
        assert checkpoint.load(tmp_path, {}, {})["x"].tolist() == [1.0] * 4
        assert [p.name for p in tmp_path.iterdir()] == [checkpoint.FILE]
    finally:
        os.system(f"umount {tmp_path}")


def test_settings_that_describe_data_do_not_part_a_run_from_its_folder(tmp_path: Path) -> None:
    described = {"features": ["age"], "scaling": {"mean": [[0.5]]}, "test_rows": 9, "test_majority": ["yes", 0.5]}
    checkpoint.same_settings(tmp_path, {"seed": 0}, {"seed": 0, **described})
    with pytest.raises(WireError, match="seed was 0 there and is 1 here"):
        checkpoint.same_settings(tmp_path, {"seed": 0, **described}, {"seed": 1})


def test_another_device_is_taken_with_its_engine_and_another_engine_is_not(tmp_path: Path) -> None:
    recorded = {"seed": 0, "device": "cuda", "engine": "stacked"}
    checkpoint.same_settings(tmp_path, recorded, {"seed": 0, "device": "cpu", "engine": "fused"})
    checkpoint.same_settings(tmp_path, recorded, recorded | {"device": "cuda:0"})
    with pytest.raises(WireError, match="engine was 'stacked' there and is 'seq' here"):
        checkpoint.same_settings(tmp_path, recorded, recorded | {"device": "cuda:0", "engine": "seq"})
    with pytest.raises(WireError, match="engine was 'stacked' there and is 'seq' here"):
        checkpoint.same_settings(tmp_path, recorded, recorded | {"engine": "seq"})
    with pytest.raises(WireError, match="seed was 0 there and is 1 here"):
        checkpoint.same_settings(tmp_path, recorded, {"seed": 1, "device": "cpu", "engine": "fused"})


def test_a_checkpoint_is_written_without_a_copy_of_the_state(tmp_path: Path):
    x = torch.arange(1 << 20, dtype=torch.float32)
    tracemalloc.start()
    checkpoint.save(tmp_path, {"server": {"x": x, "again": x, "rows": x.view(1024, 1024).T[:2]}}, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * x.nbytes
    saved = checkpoint.load(tmp_path, {})["server"]
    assert torch.equal(saved["x"], x)
    assert torch.equal(saved["rows"], x.view(1024, 1024).T[:2])
    assert saved["x"].data_ptr() != saved["again"].data_ptr()
