from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from medley import datasets
from medley.contract.errors import BadData, RecipeError
from medley.datasets.tokens import Vocabulary, split

LINES = ["good good day", "a good, LONG day", "bad #day @you don't"]


def test_lines_are_split_into_words_and_marks() -> None:
    assert split("It's GOOD, isn't it? #fun @you :)") == ["it's", "good", ",", "isn't", "it", "?", "#fun", "@you"]


def test_the_commonest_words_have_ids_and_ties_go_by_the_alphabet() -> None:
    words = Vocabulary.of(LINES, 6)
    assert words.words == ("good", "day", "#day", ",")
    assert len(words) == 6
    assert words.encode(["day good nobody", "", "good good good good good"], 4).tolist() == [
        [3, 2, 1, 0],
        [1, 0, 0, 0],
        [2, 2, 2, 2],
    ]
    assert len(Vocabulary.of(LINES, 100)) == 2 + 9


def test_sentiment140_knows_the_words_of_training_rows_only(tmp_path: Path) -> None:
    def packed(lines: list[str]) -> np.ndarray:
        return np.frombuffer(lzma.compress("\n".join(lines).encode()), np.uint8)

    np.savez(
        tmp_path / "sentiment140_subset.npz",
        y=np.array([1, 1, 0]),
        user=np.array([7, 7, 8]),
        seconds_since_20090401=np.arange(3),
        text_xz=packed(LINES),
        y_test=np.array([0, 2, 1]),
        text_test_xz=packed(["bad unseen", "neutral", "good day unseen"]),
    )
    d = datasets.sentiment140_tokens(vocabulary=8, length=5, folder=tmp_path)
    ids = Vocabulary.of(LINES, 8).ids
    assert d.X.dtype == d.y.dtype
    assert d.X.tolist()[0] == [ids["good"], ids["good"], ids["day"], 0, 0]
    assert d.X_test is not None
    assert d.y_test is not None
    assert d.X_test.tolist() == [[ids.get("bad", 1), 1, 0, 0, 0], [ids["good"], ids["day"], 1, 0, 0]]
    assert (d.y.tolist(), d.y_test.tolist()) == ([1, 1, 0], [0, 1])
    assert d.keys["user"].tolist() == [7, 7, 8]
    assert int(d.X.max()) <= 7
    with pytest.raises(RecipeError, match="vocabulary=2"):
        datasets.sentiment140_tokens(vocabulary=2, folder=tmp_path)
    with pytest.raises(RecipeError, match="length=0"):
        datasets.sentiment140_tokens(length=0, folder=tmp_path)


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDLEY_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadData, match=r"sentiment140_tokens\(\): sentiment140_subset\.npz is in none of"):
        datasets.sentiment140_tokens(folder=tmp_path)
