from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley import datasets
from medley.contract.errors import BadData
from medley.datasets.leaf import CHARACTERS


@pytest.fixture(autouse=True)
def _nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDLEY_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def write(folder: Path, users: dict[str, tuple[list[Any], list[Any]]], name: str = "all_data_0.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / name).write_text(json.dumps(content))


def image(value: float) -> list[float]:
    return [value] * 783 + [0.25]


def test_femnist_reads_back_what_was_written(tmp_path: Path) -> None:
    at = tmp_path / "femnist" / "data"
    write(at / "train", {"f01": ([image(1.0), image(0.5)], [3, 61]), "f00": ([], [])})
    write(at / "train", {"f02": ([image(0.0)], [10])}, "all_data_1.json")
    write(at / "test", {"f01": ([image(0.75)], [4])})
    d = datasets.femnist(tmp_path)
    assert d.X.shape == (3, 1, 28, 28)
    assert d.X[:, 0, 0, 0].tolist() == [1.0, 0.5, 0.0]
    assert d.X[:, 0, 27, 27].tolist() == [0.25] * 3
    assert (d.y.tolist(), d.classes, d.labels[61]) == ([3, 61, 10], 62, "z")
    assert d.keys["writer"].tolist() == ["f01", "f01", "f02"]
    assert d.y_test is not None
    assert d.y_test.tolist() == [4]
    parts = md.partitions.ByKey("writer").split(d.y.numpy(), 3, 0, d.keys)
    assert [p.tolist() for p in parts] == [[0, 1], [2]]


def test_shakespeare_reads_characters_and_the_next_one(tmp_path: Path) -> None:
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    text = "To be, or not to be:\nthat is the question.".ljust(80)
    write(tmp_path / "train", {"HAMLET": ([text, text[1:] + "$"], ["a", "}"]), "OPHELIA": ([text], ["$"])})
    d = datasets.shakespeare(tmp_path)
    assert d.X.shape == (3, 80)
    assert d.X.dtype == torch.int64
    assert "".join(CHARACTERS[i] for i in d.X[0]) == text
    assert [CHARACTERS[i] for i in d.y] == ["a", "}", "}"]
    assert CHARACTERS[int(d.X[1, -1])] == "}"
    assert d.X_test is None
    assert d.keys["speaker"].tolist() == ["HAMLET", "HAMLET", "OPHELIA"]


def test_clients_train_on_their_own_lines(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users = {}
    for name in ("A", "B"):
        rows = ["".join(rng.choice(list("abc"), 80)) for _ in range(12)]
        users[name] = (rows, [row[-1] for row in rows])
    write(tmp_path / "train", users)
    fed = md.Federation(
        md.problems.Network(md.models.char_lstm(hidden=16, layers=1)),
        data=datasets.shakespeare(tmp_path),
        partition=md.partitions.ByKey("speaker"),
        pace=md.scenarios.Pace(lr=2.0, epochs=2, batch=4),
    )
    run = md.run(md.FedAvg(), fed, rounds=3, progress=False)
    assert run.history[-1]["loss"] < 0.5 * 4.38  # ln 80, of a guess among all characters


def test_damaged_files_are_named_with_user_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"shakespeare\(\): train/\*\.json is in none of .*MEDLEY_DATA"):
        datasets.shakespeare(tmp_path)
    write(tmp_path / "train", {"A": ([image(1.0)], [1]), "B": ([[1.0] * 783], [2])})
    with pytest.raises(BadData, match=r"all_data_0\.json, user 'B': an image has shape \[783\].*preprocess\.sh"):
        datasets.femnist(tmp_path)
    write(tmp_path / "train", {"A": ([image(1.0)], [1, 2])})
    with pytest.raises(BadData, match=r"user 'A': 1 rows with 2 labels"):
        datasets.femnist(tmp_path)
    (tmp_path / "train" / "all_data_0.json").write_text("{")
    with pytest.raises(BadData, match=r"all_data_0\.json is no JSON file of LEAF"):
        datasets.femnist(tmp_path)
    write(tmp_path / "train", {"A": ([], [])})
    with pytest.raises(BadData, match="hold no rows"):
        datasets.femnist(tmp_path)
    write(tmp_path / "train", {"A": (["short"], ["a"])})
    with pytest.raises(BadData, match="no pair of 80 characters"):
        datasets.shakespeare(tmp_path)
