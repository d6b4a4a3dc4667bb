"""A notebook, run by Jupyter's own kernel: the bar, short texts of objects and their tables in HTML."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed; make test-extras has it")

CELLS = [
    """
import medley as md
from torch import nn
data = md.datasets.digits()
fed = md.Federation(md.problems.Network(nn.Linear(64, 10)), data=data, partition=md.partitions.IID(clients=20))
fed
""",
    "result = md.run(md.FedAvg(), fed, rounds=30)\nresult",
    "board = md.compare([md.FedAvg(), md.SCAFFOLD()], fed, rounds=3, seeds=2)\nboard",
    "result.frame().tail(1)",
    "quiet = md.run(md.FedAvg(), fed, rounds=2, progress=False)",
    "md.run(md.SHED(), fed, rounds=2)",
    """
import numpy as np, pandas as pd
drawn = np.random.default_rng(0)
rows = pd.DataFrame({"age": drawn.normal(60, 9, 80), "dose": drawn.normal(size=80), "ill": drawn.integers(0, 2, 80)})
study = md.statistics.Study({"Bern": rows[:40], "Chur": rows[40:]})
study.glm("age ~ dose")
""",
    "study.kaplan_meier('age', 'ill', 10.0, 100.0)",
]

DRAWN: list[str] = []
"""The frames of bars."""


@pytest.fixture(scope="module", name="cells")
def executed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    nbformat: Any = pytest.importorskip("nbformat")
    folder: Path = tmp_path_factory.mktemp("notebook")
    kernel = folder / "kernels" / "here"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "here", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))

        class Watching(nbclient.NotebookClient):  # type: ignore[misc]
            def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
                DRAWN.append(str(msg["content"].get("data", {}).get("text/plain", "")))
                return super().process_message(msg, cell, cell_index)

        client = Watching(notebook, kernel_name="here", timeout=120, allow_errors=True)
        client.execute()
    return list(notebook.cells)


def text_of(cell: Any, kind: str = "text/plain") -> str:
    return "".join(out["data"].get(kind, "") for out in cell.outputs if "data" in out)


def stream_of(cell: Any) -> str:
    return "".join(out["text"] for out in cell.outputs if out["output_type"] == "stream")


@pytest.mark.slow
def test_objects_are_shown_as_short_texts_and_tables(cells: list[Any]) -> None:
    for k, name in enumerate(("Federation", "Result")):
        assert text_of(cells[k]).startswith(f"{name}(")
        assert len(text_of(cells[k])) < 600
        assert "<table" in text_of(cells[k], "text/html")
    assert "<table" in text_of(cells[2], "text/html")
    assert "loss" in text_of(cells[3])


@pytest.mark.slow
def test_a_bar_is_drawn_while_a_run_goes_on_and_not_kept(cells: list[Any]) -> None:
    assert any("━" in text for text in DRAWN)
    for cell in cells[1:3]:
        assert stream_of(cell) == ""
        assert "━" not in json.dumps(cell, ensure_ascii=False)
    assert stream_of(cells[4]) == ""


@pytest.mark.slow
def test_results_of_a_study_are_tables(cells: list[Any]) -> None:
    fit, curves = (text_of(cell, "text/html") for cell in cells[6:8])
    assert "<table" in fit
    assert "dose" in fit
    assert curves.startswith("<pre>")


@pytest.mark.slow
def test_a_refusal_ends_with_its_sentence(cells: list[Any]) -> None:
    (error,) = [out for out in cells[5].outputs if out["output_type"] == "error"]
    assert error["ename"] == "Unsupported"
    assert error["evalue"].startswith("SHED needs a convex problem")
