"""Texts of categories and of names."""

from __future__ import annotations

import numpy as np
import pytest

from medley.rows.coding import are_trimmed

TEXTS = ["Bern", "B", "sites 1", " a", "a ", "", "a\u00a0", "\u3000a", "É", "b\t", "\x1ca", "\u200bz"]


@pytest.mark.parametrize("dtype", ["<U8", ">U8"])
@pytest.mark.parametrize("step", [1, 2])
def test_an_array_of_texts_has_no_space_at_an_end_as_python_says(dtype: str, step: int) -> None:
    for text in TEXTS:
        column = np.array(["Chur", "x", text, "x", "a b"], dtype)[::step]
        assert are_trimmed(column) == (text != "" and text == text.strip()), text
    assert not are_trimmed(np.array([], dtype))
