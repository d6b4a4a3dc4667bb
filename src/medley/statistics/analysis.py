"""The parts that all analyses share: messages, the sites' agreement on categories, and the base class."""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ..contract import Algorithm, Client, Cohort, Message, RecipeError, Vec, on_client
from ..contract.place import name_of
from ..numerics.dense import symmetric
from ..rows.coding import folded
from .cells import in_sequence, is_text, texts
from .levels import sketched, union
from .site import Site

log = logging.getLogger("medley")


class Hello(Message):
    """Down: the number of sites."""

    sites: int


class Agreement(Message):
    """Up: which columns are text [c]; tables of categories; and each site's numbers of rows: used, with missing values,
    and left out.
    """

    text: Float[Tensor, " c"]
    levels: Float[Tensor, "k m w"]
    rows: Float[Tensor, "s 3"]


class Moments(Message):
    """Up: sums, in the analysis' own order."""

    sums: Float[Tensor, " m"]


Json = UInt8[Tensor, " b"]
"""Plain values as bytes of JSON."""


Ask = Callable[[Any, Message], Any]
"""A client's method and a message -> the sum of the replies, of all sites or of a single one."""


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
    """The server's state: an empty model, and the result of the analysis."""

    x: Vec
    result: Any = None


class Analysis(Algorithm[Report]):
    """Base of the analyses: one round on typed messages, whose server reads only sums."""

    refuses_secure: ClassVar[str] = ""
    fixed_scale: ClassVar[bool] = False
    """Why the analysis cannot use secure sums; empty if it can."""

    def __post_init__(self) -> None:
        """Take arrays and lists as tuples: an analysis is compared and sent."""
        for name, value in self.settings().items():
            plain = value.tolist() if hasattr(value, "tolist") else value  # of NumPy or pandas
            if isinstance(plain, list):
                object.__setattr__(self, name, tuple(plain))
        super().__post_init__()

    def start(self, x: Vec) -> Report:
        """Nothing is found yet."""
        return Report(x)

    @property
    @abstractmethod
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Columns that a row must have, and which of them are categories."""

    @property
    def cluster(self) -> str:
        """The column that says which rows belong together, if the analysis has one."""
        return ""

    @property
    def required_columns(self) -> tuple[tuple[str, ...], ...]:
        """For each set of rows that the analysis sums over, the columns that these rows must have."""
        return (self.reads[0],)

    @property
    def numeric(self) -> tuple[str, ...]:
        """The columns that must be numbers."""
        columns, categorical = self.reads
        return tuple(c for c in columns if c not in {*categorical, self.cluster})

    def summed(self, clients: Cohort, method: Any, message: Message) -> Any:
        """The sum of the sites' replies, each of weight 1."""
        return clients.ask(method, message).sum(dict.fromkeys(clients.ids, 1.0))

    def masked(self, clients: Cohort) -> bool:
        """Whether sums have the noise of secure sums."""
        return bool(getattr(getattr(clients, "connection", None), "sums_only", False))

    def agreed(self, clients: Cohort) -> tuple[dict[str, list[str]], np.ndarray]:
        """One exchange: the categories that occur at any site, by column, and the rows by site; see `Agreement`."""
        up, (columns, categorical) = self.summed(clients, self.agree, Hello(len(clients.ids))), self.reads
        counts = np.rint(up.text.numpy())
        split = {c: int(k) for c, k in zip(columns, counts, strict=True) if 0 < k < len(clients.ids)}
        mixed = split.keys() - {*categorical, self.cluster}  # names of clusters stay at their site
        if mixed:
            name = min(mixed)
            at = f"{split[name]} of {len(clients.ids)} sites"
            if not self.masked(clients):  # the sites answer the same once more
                each = clients.ask(self.agree, Hello(len(clients.ids))).each()
                at = ", ".join(name_of(i) for i, reply in each.items() if reply.text[columns.index(name)] > 0)
            raise RecipeError(
                f"{name} is text at {at} and numbers at the others; recode it "
                f"there, or write C({name}) for categories, which an outcome or an event cannot be"
            )
        tables = zip(categorical, up.levels, strict=True)
        return {c: named_by(t, c, len(clients.ids)) for c, t in tables}, np.rint(up.rows.numpy())

    def used(self, site: Site) -> tuple[np.ndarray, int]:
        """The rows [n] of a site that are used, and the number of rows with a missing value; see `Site.rows`."""
        return site.rows(self.reads[0], getattr(self, "where", ""))

    @on_client
    def agree(self, me: Client[Any], request: Hello) -> Agreement:
        """A site's categories, and its numbers of rows."""
        site, (columns, categorical) = site_of(me), self.reads
        used, missing = self.used(site)
        tables = []
        for name in categorical:
            categories = texts(site.columns, name, site.name)
            values = sorted({str(v) for v in {*categories[used].tolist()}})
            for v in values if len(values) > 1 else ():
                site.cell((categories == v) & used, name)
            tables.append(sketched(values, f"{site.name}: C({name})"))
        text = [float(is_text(site.columns, c, site.name)) for c in columns]
        rows = np.zeros((request.sites, 3))
        rows[me.id] = used.sum(), missing, site.dropped
        shape = (len(tables), *(tables[0].shape if tables else (0, 0)))
        return Agreement(tensor(text), tensor(np.array(tables).reshape(shape)), tensor(rows))


def named_by(table: Tensor, column: str, sites: int) -> list[str]:
    """The categories in a sum of this many sites' tables, in order; logs a warning of likely misspellings.

    Likely misspellings are categories of a single site, categories that differ only in capitals or spaces, and all
    categories if no category occurs at every site.
    """
    counts = union(table.numpy(), column)
    spelt = [folded(v) for v in counts]
    most = max(counts.values(), default=0)
    odd = [
        v for v, s in zip(counts, spelt, strict=True) if most < sites or counts[v] == 1 < sites or spelt.count(s) > 1
    ]
    if odd and column != "site":
        examples = ", ".join(f"{v!r} at {counts[v]}" for v in odd[:8]) + (", …" if len(odd) > 8 else "")
        log.warning(
            "%s: %s of %d sites; if two of these categories are spellings of one, recode them at the sites",
            column, examples, sites,
        )  # fmt: skip
    return in_sequence([*counts])


@cache
def triangle(p: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the upper triangle of a matrix [p, p], row after row."""
    return np.triu_indices(p)


def upper(A: np.ndarray) -> np.ndarray:
    """The upper triangle of a symmetric matrix, row after row."""
    out: np.ndarray = A[triangle(len(A))]
    return out


def lower(t: Tensor) -> np.ndarray:
    """Inverse of `upper`."""
    return symmetric(t, int((np.sqrt(8 * len(t) + 1) - 1) / 2)).numpy()
