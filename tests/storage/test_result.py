from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import medley as md
from medley.contract.errors import MedleyError, WireError
from medley.storage.result import Result, Status
from support.toys import Toy, federation


def ran(**options: object) -> Result:
    return md.run(Toy(), federation(3), 3, **options)  # type: ignore[arg-type]


def test_save_and_load_is_the_same_result(tmp_path: Path):
    a = ran(eval_every=2)
    b = Result.load(a.save(tmp_path / "runs" / "a"))
    assert torch.equal(a.x, b.x)
    assert a.x.dtype == b.x.dtype == torch.float64
    assert (a.method, a.seed, a.history, a.summary, a.status, a.settings) == (
        b.method, b.seed, b.history, b.summary, b.status, b.settings,
    )  # fmt: skip
    assert a.ledger == b.ledger
    assert sorted(p.name for p in (tmp_path / "runs" / "a").iterdir()) == [
        "history.jsonl", "ledger.csv", "model.json", "result.json", "x.safetensors",
    ]  # fmt: skip


def test_buffers_are_saved_with_x(tmp_path: Path):
    a = ran()
    a.buffers = torch.tensor([0.5]), torch.tensor([3])
    b = Result.load(a.save(tmp_path))
    assert b.buffers is not None
    assert [t.tolist() for t in b.buffers] == [[0.5], [3]]


def test_columns_that_only_some_rows_have(tmp_path: Path):
    a = Result("M", 0, torch.zeros(1), [{"round": 0, "loss": 1.0}, {"round": 1, "loss": math.inf, "drift": 0.5}])
    assert a["drift"][1] == 0.5
    assert math.isnan(a["drift"][0])
    assert Result.load(a.save(tmp_path)).history == a.history
    with pytest.raises(md.RecipeError, match=r"the history has no 'drfit'\. Did you mean 'drift'"):
        a["drfit"]
    assert Result("M", 0, torch.zeros(1))["loss"] == []


def test_writing_over_an_older_result(tmp_path: Path):
    ran().save(tmp_path)
    b = md.run(md.FedAvg(), federation(3), 1)
    assert Result.load(b.save(tmp_path)).method == "FedAvg"


@pytest.mark.parametrize(
    ("head", "writer"),
    [
        ({"format": 1}, "another version of medley wrote in format 1"),
        ({"format": 2, "method": "FedAvg", "seed": 0}, "another version of medley wrote in format 2"),
        ({"format": 3, "medley": "0.1.0"}, "medley 0.1.0 wrote in format 3"),
        ({"format": 5, "medley": "9.1.0"}, "medley 9.1.0 wrote in format 5"),
    ],
)
def test_a_result_of_another_format_is_refused(tmp_path: Path, head: dict[str, object], writer: str):
    (tmp_path / "result.json").write_text(json.dumps(head))
    with pytest.raises(WireError) as caught:
        Result.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} holds a run that {writer}, but this version reads only format 4: read it with the version that "
        "wrote it, or start over in another folder"
    )


def test_a_digest_tells_bits_apart_and_not_wall_times():
    a = ran()
    b = ran()
    assert a["wall"] != b["wall"]
    assert a.digest == b.digest
    b.x = torch.nextafter(b.x, b.x + 1)
    assert a.digest != b.digest


def damage(path: Path, name: str, how: str) -> None:
    file = path / name
    match how:
        case "away":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "half":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        case "noise":
            file.write_bytes(bytes(range(256)) * 4)


