"""Benchmarks with a memory: what counts as a fall, and that the file and its picture hold what was measured."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from support.scripts import BENCHMARKS, loaded

history = loaded("history.py", BENCHMARKS)


def run(processor: str = "here", **ratios: float) -> dict[str, Any]:
    return {"commit": "c", "processor": processor, "times_as_fast_as_the_loop": ratios}


def test_a_ratio_a_fifth_below_the_median_of_the_last_runs_has_fallen() -> None:
    before = [run(mlp=2.0, cnn=1.0), run(mlp=1.0, cnn=1.0), run(mlp=2.0)]
    assert history.fell([*before, run(mlp=1.59, cnn=0.81)]) == [
        "mlp: 1.59 times as fast as the loop, 2.00 in the last 3 runs"
    ]
    assert history.fell([*before, run(mlp=1.61, cnn=0.79)]) == [
        "cnn: 0.79 times as fast as the loop, 1.00 in the last 2 runs"
    ]


def test_other_processors_and_new_jobs_are_not_compared() -> None:
    assert history.fell([run("there", mlp=9.0), run(mlp=1.0)]) == []
    assert history.fell([run(mlp=1.0), run(cnn=0.1)]) == []


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    jobs = [{"job": "mlp:10", "ways": {"loop": {"times": 1.0}, "fused": {"times": 1.75321}}}]
    made = history.entry(jobs, 7)
    history.append(made, tmp_path / "h.jsonl")
    history.append(made, tmp_path / "h.jsonl")
    assert history.read(tmp_path / "h.jsonl") == [made, made]
    assert made["times_as_fast_as_the_loop"] == {"mlp:10 fused": 1.753}


def test_the_picture_has_a_panel_a_job_and_a_dot_a_run() -> None:
    svg = ET.fromstring(history.picture([run("there", mlp=9.0), run(mlp=1.0, cnn=2.0), run(mlp=1.5, cnn=2.0)]))
    assert len(svg.findall(".//{*}polyline")) == 2
    assert len(svg.findall(".//{*}circle")) == 4
