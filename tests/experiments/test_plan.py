"""Planned runs: seeds, settings for the record, folders, and results of an earlier call."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import medley as md
from medley.contract.errors import RecipeError, WireError
from medley.experiments.board import Board
from medley.experiments.plan import PlannedRun, as_json, seeds_of, settings_of, slot, split
from medley.storage.result import Result
from support.toys import Toy, federation


@pytest.mark.parametrize(("given_", "seeds"), [(3, [0, 1, 2]), (1, [0]), ([7, 5], [7, 5]), (range(2, 4), [2, 3])])
def test_seeds(given_: Any, seeds: list[int]) -> None:
    assert seeds_of(given_, "compare") == seeds


@pytest.mark.parametrize("given_", [0, -2, [], [1, 1], (3, 4, 3)])
def test_seeds_that_make_no_sense(given_: Any) -> None:
    with pytest.raises(RecipeError, match=r"^tune\(seeds=.*give a number from 1, or different integers"):
        seeds_of(given_, "tune")


def test_settings_of_a_tuned_method_hold_its_factor() -> None:
    tuned = md.Tuned(md.FedAvg(server_lr=0.5), lr=3.0)
    assert split(tuned) == (md.FedAvg(server_lr=0.5), 3.0)
    assert split(md.FedAvg()) == (md.FedAvg(), 1.0)
    assert settings_of(tuned) == {"method": "FedAvg", "method.server_lr": 0.5, "lr multiplier": 3.0}


def test_settings_as_they_come_back_from_a_file() -> None:
    settings = {"window": (0.0, 1.0), "seeds": [1], "none": None}
    assert as_json(settings) == json.loads(json.dumps(settings)) == {"window": [0.0, 1.0], "seeds": [1], "none": None}


SIGNS = st.text(st.sampled_from("aB/\\.:*%é ()=,~\n"), min_size=1, max_size=6)


@given(SIGNS, SIGNS)
def test_folders_of_different_names_differ_and_stay_inside(a: str, b: str) -> None:
    top = Path("top")
    one = slot(top, a, 0)
    two = slot(top, b, 0)
    assert (one == two) == (a == b)
    assert one.parts[0] == "top"
    assert len(one.parts) == 3
    assert one.parts[1] not in (".", "..")
    assert not set(one.parts[1]) & set('/\\:*"<>|?\n')


@pytest.mark.parametrize("name", ["方" * 40, "x" * 300, "é" * 200])
def test_any_name_has_a_folder(name: str, tmp_path: Path) -> None:
    fed = md.Federation(md.problems.Softmax(), clients=[([[1.0], [2.0]], [0, 1])])
    md.compare({name: md.FedAvg()}, fed, 1, 1, jobs=1, save=tmp_path)
    assert [r.method for r in Board.load(tmp_path).results] == [name]


def test_folders_differ_where_case_does_not_count() -> None:
    names = ["FedAvg", "FEDAVG", "fedavg", "other"]
    folders = [slot(Path("top"), name, 0, names).parts[1] for name in names]
    assert folders[::3] == ["FedAvg", "other"]
    assert len({f.lower() for f in folders}) == 4
    assert slot(Path("top"), "fedavg", 0).parts[1] == "fedavg"
    long = ["x" * 121 + "a", "x" * 121 + "b"]
    assert len({slot(Path("top"), name, 0) for name in long}) == 2


@pytest.mark.parametrize("name", ["CON", "nul", "com1", "Lpt9.txt", "end.", "end "])
def test_names_that_windows_keeps_or_cuts_are_escaped(name: str) -> None:
    assert "%" in slot(Path("top"), name, 0).parts[1]


def planned(folder: Path | None) -> PlannedRun:
    return PlannedRun("mine", Toy(), 1, as_json({"seed": 1, "mu": 0.1}), folder)


def kept_as(run: PlannedRun, outcome: str = "finished", **settings: Any) -> Result:
    result = md.run(Toy(), federation(3), 1, seed=run.seed)
    status = replace(result.status, outcome=outcome)
    saved = replace(result, status=status, settings={**run.settings, **settings})
    assert run.folder is not None
    saved.save(run.folder)
    return saved


def test_a_run_without_a_result_has_nothing_kept(tmp_path: Path) -> None:
    assert (planned(None).done, planned(None).saved_result()) == (False, None)
    assert (planned(tmp_path).done, planned(tmp_path).saved_result()) == (False, None)
    assert str(planned(None)) == "mine, seed 1"


def test_a_final_result_is_kept_and_an_interrupted_one_made_again(tmp_path: Path) -> None:
    run = planned(tmp_path / "a")
    saved = kept_as(run)
    loaded = run.saved_result()
    assert run.done
    assert loaded is not None
    assert torch.equal(loaded.x, saved.x)
    kept_as(run, "interrupted")
    assert run.done
    assert run.saved_result() is None


def test_a_result_of_other_settings_is_refused_with_both_values(tmp_path: Path) -> None:
    run = planned(tmp_path / "a")
    kept_as(run, mu=0.2)
    with pytest.raises(WireError, match=r"a holds another run: mu was 0\.2 there and is 0\.1 here; choose another"):
        run.saved_result()


@pytest.mark.parametrize("fed", [md.Federation, Toy(), None])
def test_only_a_federation_runs_methods(fed: Any) -> None:
    with pytest.raises(RecipeError, match=r"^compare\(fed=.*give a Federation"):
        md.compare([Toy()], fed, 1, 1)