@pytest.mark.parametrize("how", ["away", "empty", "half", "noise"])
@pytest.mark.parametrize("name", ["result.json", "ledger.csv", "x.safetensors"])
def test_a_damaged_folder_is_a_wire_error(tmp_path: Path, name: str, how: str):
    ran().save(tmp_path)
    damage(tmp_path, name, how)
    with pytest.raises(WireError, match=str(tmp_path)):
        Result.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("result.json", b'"finished"', b'"diverged"'),
        ("result.json", b'"seed": 0', b'"seed": 4'),
        ("clients.jsonl", b'"loss": 0.5', b'"loss": 0.6'),
        ("clients.safetensors", struct.pack("<f", 2.0), struct.pack("<f", 2.5)),
    ],
)
def test_damage_that_leaves_a_file_readable_is_noticed(tmp_path: Path, name: str, old: bytes, new: bytes):
    """Files of versions without checksums are read as they are."""
    a = ran()
    a.clients = [{"round": 3, "client": 0, "loss": 0.5}]
    a.personal = {0: {"weight": torch.full((2,), 2.0)}}
    a.save(tmp_path)
    assert Result.load(tmp_path).personal[0]["weight"].tolist() == [2.0, 2.0]
    raw = (tmp_path / name).read_bytes()
    assert old in raw
    (tmp_path / name).write_bytes(raw.replace(old, new, 1))
    with pytest.raises(WireError, match=f"{name}.* is damaged: its checksum does not match"):
        Result.load(tmp_path)
    (tmp_path / name).write_bytes(raw)
    head = json.loads((tmp_path / "result.json").read_text())
    del head["checksum"]
    (tmp_path / "result.json").write_text(json.dumps({**head, "seed": 5}))
    save_file({"0/weight": torch.ones(2)}, tmp_path / "clients.safetensors", {"clients": "0"})
    assert Result.load(tmp_path).seed == 5


@pytest.mark.parametrize("how", ["away", "noise"])
def test_a_damaged_history(tmp_path: Path, how: str):
    ran().save(tmp_path)
    damage(tmp_path, "history.jsonl", how)
    with pytest.raises(WireError, match="holds no readable result"):
        Result.load(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", '{"format": 4}', "{}", "null"])
def test_json_that_is_no_result(tmp_path: Path, text: str):
    ran().save(tmp_path)
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(WireError, match="holds no readable result"):
        Result.load(tmp_path)


def test_a_number_of_the_ledger_that_is_too_large(tmp_path: Path):
    ran().save(tmp_path)
    with (tmp_path / "ledger.csv").open("a") as f:
        f.write(f"4,0,train,0,{1 << 63},1,0\n")
    with pytest.raises(WireError, match=r"holds no readable result: ValueError: .* more than 64 bits"):
        Result.load(tmp_path)


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", 5),
        ("seed", [1]),
        ("seed", True),
        ("summary", [1]),
        ("summary", None),
        ("settings", "x"),
        ("status", [None, ""]),
        ("status", ["finished"]),
        ("environment", 1),
    ],
)
def test_entries_of_another_kind_are_refused_by_name(key: str, value: object, tmp_path: Path):
    ran().save(tmp_path)
    head = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**head, key: value}))
    with pytest.raises(md.WireError, match=f"no readable result: (TypeError|ValueError).*({key}|outcome|zip)"):
        Result.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("result.json", DEEP),
        ("result.json", "[1]"),
        ("history.jsonl", DEEP),
        ("history.jsonl", '{"round": 0, "loss": "low"}'),
        ("history.jsonl", '{"round": {}}'),
    ],
)
def test_text_and_depth_where_numbers_belong(file: str, text: str, tmp_path: Path):
    ran().save(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(md.WireError, match="no readable result"):
        Result.load(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MedleyError, match="cannot make the folder"):
        ran().save(tmp_path / "file" / "sub")


def test_status_says_how_it_went():
    assert Status("finished").ok
    assert Status("target", "reached").ok
    assert not any(Status(o).ok for o in ("interrupted", "diverged", "stalled", "failed"))
    assert str(Status("diverged", "too fast")) == "diverged: too fast"
    assert str(Status("finished")) == "finished"


def test_a_summary_is_the_last_row_with_the_mean_of_the_tail():
    full = ran().summary
    assert full["tail_loss"] == pytest.approx(sum(ran()["loss"]) / 4)
