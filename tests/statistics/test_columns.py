"""The columns of a site, each read once: nothing is stale, unused rows refuse nothing, and quick checks are exact."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest

from medley.contract import BadData
from medley.statistics import Rules, Study, Withheld
from medley.statistics.cells import Columns, missing, numbers, table, texts
from medley.statistics.site import DOMINANT, FEW_DOMINANT, Site, distinct, unique_sets

OPEN = Rules(rows=1, events=1, parameters=1.0, pooled=True)


def rows(seed: int = 0, n: int = 60) -> Any:
    g = np.random.default_rng(seed)
    x = g.normal(size=n)
    return pd.DataFrame({"x": x, "ward": g.choice(["a", "b"], n), "y": 2 * x + g.normal(size=n)})


def slope(study: Study, where: str = "") -> float:
    return float(study.glm("y ~ x + C(ward)", where=where).params["x"])


class Counted(dict[str, Any]):
    """A frame that counts how often each column is read."""

    def __init__(self, frame: Any) -> None:
        super().__init__({name: frame[name] for name in frame})
        self.reads = list[str]()

    def __getitem__(self, name: str) -> Any:
        self.reads.append(name)
        return super().__getitem__(name)


def test_columns_are_read_once_for_all_rows_and_for_some() -> None:
    frame = Counted(rows())
    columns = Columns(frame)
    some = columns.at(np.arange(60) < 20)
    for _ in range(2):
        assert (numbers(some, "x", "Bern") == numbers(columns, "x", "Bern")[:20]).all()
        assert (texts(some, "ward", "Bern") == texts(columns, "ward", "Bern")[:20]).all()
        assert not missing(columns, "x").any()
    assert frame.reads == ["x", "ward"]


def test_what_was_read_cannot_be_written_and_is_not_sent() -> None:
    columns = Columns(rows())
    with pytest.raises(ValueError, match="read-only"):
        numbers(columns, "x", "Bern")[0] = 1.0
    assert not pickle.loads(pickle.dumps(columns)).cache


def test_a_frame_that_changes_between_two_studies_is_read_anew() -> None:
    data = {"Bern": rows(0), "Chur": rows(1)}
    study = Study(data, rules=OPEN)
    before = slope(study)
    for frame in data.values():
        frame["x"] *= 2
    assert slope(study) == before  # it has the rows that it was given
    assert slope(Study(data, rules=OPEN)) == pytest.approx(before / 2)


def test_a_site_with_another_frame_reads_that() -> None:
    study = Study({"Bern": rows(0), "Chur": rows(1)}, rules=OPEN)
    before = slope(study)
    for site in study.sites.values():
        site.frame = site.frame.assign(x=2 * site.frame["x"])
    assert slope(study, "x > -1e9") == pytest.approx(before / 2)


def test_a_row_that_is_not_used_refuses_nothing() -> None:
    data = {"Bern": rows(0), "Chur": rows(1)}
    data["Chur"]["old"] = 1 * (np.arange(60) < 20)
    data["Bern"]["old"] = 1 * (np.arange(60) < 20)
    right = slope(Study(data, rules=OPEN), "old == 1")
    data["Chur"].loc[30, "x"] = np.inf
    study = Study(data, rules=OPEN)
    with pytest.raises(BadData, match="Chur, row 30, column 'x'"):
        slope(study)
    assert slope(study, "old == 1") == right


def test_quick_checks_decide_as_complete_ones() -> None:
    site = Site.of("Bern", rows(), Rules(), (), None)
    level = np.full(1000, 0.1)  # its mean is rounded, and its variance 15 times too large
    level[:2] += np.spacing(0.1) * np.array([8, -3])
    assert raises(site.dominated, level, "x")
    g = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        n = int(g.integers(1, 40))
        X = g.normal(size=(n, 2)) * (g.random((n, 2)) < g.choice([0.2, 1.0])) * 10.0 ** g.integers(-1, 2, (n, 1))
        w = g.random(n) ** g.choice([1, 8]) * (g.random(n) < 0.9)
        few = np.sort(w[:, None] * X**2, axis=0)[-4:]
        total = (w[:, None] * X**2).sum(0)
        wrong = (few.max(0) > DOMINANT * total).any() or (few.sum(0) > FEW_DOMINANT * total).any()
        wrong = bool(w.any() and (wrong or w.sum() ** 2 < (5 - 1e-9) * (w @ w)))
        assert raises(site.effective, w, X) == wrong
        squares = np.sort((X[:, 0] - np.median(X[:, 0])) ** 2)[::-1]
        most = (squares[0] > DOMINANT * squares.sum()) or (squares[:4].sum() > FEW_DOMINANT * squares.sum())
        assert raises(site.dominated, X[:, 0], "x") == bool(most and len(np.unique(X[:, 0])) > 2)
        decides = (np.linalg.svd(X)[0][:, :2] ** 2).sum(1).max() > 1 - 1e-9 if np.linalg.matrix_rank(X) == 2 else None
        assert decides is None or raises(site._refuse_single_row, X) == bool(decides)
        values, all_values = distinct(np.rint(X[:, 0]), 3), np.unique(np.rint(X[:, 0]))
        assert (values.tolist() == all_values.tolist()) if len(all_values) <= 3 else len(values) > 3
        refused += wrong
    assert 30 < refused < 270


def raises(check: Any, *args: Any) -> bool:
    try:
        check(*args)
    except Withheld:
        return True
    return False


def test_a_column_of_empty_texts_is_one_of_missing_numbers() -> None:
    frame = table({"x": ["", " ", ""], "y": ["", "a", " "]}, "Bern")
    assert [str(frame[c].dtype) for c in "xy"] == ["float64", "object"]


def test_sets_are_each_once_and_not_empty() -> None:
    one, none = np.array([True, False]), np.zeros(2, bool)
    assert [s.tolist() for s in unique_sets([one, none, ~one, one.copy()])] == [[True, False], [False, True]]
