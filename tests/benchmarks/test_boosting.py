"""The page of trees has the figures of `benchmarks/boosting.json`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = json.loads((ROOT / "benchmarks" / "boosting.json").read_text())


def test_the_page_has_the_lines_of_the_table() -> None:
    lines = runpy.run_path(str(ROOT / "benchmarks" / "boosting.py"))["page"](FIGURES)
    assert len(lines) == 8
    assert {*lines} <= {*(ROOT / "docs" / "trees.md").read_text(encoding="utf-8").splitlines()}


def test_the_page_of_privacy_has_the_figures_by_epsilon() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "boosting.py"))["by_epsilon"](FIGURES["private"])
    assert table in (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    aurocs = [FIGURES["private"][e]["auroc"] for e in ("0.25", "1.0", "4.0", "None")]
    assert 0.7 < aurocs[0] < aurocs[1] < aurocs[2] < aurocs[3]


def test_medley_is_as_near_to_xgboost_as_scikit_learn_or_nearer_or_better() -> None:
    for name, r in FIGURES.items():
        if "scikit-learn" in r:
            apart = abs(r["scikit-learn"] - r["XGBoost"])
            assert r["Medley"] - r["XGBoost"] <= max(0.005 * r["XGBoost"], apart), name


def test_a_column_for_each_category_costs_no_accuracy_on_flights() -> None:
    r = FIGURES["categories"]
    losses = [r[name] for name in ("Medley", "XGBoost, one against others", "XGBoost, two sets")]
    page = (ROOT / "docs" / "trees.md").read_text(encoding="utf-8")
    assert all(f"{loss:.4f}" in page for loss in losses)
    assert losses[0] < losses[2]


def test_bins_alone_make_the_difference_on_the_diamonds() -> None:
    r = FIGURES["bins"]
    assert r["Medley"] == pytest.approx(r["XGBoost, Medley's bins"], rel=1e-5)
    assert r["XGBoost"] < r["Medley, finer cells"] < r["Medley"]


def test_trees_take_at_most_fifteen_times_the_seconds_of_xgboost() -> None:
    assert FIGURES["time"]["ratio"] < 15
