"""The script for a GPU goes its whole way here: on the CPU, and on a pretended GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pretended_gpu import PretendedGPU
from support.scripts import BENCHMARKS, loaded

gpu = loaded("gpu.py", BENCHMARKS)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_job_and_way_has_a_line_and_the_numbers_of_the_cpu(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--small", "--repeats", "1", "--clients", "3", "--device", device]
    if device == "cuda":
        with PretendedGPU() as pretended:
            gpu.main(settings)
        assert pretended.uploads
    else:
        gpu.main(settings)
    lines = [cells(line) for line in capsys.readouterr().out.splitlines()[4:]]
    assert [line[:2] for line in lines] == [
        [job, way] for job in ("CNN", "ResNet", "LSTM") for way in ("loop by hand", "seq", "fused", "stacked")
    ]
    assert lines[-1][2].startswith("refused: vmap cannot map the network")
    refused = [line for line in lines if line[2].startswith("refused")]
    assert [line[:2] for line in refused] == [["ResNet", "fused"], ["LSTM", "fused"], ["LSTM", "stacked"]]
    for line in (line for line in lines if line not in refused):
        assert float(line[2].split()[0]) > 0
        assert float(line[3]) > 0
        assert line[5] == "" if line[1] == "loop by hand" else float(line[5]) <= gpu.APART


def test_other_numbers_end_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "difference", lambda fed, engine, device: 1e-6)
    with pytest.raises(SystemExit, match=r"CNN, seq: 1\.0e-06 apart from the CPU"):
        gpu.measured(gpu.jobs(small=True)[0], "cpu", 2, 20, 1)


def test_the_page_is_written_from_a_gpu_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="torch finds no GPU here"):
        gpu.main([])
    with pytest.raises(SystemExit, match="of a GPU at full size"):
        gpu.main(["--write", "--device", "cpu"])
    page = tmp_path / "page.md"
    page.write_text(f"before\n{gpu.BEGIN}\nold\n{gpu.END}\nafter\n")
    monkeypatch.setattr(gpu, "PAGE", page)
    monkeypatch.setattr(gpu, "jobs", lambda small: [])
    with PretendedGPU():
        gpu.main(["--write"])
    assert page.read_text().startswith(f"before\n{gpu.BEGIN}\n100 clients with 100 rows, torch")
    assert page.read_text().endswith(f"{gpu.END}\nafter\n")
    assert "old" not in page.read_text()
    assert gpu.BEGIN in BENCHMARKS.parent.joinpath("docs", "benchmarks.md").read_text()
