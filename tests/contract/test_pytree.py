from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from medley.contract import pytree
from medley.contract.errors import WireError


@dataclass
class Leaf:
    t: Tensor
    name: str = "leaf"


@dataclass
class Root:
    x: Tensor
    by_client: dict[int, Leaf] = field(default_factory=dict)
    tasks: list[tuple[Tensor, float]] = field(default_factory=list)
    maybe: Leaf | None = None
    marks: dict[str, dict[int, list[Tensor]]] = field(default_factory=dict)


def root() -> Root:
    t = torch.arange(4.0, dtype=torch.float64)
    return Root(
        t,
        {3: Leaf(t), 1: Leaf(torch.tensor([True, False]), "b")},
        [(torch.zeros(0, 2), 0.1), (torch.tensor(3, dtype=torch.int64), float("inf"))],
        Leaf(t[1:3]),
        {"a": {0: [t, t], 7: []}},
    )


def through(value: object, *classes: type) -> object:
    store: dict[str, Tensor] = {}
    text = json.dumps(pytree.pack(value, store))
    return pytree.unpack(json.loads(text), store, pytree.dataclasses_in(*classes))


def same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        assert isinstance(b, dict)
        return list(a) == list(b) and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        assert isinstance(b, list | tuple)
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return same(vars(a), vars(b))
    return a == b


def test_a_nested_state_survives_json_and_a_store_of_tensors():
    assert same(root(), through(root(), Root))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
leaves = st.one_of(scalars, st.lists(st.floats(allow_nan=False), max_size=3).map(lambda v: torch.tensor(v).double()))
states = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers(), st.integers())), inner),
    ),
    max_leaves=12,
)


@given(states)
def test_any_tree_survives(state: object):
    assert same(state, through(state))


def test_dicts_that_look_like_our_own_marks_are_data():
    state = {"tensor": "t0", "list": [1], "dataclass": "Leaf", "fields": {}}
    assert same(state, through(state, Leaf))


def test_a_class_that_the_method_does_not_declare_is_not_made():
    store: dict[str, Tensor] = {}
    skeleton = pytree.pack({"evil": Leaf(torch.ones(1))}, store)
    with pytest.raises(WireError, match="damaged or foreign state"):
        pytree.unpack(skeleton, store, {})


def test_fields_of_another_version_are_named():
    with pytest.raises(WireError, match=r"another version of the method saved it, with other fields of Leaf: name$"):
        pytree.unpack({"dataclass": "Leaf", "fields": {"t": None}}, {}, {"Leaf": Leaf})


@pytest.mark.parametrize("skeleton", [{"tensor": "t9"}, {}, {"other": 1}])
def test_a_skeleton_that_is_not_ours_is_refused(skeleton: object):
    with pytest.raises(WireError):
        pytree.unpack(skeleton, {}, {})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"raw", torch.float32, range(3)])
def test_what_a_state_cannot_hold_is_refused(value: object):
    with pytest.raises(WireError, match="state can hold tensors"):
        pytree.pack({"deep": [value]}, {})


def test_views_of_one_tensor_are_stored_apart_and_come_back_apart():
    store: dict[str, Tensor] = {}
    t = torch.zeros(3)
    pytree.pack([t, t, t[:2]], store)
    assert len({v.data_ptr() for v in store.values()}) == 3
    store["t0"].add_(1)
    assert t.tolist() == [0, 0, 0]


def test_a_copy_has_new_containers_and_the_same_tensors():
    a = root()
    b = pytree.copy(a)
    b.by_client[3].name = "changed"
    b.marks["a"][7] = [torch.ones(1)]
    b.x = b.x + 1
    assert same(a, root())
    assert b.by_client[1].t is a.by_client[1].t


def test_tensors_are_named_by_their_place():
    names = [name for name, _ in pytree.tensors(root(), "memory")]
    want = ["x", "by_client[3].t", "by_client[1].t", "tasks[0][0]", "tasks[1][0]", "maybe.t", "marks['a'][0][0]"]
    assert names == [f"memory.{w}" for w in [*want, "marks['a'][0][1]"]]


def test_the_classes_of_a_state_are_found_through_its_hints():
    assert pytree.dataclasses_in(Root) == {"Root": Root, "Leaf": Leaf}


def test_bytes_are_those_of_the_tensors() -> None:
    t = torch.zeros(3, 2, dtype=torch.float64)
    tree = {"a": [t, (t.float(), 1)], "b": None, "c": {"d": t.bool()}}
    assert pytree.nbytes(tree) == 48 + 24 + 6 == sum(u.numel() * u.element_size() for _, u in pytree.tensors(tree))
