"""The one place that writes whose a value is, and where it stands."""

from __future__ import annotations

import numpy as np

from medley.contract import Place
from medley.contract.place import name_of, naming

NAMES = ("Bern", "Basel")


def test_a_client_has_its_name_inside_the_context() -> None:
    assert name_of(1) == "client 1"
    with naming(NAMES):
        assert [name_of(i) for i in (1, np.int64(0), 2)] == ["client 'Basel'", "client 'Bern'", "client 2"]
        with naming(None):
            assert str(Place.of(0, "test").at(3, "age")) == "client 'Bern', test row 3, column 'age'"
        with naming({1: "x" * 1000}):
            assert (name_of(0), len(name_of(1))) == ("client 0", 107)
        with naming(()):
            assert name_of(0) == "client 0"
    assert name_of(1) == "client 1"
