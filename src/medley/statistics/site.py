"""A site: its rows, its rules and its register; and the message types and the base that all analyses share."""

from __future__ import annotations

import itertools
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ..contract import Algorithm, Client, Cohort, Message, RecipeError, Vec
from .formulas import check_columns, chosen, complete, in_sequence, is_numeric, numbers, table, texts
from .levels import sketched, union
from .rules import Register, Rules, Withheld

FEW = 5
"""Distinct values up to which a column's sums tell how many rows have each."""

DOMINANT = 0.9
"""The share of a column's squared deviations that one row may have."""


@dataclass
class Site:
    """One site's rows, as its client reads them: in the place of an objective.

    Attributes:
        name: of the site, for messages
        frame: its rows
        rules: its rules of what may leave
        register: what has left
        dropped: rows that the study leaves out at each site, since a column of its ``complete`` is missing
    """

    name: str
    frame: Any
    rules: Rules
    register: Register
    dropped: int = 0
    n: int = 0
    d: int = 1
    work: float = 0.0
    own: bool = False
    """Whether the frame has a column "site" of its own."""
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)
    """What the last analysis prepared, by its settings."""

    @classmethod
    def of(cls, name: str, data: Any, rules: Rules, needs: Sequence[str], register: Any) -> Site:
        """The site of a frame.

        Args:
            needs: columns without which a row is left out of the study
            register: the file of what has left, or None
        """
        frame = table(data, name)
        check_columns(frame, needs, name)
        there = complete(frame, needs) if needs else np.ones(len(frame), bool)
        own, dropped = "site" in frame.columns, int((~there).sum())
        frame = frame[there].reset_index(drop=True)
        if not own:
            frame = frame.assign(site=name)
        return cls(name, frame, rules, Register(len(frame), register), dropped, len(frame), own=own)

    def rows(self, columns: Sequence[str], where: str) -> tuple[np.ndarray, int]:
        """The rows [n] of a condition in which no column is missing, and the number of those with a missing one.

        Raises Withheld for fewer rows than the site's least number, and for a condition that picks few rows out of many.
        """
        check_columns(self.frame, columns, self.name)
        picked = chosen(self.frame, where, self.name) if where else np.ones(self.n, bool)
        self.admit("", [np.ones(self.n, bool), picked], f"where={where!r}" if where else "its rows")
        used = picked & complete(self.frame, columns) if columns else picked
        self.least(int(used.sum()), f"{', '.join(columns)} without missing values")
        return used, int(picked.sum() - used.sum())

    def least(self, count: int, what: str, kind: str = "rows") -> None:
        """Raise Withheld for a figure of ``count`` rows, fewer than the least number of this kind."""
        least: int = getattr(self.rules, kind)
        if count < least:
            raise Withheld(
                f"{self.name} withholds: {what} are fewer than {least} {kind}, its least number for a figure; leave the "
                f"site out, study.without({self.name!r}), or widen the condition"
            )

    def admit(self, key: str, sets: Sequence[np.ndarray], what: str, kind: str = "rows") -> None:
        """Record that sums of ``key`` over these rows leave; raise Withheld where fewer rows could be told from them."""
        with self.register.held():
            if not self.register.admits(key, sets, getattr(self.rules, kind)):
                raise Withheld(
                    f"{self.name} withholds: {what}, with what has left before, would tell of fewer than "
                    f"{getattr(self.rules, kind)} {kind}; merge categories, ask for the same rows as before (a study's "
                    f"complete=[...] drops rows with missing values from the start), or study.without({self.name!r})"
                )
            self.register.add(key, sets)

    def may(self, key: str, rows: np.ndarray, kind: str = "rows") -> bool:
        """Whether a sum of ``key`` over these rows may leave; if so, that it does is recorded."""
        with self.register.held():
            there = self.register.admits(key, [rows], getattr(self.rules, kind))
            if there:
                self.register.add(key, [rows])
            return there

    def check_size(self, parameters: int, rows: int, everywhere: int) -> None:
        """Raise Withheld for a fit of too many parameters.

        Args:
            parameters: of the fit, those that are 0 at this site left out
            rows: the rows here
            everywhere: the rows of all sites
        """
        n, share = everywhere if self.rules.pooled else rows, self.rules.parameters
        if parameters > share * n:
            raise Withheld(
                f"{self.name} withholds: {parameters} parameters of {n} rows are more than its share of {share:.3g}; "
                "leave out columns or merge categories"
            )

    def admit_fit(
        self, used: np.ndarray, X: np.ndarray, names: Sequence[str], keys: Iterable[str], event: np.ndarray | None,
        squares: bool = False, beside: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        """Record that sums over the rows of a fit leave; raise Withheld, naming the column, where they may not.

        Args:
            used: its rows [n]
            X: their design matrix
            keys: the columns that are summed
            event: whether each of its rows has the event; None for an outcome without events
            squares: whether squared residuals are summed over pairs of categories
            beside: weights, offsets and exposures of its rows, by name
        """
        found = list[tuple[int, np.ndarray]]()
        self._alone(X)
        names = [*names, *(beside or {})]
        for j, x in enumerate([*X.T, *(beside or {}).values()]):
            values = np.unique(x)
            self._dominated(x, names[j])
            if 1 < len(values) <= FEW:
                for v in values:
                    cell = _within(used, x == v)
                    self._cell(cell, names[j])
                    found.append((j, cell))
        cells = [cell for _, cell in found]
        pairs = [a & b for (i, a), (j, b) in itertools.combinations(found, 2) if i != j]
        tried = set[frozenset[bytes]]()
        for key in keys:
            before = frozenset(self.register.sets.get(key, ()))
            if before not in tried:
                self.admit(key, [used, *cells, *pairs], f"the categories of {_short(names)}")
                tried.add(before)
            else:
                self.register.add(key, [used, *cells, *pairs])
        if event is None:
            return
        for there, said in ((event, "with"), (~event, "without")):
            rows = [s & _within(used, there) for s in [used, *cells, *(pairs if squares else ())]]
            key = f"{next(iter(keys))} {said}"
            self.admit(key, rows, f"rows {said} the event by {_short(names)}", "events")

    def _cell(self, cell: np.ndarray, name: str) -> None:
        if 0 < cell.sum() < self.rules.rows:
            raise Withheld(
                f"{self.name} withholds: a value of {name} has fewer than {self.rules.rows} rows; merge it with another, "
                f"or study.without({self.name!r})"
            )

    def _dominated(self, x: np.ndarray, name: str) -> None:
        squares = (x - np.median(x)) ** 2
        if self.rules.rows > 1 and len(np.unique(x)) > FEW and squares.max() > DOMINANT * squares.sum():
            raise Withheld(
                f"{self.name} withholds: one row has more than {DOMINANT:.0%} of the spread of {name}; take its logarithm, "
                "or leave that row out"
            )

    def _alone(self, X: np.ndarray) -> None:
        """Raise Withheld where a combination of columns is 0 in all rows but one."""
        u, size, _ = np.linalg.svd(X / np.maximum(np.abs(X).max(0), 1e-300), full_matrices=False)
        leverage = (u[:, size > 1e-10 * size[0]] ** 2).sum(1)
        if self.rules.rows > 1 and leverage.max() > 1 - 1e-9:
            raise Withheld(
                f"{self.name} withholds: one row decides a coefficient alone; merge categories, or study.without("
                f"{self.name!r})"
            )

    def effective(self, weights: np.ndarray) -> None:
        """Raise Withheld where weights, chosen from afar, leave the say to fewer rows than the least number."""
        total = float(weights.sum())
        if self.rules.rows > 1 and total > 0 and total**2 / float((weights**2).sum()) < self.rules.rows - 1e-9:
            raise Withheld(
                f"{self.name} withholds: at these coefficients fewer than {self.rules.rows} rows have a say; a column "
                "separates the outcomes nearly, or the server asks for coefficients of its own"
            )


def _within(used: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows [n] of the site, from rows of its ``used``."""
    out = np.zeros(len(used), bool)
    out[np.flatnonzero(used)] = rows
    return out


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


class Hello(Message):
    """Down: the number of sites."""

    sites: int


class Agreement(Message):
    """Up: sites where each column is text [c], the tables of categories [k, cells, words], and rows by site [s, 3]."""

    text: Float[Tensor, " c"]
    levels: Float[Tensor, "k m w"]
    rows: Float[Tensor, "s 3"]


class Moments(Message):
    """Up: sums, in the analysis' own order."""

    sums: Float[Tensor, " m"]


Json = UInt8[Tensor, " b"]
"""Plain values as bytes of JSON."""


def packed(values: Any) -> Tensor:
    """Plain values as bytes."""
    return torch.frombuffer(bytearray(json.dumps(values, sort_keys=True).encode()), dtype=torch.uint8)


def unpacked(raw: Tensor) -> Any:
    """Inverse of `packed`."""
    return json.loads(bytes(raw.numpy()))


def tensor(values: Any) -> Tensor:
    """Numbers as a tensor of float64."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


def site_of(me: Client[Any]) -> Site:
    """The client's site."""
    return cast(Site, me.problem)


@dataclass
class Report:
    """The server's state: a model that is none, and what the analysis found."""

    x: Vec
    found: Any = None


@dataclass
class Agreed:
    """What all sites agree on before an analysis.

    Attributes:
        levels: the categories that occur at any site, by column
        rows: used rows, rows with a missing value, and rows that the study left out, by site [s, 3]
        text: columns that are text
    """

    levels: dict[str, list[str]]
    rows: np.ndarray
    text: frozenset[str]


class Analysis(Algorithm[Report]):
    """Base of the analyses: one round on typed messages, whose server reads sums only."""

    def start(self, x: Vec) -> Report:
        """Nothing is found yet."""
        return Report(x)

    @property
    @abstractmethod
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Columns that must be there in a row, and those of them that are categories."""

    @property
    def condition(self) -> str:
        """The rows that it takes; empty for all."""
        return str(getattr(self, "where", ""))

    def summed(self, clients: Cohort, method: Any, message: Message) -> Any:
        """The sum of the sites' replies, each of weight 1."""
        return clients.ask(method, message).sum(dict.fromkeys(clients.ids, 1.0))

    def agreed(self, clients: Cohort, agree: Any, strict: bool = True) -> Agreed:
        """One exchange in which the sites agree on categories and say how many rows they have.

        Args:
            agree: the client method, `agreement` with on_client
            strict: whether a column that is text at some sites only is refused; default True
        """
        up, (columns, categorical) = self.summed(clients, agree, Hello(len(clients.ids))), self.reads
        counts = np.rint(up.text.numpy())
        split = {c: int(k) for c, k in zip(columns, counts, strict=True) if 0 < k < len(clients.ids)}
        if strict and (mixed := split.keys() - {*categorical}):
            name = min(mixed)
            raise RecipeError(
                f"{name} is text at {split[name]} of {len(clients.ids)} sites and numbers at the others; write C({name}) "
                "for categories, or recode it there"
            )
        levels = {c: in_sequence([*union(up.levels[k].numpy(), c)]) for k, c in enumerate(categorical)}
        text = {c for c, k in zip(columns, counts, strict=True) if k > 0}
        return Agreed(levels, np.rint(up.rows.numpy()), frozenset(text))

    def agreement(self, site: Site, me: int, sites: int) -> Agreement:
        """A site's part in `agreed`."""
        (columns, categorical), where = self.reads, self.condition
        used, missing = site.rows(columns, where)
        frame, tables = site.frame[used], []
        for name in categorical:
            values, counts = np.unique(texts(frame, name).astype(str), return_counts=True)
            if len(values) > 1:
                for rows in (texts(site.frame, name) == v for v in values):
                    site._cell(rows & used, name)
            tables.append(sketched(values, f"{site.name}: C({name})"))
        text = [0.0 if is_numeric(site.frame[c]) else 1.0 for c in columns]
        rows = np.zeros((sites, 3))
        rows[me] = used.sum(), missing, site.dropped
        shape = (len(tables), *(tables[0].shape if tables else (0, 0)))
        return Agreement(tensor(text), tensor(np.array(tables).reshape(shape)), tensor(rows))


def upper(A: np.ndarray) -> np.ndarray:
    """The upper triangle of a symmetric matrix, row after row."""
    out: np.ndarray = A[np.triu_indices(len(A))]
    return out


def lower(t: Any) -> np.ndarray:
    """Inverse of `upper`."""
    v = np.asarray(t)
    p = int((np.sqrt(8 * len(v) + 1) - 1) / 2)
    A = np.zeros((p, p))
    A[np.triu_indices(p)] = v
    out: np.ndarray = A + np.triu(A, 1).T
    return out


def column(site: Site, used: np.ndarray, name: str, default: float) -> np.ndarray:
    """A column of numbers on these rows; ``default`` where it has no name."""
    return numbers(site.frame[used], name, site.name) if name else np.full(int(used.sum()), default)


def levels_of(said: Mapping[str, Any]) -> dict[str, list[str]]:
    """Categories that the server sends, as text."""
    return {str(k): [*map(str, v)] for k, v in said.items()}
