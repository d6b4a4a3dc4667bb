"""Arrays that torch would change or misread are refused with client, row and column; others are read as they are."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.contract import Place
from medley.rows.tensors import as_tensor

X = np.random.default_rng(0).normal(size=(8, 3))
Y = np.array([0, 1] * 4)


def as_client(x: Any, y: Any = Y) -> md.Federation:
    return md.Federation(md.problems.Softmax(mu=1e-3), clients=[(X, Y), (x, y)])


def some(dtype: Any, value: Any, row: int = 2, column: int = 1) -> np.ndarray:
    array = np.zeros((8, 3), dtype)
    array[row, column] = value
    return array


@pytest.mark.parametrize(
    ("rows", "place", "words"),
    [
        (some(complex, 3 + 1j), (2, 1), "is complex"),
        (torch.tensor(some(complex, 1j)), (2, 1), "is complex"),
        (np.ma.masked_values(some(float, 7), 7), (2, 1), "is masked"),
        (some(np.uint64, 2**63), (2, 1), "above the largest int64"),
        (some(object, "a"), (2, 1), "is text"),
        (np.zeros((8, 3), object), (0, 0), "array of objects"),
        (np.zeros((8, 3), "M8[D]"), (0, 0), "is a date"),
        (np.zeros((8, 3), "m8[s]"), (0, 0), "is a duration"),
        (X.astype(str), (0, 0), "is a number as text"),
        (X.astype("S8"), (0, 0), "is text in bytes"),
        (np.zeros((8, 3), [("a", float)]), (0, 0), "named fields"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_numbers_that_are_none_name_client_row_and_column(rows: Any, place: tuple[int, int], words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch would say that it drops imaginary parts
        with pytest.raises(md.BadData, match=rf"client 1, row {place[0]}, column {place[1]}: .*{words}") as e:
            as_client(rows)
    assert (e.value.client, e.value.row, e.value.column) == (1, *place)


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("Federation.test=.*, row 0, column 0", {"test": (X + 1j, Y)}),
        ("client 0, row 0, column 'weights'", {"clients": [(X, Y, np.ones(8) + 1j)]}),
    ],
)
def test_test_rows_and_weights_are_looked_at_too(what: str, given: dict[str, Any]) -> None:
    with pytest.raises(md.BadData, match=f"{what}.*is complex"):
        md.Federation(md.problems.Softmax(), **{"clients": [(X, Y)], **given})


@pytest.mark.parametrize(
    "same",
    [
        X.astype(">f8"),
        X.astype(np.longdouble),
        np.ma.array(X),
        np.asfortranarray(X),
        torch.tensor(X),
        X.tolist(),
        X[::-1][::-1],
    ],
    ids=["big-endian", "long", "nothing masked", "columns first", "tensor", "lists", "reversed twice"],
)
def test_the_same_rows_in_another_form_are_the_same_run(same: Any) -> None:
    want = md.run(md.FedAvg(), as_client(X), 2)
    assert torch.equal(md.run(md.FedAvg(), as_client(same, Y.astype(object)), 2).x, want.x)


@pytest.mark.parametrize("n", [1, 2])
def test_rows_in_reverse(n: int) -> None:
    assert as_tensor(X[:n][::-1], "X").tolist() == X[:n][::-1].tolist()
    r = md.run(md.FedAvg(), as_client(X[:n][::-1], Y[:n][::-1]), 2)
    assert torch.equal(r.x, md.run(md.FedAvg(), as_client(X[:n][::-1].copy(), Y[:n][::-1].copy()), 2).x)


@pytest.mark.parametrize(
    ("t", "words"),
    [
        (torch.zeros(8, 3, device="meta"), "has no values"),
        (torch.zeros(8, 3).to_sparse(), "is a sparse or quantised tensor"),
        (torch.zeros(8, 3, dtype=torch.complex64), "is complex"),
    ],
)
def test_tensors_without_plain_numbers(t: torch.Tensor, words: str) -> None:
    with pytest.raises(md.BadData, match=words):
        as_tensor(t, Place("rows"))
    if not t.is_complex():  # the tests' check of annotations comes first
        with pytest.raises(md.BadData, match=words):
            md.datasets.Dataset(t, torch.zeros(8, dtype=torch.int64), classes=2)


def test_bfloat16_rows_run() -> None:
    r = md.run(md.FedAvg(), as_client(torch.tensor(X).bfloat16()), 2)
    assert r.status.ok


@pytest.mark.parametrize("method", [md.ACE(), md.FedAvg(), md.Newton()], ids=lambda m: m.name)
def test_a_data_set_whose_memory_lies_in_another_order_is_the_same_run(method: Any) -> None:
    weights = torch.tensor([0.25, 1.0] * 4)

    def run(x: torch.Tensor) -> md.Result:
        data = md.datasets.Dataset(x, torch.arange(8.0), weights=weights)
        fed = md.Federation(md.problems.LeastSquares(mu=1e-2), data=data, partition=md.partitions.IID(1))
        return md.run(method, fed, 3)

    x = torch.tensor(X)
    assert run(x.T.contiguous().T).digest == run(x).digest
    assert run(x.repeat_interleave(2, 0)[::2]).digest == run(x).digest


def test_labels_beyond_int64_are_named_with_their_row():
    with pytest.raises(md.BadData, match="row 1, column 'y': 1000000000000000000000000000000 is beyond int64") as told:
        md.datasets.Dataset(np.zeros((2, 3)), [1, 10**30], classes=2)
    assert told.value.row == 1


@pytest.mark.parametrize(
    "X",
    [
        [[1, 2, 3], [4, 5]],
        [torch.ones(3), torch.ones(2)],
        np.array([np.arange(3), np.arange(2)], object),
    ],
)
def test_rows_of_unequal_length_are_named_with_the_remedy(X: Any) -> None:
    said = r"^client 0: X cannot be made an array of rows: row 0 has 3 entries and row 1 has 2; pad .*datasets.tokens"
    with pytest.raises(md.BadData, match=said) as e:
        md.Federation(md.problems.Softmax(), clients=[(X, [0, 1])])
    assert e.value.client == 0


def test_one_feature_as_a_vector_is_told_of_its_column() -> None:
    x = np.arange(4.0)
    with pytest.raises(md.BadData, match=r"client 0: X is \[4\] and y is \[4\]; .*, so X\[:, None\] for one feature"):
        md.Federation(md.problems.Softmax(), clients=[(x, [0, 1] * 2)])
    with pytest.raises(md.BadData, match=r"X\[:, None\] for one feature"):
        md.datasets.Dataset(x, [0, 1] * 2)
