"""Client stacks: many clients in one call of a method marked ``@on_client(vectorized=True)``.

Vectors of k clients are stacked, [k, d], in ascending id. Each number of a client becomes a column [k, 1] in the run's
dtype. So the same code serves one client or many, as long as the method does not branch on a client's numbers or call
``float`` on them.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ..contract import Client, M, MedleyError, Objective, Pace, Rows, Vec, column, entries


class ClientStack(Client[M]):
    """Several clients in one call.

    Args:
        members: the clients, ascending by id
        like: a tensor of the run's dtype and device

    ``p`` and the numbers of ``pace`` are columns [k, 1]; ``memory`` and a client's own message are stacked.
    `id`, `rng` and rows belong to one client; a stack has none.
    """

    def __init__(self, members: Sequence[Client[M]], like: Vec) -> None:
        self._members = tuple(members)
        self.like = like
        self.pace = cast(Pace, StackedPace([me.pace for me in members], like))
        self.problem = cast(Objective, StackedObjective([me.problem for me in members]))
        self.engine = members[0].engine
        self.ran = set()

    @cached_property
    def p(self) -> Any:  # type: ignore[override]
        """Each client's share p_i, a column [k, 1]."""
        return self.like.new_tensor([me.p for me in self._members])[:, None]

    @property
    def members(self) -> tuple[Client[M], ...]:
        """The clients, ascending by id."""
        return self._members

    def at(self, phase: str = "", epochs: int | None = None) -> ClientStack[M]:
        """The stack for one part of its work; see `Client.at`."""
        part = ClientStack([me.at(phase, epochs) for me in self._members], self.like)
        part.ran = self.ran
        return part

    @property
    def first_batch(self) -> Any:
        """Each client's first mini-batch, for ``problem.grad``."""
        return [me.first_batch for me in self._members]


class StackedPace:
    """The paces of a stack: each number is a column [k, 1]; other values must agree."""

    def __init__(self, paces: Sequence[Pace], like: Vec) -> None:
        self.paces = paces
        self.like = like

    def __getattr__(self, name: str) -> Any:
        values = [getattr(pace, name) for pace in self.paces]
        if all(isinstance(v, int | float) for v in values):
            return self.like.new_tensor(values)[:, None]
        if any(v != values[0] for v in values):
            raise MedleyError(
                f"pace.{name} differs between the clients of a stack and is not a number; leave vectorized=True out"
            )
        return values[0]


class StackedObjective:
    """The objectives f_i of a stack, evaluated one after the other."""

    def __init__(self, each: Sequence[Objective]) -> None:
        self.each = each
        self.d = each[0].d

    def grad(self, x: Vec, rows: Sequence[Rows] | None = None) -> Vec:
        """∇f_i(x_i) [k, d] of x [d] or [k, d], on all rows or on each client's ``rows``."""
        of = rows or [None] * len(self.each)
        points = x.expand(len(self.each), -1)
        return torch.stack([f.grad(point, r) for f, point, r in zip(self.each, points, of, strict=True)])


@cache
def numbers(kind: type) -> frozenset[str]:
    """The fields of a message or memory that are declared as numbers."""

    def number(hint: Any) -> bool:
        return hint in (int, float, bool) or any(map(number, typing.get_args(hint)))

    return frozenset(name for name, hint in typing.get_type_hints(kind).items() if number(hint))


def form(state: Any) -> Any:
    """A key that is equal for states that can be stacked; None for a state that cannot."""
    kinds: list[tuple[Any, ...]] = []
    for name, v in vars(state).items():
        if isinstance(v, Tensor):
            kinds.append((name, v.dtype, v.shape))
        elif isinstance(v, bool | str | None):
            kinds.append((name, v))
        elif isinstance(v, int | float):
            kinds.append((name, type(v)))
        else:
            return None
    return type(state), *kinds


def stack(states: Sequence[Any], like: Vec) -> Any:
    """Combine states of the same form: stack tensors, and put numbers into a column [k, 1], whole numbers in int64."""
    first = states[0]
    fields: dict[str, Any] = {}
    for name, v in vars(first).items():
        values = [getattr(state, name) for state in states]
        if isinstance(v, Tensor):
            fields[name] = torch.stack(values)
        elif isinstance(v, bool | str | None):
            fields[name] = v
        else:
            fields[name] = column(values, like, torch.int64 if isinstance(v, int) else like.dtype)
    return dataclasses.replace(first, **fields)


def rows(kind: type, fields: Mapping[str, Any], k: int, where: str, copy: bool = True) -> Iterator[dict[str, Any]]:
    """Inverse of `stack`: each client's fields. A vector [d] or a plain number is the same for every client.

    Args:
        copy: True (default) gives each client its own tensors, False views of the stacked ones

    Raises MedleyError for other shapes.
    """
    number_fields = {
        n: v for n, v in fields.items() if isinstance(v, Tensor) and v.shape == (k, 1) and n in numbers(kind)
    }
    read = dict(zip(number_fields, entries(*number_fields.values()), strict=True)) if number_fields else {}
    columns: dict[str, Sequence[Any]] = {}
    for name, v in fields.items():
        if name in read:
            columns[name] = read[name]
        elif not isinstance(v, Tensor) or v.ndim == 1:
            columns[name] = [v] * k
        elif v.ndim > 1 and len(v) == k:
            columns[name] = [r.clone() if copy else r for r in v.unbind()]
        else:
            raise MedleyError(
                f"{where}: {name!r} of a stack of {k} clients has shape {list(v.shape)}; vectors are [{k}, d], "
                f"numbers [{k}, 1]"
            )
    for i in range(k):
        yield {name: column[i] for name, column in columns.items()}


def alike(states: Mapping[int, tuple[Any, ...]]) -> Iterator[tuple[int, ...]]:
    """Ids in order, split where the states of two neighbours cannot be stacked."""
    ids: list[int] = []
    last: Any = None
    for i, of_client in states.items():
        forms = [form(state) for state in of_client]
        if ids and (None in forms or forms != last):
            yield tuple(ids)
            ids = []
        ids.append(i)
        last = forms
    if ids:
        yield tuple(ids)
