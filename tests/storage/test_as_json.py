from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from medley.storage.as_json import plain


@dataclass
class Setting:
    a: int = 1
    hidden: int = field(default=2, repr=False)


def function() -> None: ...


class Opaque:
    pass


def test_plain_values():
    assert plain(Setting()) == {"Setting": {"a": 1}}
    assert plain(torch.arange(3)) == [0, 1, 2]
    assert plain(torch.zeros(5, 20)) == "tensor[5, 20]"
    assert plain(np.zeros(2)) == [0.0, 0.0]
    assert plain(np.float32(0.5)) == 0.5
    assert plain({3, 1}) == [1, 3]
    assert plain(function) == "function"
    assert plain(Path("x")) == "x"


def test_plain_values_are_the_same_in_the_next_process():
    # An address in a record would make every resume a foreign one.
    assert plain(Opaque()) == plain(Opaque())
    assert "0x" not in plain(Opaque())
