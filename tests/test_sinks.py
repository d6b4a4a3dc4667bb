"""Sinks: TensorBoard's own reader finds every figure of a run and of a comparison in its files."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import medley as md
from medley import sinks

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)


def federation() -> md.Federation:
    net = md.problems.Network(nn.Linear(64, 10))
    return md.Federation(net, data=md.datasets.digits(), partition=md.partitions.IID(clients=4))


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars of a folder of event files, by name: steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@needs_tensorboard
def test_tensorboard_has_every_figure_of_a_run(tmp_path: Path) -> None:
    with contextlib.closing(sinks.TensorBoard(tmp_path)) as sink:
        r = md.run(md.FedAvg(), federation(), 3, on_round=sink)
    values = scalars(tmp_path)
    assert set(values) >= {"loss", "accuracy", "bytes_up"}
    for name in ("loss", "accuracy"):
        assert [step for step, _ in values[name]] == [0, 1, 2, 3]
        assert [v for _, v in values[name]] == pytest.approx([row[name] for row in r.history], rel=1e-6)


@needs_tensorboard
@pytest.mark.parametrize("jobs", [1, 2])
def test_tensorboard_has_the_figures_of_a_comparison_below_method_and_seed(tmp_path: Path, jobs: int) -> None:
    with contextlib.closing(sinks.TensorBoard(tmp_path)) as sink:
        methods = [md.FedAvg(), md.SCAFFOLD()]
        board = md.compare(methods, federation(), rounds=2, seeds=2, on_round=sink, jobs=jobs, progress=False)
    values = scalars(tmp_path)
    for r in board.results:
        steps = values[f"{r.method}/seed {r.seed}/loss"]
        assert sorted(steps) == [(row["round"], pytest.approx(row["loss"], rel=1e-6)) for row in r.history]
    assert len([name for name in values if name.endswith("/loss")]) == 4


def test_a_sink_without_its_tracker_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(md.MedleyError, match=r"pip install .*\[tensorboard\]'$"):
        md.sinks.TensorBoard("runs/a")
