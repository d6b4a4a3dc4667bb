"""C-FLAG's experiments: one line a finished run, the same command goes on, and every method has as many points."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import medley as md

FOLDER = Path(__file__).parents[2] / "papers" / "cflag"
NAMES = ("ablation", "lines", "run", "scripts", "settings", "sweeps")


@pytest.fixture
def cflag(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts, on small digits, a round a task."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in NAMES:
        sys.modules.pop(name, None)
    import ablation
    import lines
    import run
    import scripts
    import settings
    import sweeps

    def small(table: str, **changed: Any) -> md.Federation:
        mode = settings.TABLES[table][0]
        return md.Federation(
            md.problems.Network(md.models.mlp(64, 10, (8,))),
            data=md.datasets.digits().flatten().take(n_train=300, n_test=200),
            partition=md.partitions.IID(3),
            pace=md.scenarios.Pace(lr=1.0, batch=32),
            stream=md.tasks.Split(tasks=5, mode=mode),
            replay=md.replay.Ring(capacity=changed.get("capacity", 8), sample=4),
            validation=0.3,
        )

    monkeypatch.setattr(settings, "federation", small)
    monkeypatch.setattr(settings, "ROUNDS", 1)
    yield {m.__name__: m for m in (ablation, lines, run, scripts, settings, sweeps)}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_every_method_is_tuned_over_six_points(cflag: dict[str, Any]) -> None:
    for name in cflag["settings"].METHODS:
        points = cflag["run"].points(name)
        assert len(points) == len({json.dumps(p) for p in points}) == 6


@pytest.mark.slow
def test_a_run_is_a_line_and_what_is_there_is_not_made_again(cflag: dict[str, Any], tmp_path: Path) -> None:
    run, lines, names = cflag["run"], cflag["lines"], ["CFLAG.joint last layer", "ERring"]
    run.fill(tmp_path, "ci_dir", names, [0, 1], jobs=2)
    path = tmp_path / "ci_dir.jsonl"
    text = path.read_text()
    found = lines.read(path)
    assert [sum(x["kind"] == kind for x in found) for kind in ("tuning", "final")] == [12, 4]
    assert {x["seed"] for x in found if x["kind"] == "tuning"} == {100}
    for name in names:
        tuning = [x for x in found if x["method"] == name and x["kind"] == "tuning"]
        best = max(tuning, key=lambda x: x["figures"]["acc"])
        finals = run.finals(tmp_path, "ci_dir", name)
        assert sorted(x["seed"] for x in finals) == [0, 1]
        assert all(x["point"] == best["point"] and x["status"] == "finished" for x in finals)
    run.fill(tmp_path, "ci_dir", names, [0, 1], jobs=1)
    assert path.read_text() == text

    # A killed process left half a line: that run is made again, with the same figures.
    path.write_text(text[: text.rindex('"status"') + 5])
    assert len(lines.read(path)) == 15
    run.fill(tmp_path, "ci_dir", names, [0, 1], jobs=1)
    again = lines.read(path)
    assert len(again) == 16
    assert again[-1]["figures"] == found[-1]["figures"]

    table = run.markdown(tmp_path)
    acc = [100 * x["figures"]["acc"] for x in run.finals(tmp_path, "ci_dir", "ERring")]
    assert "| method | Acc | Fgt | Learn | Acc − ERring | Fgt − ERring | seeds |" in table
    assert f"| ERring | {sum(acc) / 2:.1f} (" in table


def test_a_swept_run_is_at_the_chosen_point_and_apart_from_the_tables(cflag: dict[str, Any], tmp_path: Path) -> None:
    run, sweeps = cflag["run"], cflag["sweeps"]
    with pytest.raises(SystemExit, match=r"has no runs of 'CFLAG\.joint' in ci_dir; start run\.py first"):
        sweeps.missing(tmp_path)
    key = run.keys_of("final", "ci_dir", "ERring", [{"lr": 0.1}], [0])[0] | {"changed": [["capacity", 20]]}
    (line,) = cflag["lines"].fill(tmp_path / "sweeps.jsonl", [key], run.make, 1)
    assert line["figures"]["acc"] > 0.1
    assert run.finals(tmp_path, "ci_dir", "ERring") == []


def test_the_paired_difference_and_its_error_by_hand(cflag: dict[str, Any]) -> None:
    made = lambda *acc: [{"seed": s, "status": "finished", "figures": {"acc": a}} for s, a in enumerate(acc)]
    assert cflag["run"].against(made(0.5, 0.7, 0.9), made(0.4, 0.5, 0.6), "acc") == "+20.0 ± 5.8"
    assert cflag["run"].against(made(0.5), made(0.4), "acc") == "–"


def test_the_rates_of_the_scripts_by_hand(cflag: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parameters, of two entries and of one: ⟨u, v⟩ is the mean of two products and the third product."""
    scripts = cflag["scripts"]
    net = torch.nn.Module()
    net.a, net.b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))
    monkeypatch.setattr(cflag["settings"], "net", lambda: net)
    f, G = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2.0, 0.0, 1.0])
    assert scripts.agreement(f, G) == (2 + 0) / 2 + 2
    assert scripts.agreement(G, G) == 3
    assert scripts.rates(f, G, 0.1, 0.2, 0.01, 5.0) == pytest.approx((0.1, (1 - 0.5) / (5 * 3) * 3))
    # Interference: the memory's rate is the server's learning rate times 1 + 3/9, the task's that of the server.
    assert scripts.rates(f, -G, 0.1, 0.2, 0.01, 5.0) == pytest.approx((0.01 * (1 + 3 / 9), 0.2))


def test_the_table_of_the_scripts_is_that_of_the_runs(cflag: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cflag["settings"], "ROUNDS", 20)
    assert cflag["scripts"].markdown().strip() in (FOLDER / "README.md").read_text(encoding="utf-8")
