"""Doctor prints what is here, and ends with 2 where something does not fit."""

from __future__ import annotations

import pytest

from cli.test_cli import medley


def test_it_names_versions_extras_and_data_sets(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDLEY_DATA", str(tmp_path))
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "a9a").touch()
    got = medley("doctor")
    assert got.exit_code == 0, got.output
    for word in ("python", "torch", "cores", "cpu", "images", "pillow", "a9a", tmp_path.name, "nothing is wrong"):
        assert word in got.stdout
    assert "w8a" not in got.stdout


@pytest.mark.slow
def test_a_data_folder_that_is_none_is_a_problem_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDLEY_DATA", str(tmp_path / "gone"))
    got = medley("doctor")
    assert got.exit_code == 2
    assert "which is not a folder: set it to" in got.stderr
    assert "nothing is wrong" not in got.stdout
