"""Tests here compare with other programs to many digits, so that rules are exact unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from medley.statistics import Rules

AS_THEY_ARE: Any = Rules.__init__.__defaults__
EXACT = (*AS_THEY_ARE[:-1], True)

Rules.__init__.__defaults__ = EXACT  # of rules that modules here make


def pytest_collection_finish() -> None:
    """Other tests have the defaults as they are."""
    Rules.__init__.__defaults__ = AS_THEY_ARE


@pytest.fixture(autouse=True)
def exact(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``Rules()`` with exact=True, but for tests marked `rounded`; a test in which that has changed says so."""
    rounded = "rounded" in request.keywords
    if not rounded:
        monkeypatch.setattr(Rules.__init__, "__defaults__", EXACT)
    yield
    assert Rules().exact is not rounded
