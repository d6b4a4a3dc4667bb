"""Rows of several inputs: operations on whole rows give those of each input, and others are refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from medley.contract.errors import BadData, Unsupported
from medley.rows.fields import Fields, applied, described, fields, inputs_of, layout, several
from medley.rows.lazy import Lazy, Mapped
from medley.storage.identity import fingerprint

IDS, REALS = torch.arange(30).reshape(10, 3), torch.arange(20.0).reshape(10, 2)


def both() -> Fields:
    return Fields([IDS, REALS], ["ids", "reals"])


@pytest.mark.parametrize(
    "rows",
    [slice(2, 7), slice(None, None, 3), torch.tensor([4, 4, 0]), torch.arange(10) % 2 == 0, slice(3, 3)],
)
def test_rows_are_those_of_each_input(rows: Any) -> None:
    found = both()[rows]
    assert isinstance(found, Fields)
    assert found.shape == (len(IDS[rows]), 5)
    assert torch.equal(found.parts[0], IDS[rows])
    assert torch.equal(found.parts[1], REALS[rows])


@pytest.mark.shapes
def test_joins_splits_casts_and_copies_keep_every_input() -> None:
    X = both()
    again = torch.cat([*torch.split(X, 4)])
    assert [len(part) for part in torch.split(X, 4)] == [4, 4, 2]
    for other in (again, pickle.loads(pickle.dumps(X)), X.clone(), X.detach()):
        assert isinstance(other, Fields)
        assert other.names == ("ids", "reals")
        assert all(torch.equal(a, b) for a, b in zip(other.parts, X.parts, strict=True))
    cast = X.to(dtype=torch.float64)
    assert isinstance(cast, Fields)
    assert [t.dtype for t in cast.parts] == [torch.int64, torch.float64]  # token ids stay
    mixed = Fields([REALS, REALS.double()])
    assert [t.dtype for t in mixed.parts] == [torch.float64, torch.float64]
    assert X[0].numel() == 5


def test_other_operations_and_other_inputs_are_refused() -> None:
    for f in (lambda X: X + 1, lambda X: X.flatten(), lambda X: X @ torch.ones(5), lambda X: X[:, :2]):
        with pytest.raises(Unsupported, match="rows of several inputs"):
            f(both())
    with pytest.raises(BadData, match="10 rows of 'a', 4 rows of 'b'"):
        Fields([IDS, REALS[:4]], ["a", "b"])
    with pytest.raises(BadData, match="must have the same ones"):
        torch.cat([both(), Fields([IDS, REALS])])


@pytest.mark.shapes
def test_dicts_and_tuples_of_arrays_are_several_inputs_and_tables_are_not() -> None:
    plain = lambda v, name: torch.as_tensor(np.asarray(v))
    for value in ({"ids": IDS, "reals": REALS.numpy()}, (IDS, REALS), (IDS, REALS[:, 0])):
        found = fields(value, plain)
        assert found is not None
        assert len(found.parts) == 2
    for value in (IDS, [IDS, REALS], (1.0, 2.0), (IDS[:, 0], IDS[:, 1]), [[1, 2], [3, 4]], {}):
        assert fields(value, plain) is None
    assert layout(both()) == (("ids", (3,)), ("reals", (2,)))
    assert described(Fields([IDS, REALS[:, 0]])) == "input 0 [3], input 1 []"
    assert isinstance(several({"ids": IDS}), Fields)
    assert several(IDS) is IDS


def test_a_module_takes_inputs_by_name_by_place_or_as_one() -> None:
    class Named(nn.Module):
        def forward(self, reals: Tensor, ids: Tensor) -> Tensor:
            return reals.sum(1) + ids.sum(1)

    class Whole(nn.Module):
        def forward(self, row: Any) -> Tensor:
            reals, ids = (row["reals"], row["ids"]) if isinstance(row, dict) else (row[1], row[0])
            return Named()(reals, ids)

    want = REALS.sum(1) + IDS.sum(1)
    for module, X in (
        (Named(), both()),
        (Named(), Fields([REALS, IDS])),
        (Whole(), both()),
        (Whole(), Fields([IDS, REALS])),
    ):
        assert torch.equal(applied(module, inputs_of(X)), want)


def test_lazy_inputs_are_read_by_batch_and_fingerprints_tell_names_and_content() -> None:
    lazy = Fields([IDS, Lazy([Mapped(REALS.numpy())])], ["ids", "reals"])
    batch = inputs_of(lazy[2:4])
    assert isinstance(batch, dict)
    assert type(batch["reals"]) is Tensor
    assert torch.equal(batch["reals"], REALS[2:4])
    assert fingerprint(lazy) == fingerprint(both())
    other = [Fields([IDS, REALS]), Fields([IDS, REALS + 1], ["ids", "reals"]), Fields([IDS, REALS], ["ids", "x"])]
    assert len({fingerprint(X) for X in [both(), *other]}) == 4
