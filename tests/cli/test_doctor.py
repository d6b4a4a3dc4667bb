"""Doctor prints what is here, and ends with 2 where something does not fit."""

from __future__ import annotations

import pytest

from cli.test_cli import medley


def test_it_names_versions_extras_and_data_sets(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDLEY_DATA", str(tmp_path))
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "a9a").touch()
    result = medley("doctor")
    assert result.exit_code == 0, result.output
    for word in ("python", "torch", "cores", "cpu", "images", "pillow", "a9a", tmp_path.name, "nothing is wrong"):
        assert word in result.stdout
    assert "w8a" not in result.stdout


@pytest.mark.slow
def test_a_data_folder_that_is_none_is_a_problem_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDLEY_DATA", str(tmp_path / "gone"))
    result = medley("doctor")
    assert result.exit_code == 2
    assert "which is not a folder: set it to" in result.stderr
    assert "nothing is wrong" not in result.stdout
