"""Boost: gradient-boosted trees, grown from sums of histograms over clients.

**Reference**: Chen & Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016: the second-order objective, its
gain (equation 7), and histograms by columns.

**Status**: this library's own

**Needs**: a forest, `medley.problems.Trees`. Clients keep 8 bytes for each row and output between rounds, and the lines
between bins.

**One round sends** (floats per client, K outputs of a row):

- survey (if bins are not agreed yet): 8 bytes down, 2048p bytes + 8m bytes up
- divide (if bins are not agreed yet): 16(c + 1) bytes down, 64c bytes + 8(m + 1) bytes up
- begin (first time): k + 8(p + 1) bytes down, 20n bytes up; without Σh, for squared errors, 12n
- begin (later): k + 8 bytes down, 20n bytes up
- level: k + 8m bytes down, 20n bytes up

Under ``Private(unit="row")`` no rows are counted, 16n bytes up, and both children of a split are sent.

**Departures** from XGBoost's ``hist``: bins come from counts on a fixed grid, not from sketches of the rows. g and h
are rounded to multiples of a power of two, so that a sum over clients is exact: any partition of the same rows, in
any order, grows the same trees to the bit. Only the histogram of the smaller child of a split is sent; the other one
is the difference, which is exact too. A threshold lies in the middle between two cells of the grid that have rows. Rows
without a value go to the side that gains more, as in XGBoost; if no row of a node lacks the value, rows that lack it go
later where most of its rows go. The trees of a round share their samples of rows and columns. Trees are not pruned
after they are grown.

**Checked against**: xgboost-cpu 3.2 on eight tables; see docs/trees.md.

**Missing replies**: a client whose reply is lost takes no further part in the tree. Its rows leave the sums from that
level on, for which the others send the histograms of both children.

**Example**

>>> import medley as md
>>> trees = md.problems.Trees("softmax", trees=10, depth=3)
>>> fed = md.Federation(trees, data=md.datasets.digits(), partition=md.partitions.Dirichlet(clients=5, alpha=0.3))
>>> md.run(md.Boost(bins=16), fed, rounds=10, progress=False).summary["accuracy"] > 0.85
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..contract import (
    Algorithm,
    BadData,
    Client,
    Cohort,
    Message,
    Need,
    RecipeError,
    Unsupported,
    Vec,
    at_least,
    at_most,
    in_range,
    on_client,
    positive,
)
from ..numerics import bins, forest, splits
from ..numerics.forest import Layout, TreeRows
from ..numerics.splits import Bins, Growth, Splits, Sums


class Hello(Message):
    """Down: how many columns rows have."""

    columns: int


class Survey(Message):
    """Up: rows by column and octave, [columns × 512]; rows by the exponent of their targets."""

    exact: ClassVar[frozenset[str]] = frozenset({"counts", "targets"})
    counts: Int[Tensor, " c"]
    targets: Float[Tensor, " m"]


class Cells(Message):
    """Down: the cells to divide, by column and first bits; how many bits; and the unit of sums."""

    column: Int[Tensor, " c"]
    cell: Int[Tensor, " c"]
    bits: int
    unit: float


class Parts(Message):
    """Up: the rows in the sixteen parts of each cell, Σy or the rows of each class, and the rows."""

    exact: ClassVar[frozenset[str]] = frozenset({"counts", "sums"})
    counts: Int[Tensor, " c"]
    sums: Float[Tensor, " m"]
    rows: float


class Begin(Message):
    """Down: the trees of a round begin; the unit of g and h, and the columns that they may use, None for all."""

    unit: float
    columns: Int[Tensor, " c"] | None


class News(Message):
    """Down: what the client has not got yet: trees, and at first the outputs before them and the lines of columns."""

    exact: ClassVar[frozenset[str]] = frozenset({"trees", "base", "cuts", "lines"})
    trees: Float[Tensor, " k"]
    base: Float[Tensor, " o"] | None
    cuts: Float[Tensor, " c"] | None
    lines: Int[Tensor, " p"] | None


class Level(Message):
    """Down: the records of all nodes so far, empty if the client has them; the nodes whose sums are wanted."""

    exact: ClassVar[frozenset[str]] = frozenset({"nodes", "wanted"})
    nodes: Float[Tensor, " k"]
    wanted: Int[Tensor, " m"]


class Histograms(Message):
    """Up: Σg, Σh and rows by node, column and bin; no Σh where h is 1, no rows if the sums have noise."""

    exact: ClassVar[frozenset[str]] = frozenset({"g", "h", "n"})
    g: Float[Tensor, " k"]
    h: Float[Tensor, " k"] | None
    n: Int[Tensor, " k"] | None


@dataclass
class Server:
    """The forest; the lines between bins of all columns, one column after the other; how many each column has
    [columns]; the unit of g and h, 0 before bins are agreed; and up to which tree clients have the forest.
    """

    x: Vec
    cuts: Tensor
    lines: Tensor
    unit: float = 0.0
    have: dict[int, int] = field(default_factory=dict)


@dataclass
class Memory:
    """Outputs of the client's rows [n, outputs]; the node of each row in the trees that grow [outputs, n], −1 for rows
    that they leave out; lines between bins and their numbers, as the server has them; the unit of g and h; and the
    columns that the trees may use, None for all.
    """

    F: Tensor
    at: Tensor
    cuts: Tensor
    lines: Tensor
    unit: float = 0.0
    columns: Tensor | None = None


def flat(a: np.ndarray, dtype: torch.dtype) -> Tensor:
    """An array as a flat tensor."""
    return torch.from_numpy(np.ascontiguousarray(a)).to(dtype).reshape(-1)


@dataclass(frozen=True)
class Boost(Algorithm[Server, Memory]):
    """Gradient-boosted trees.

    Attributes:
        server_lr: η, the factor on a tree's outputs, called shrinkage or learning rate
        ridge: λ, added to the Σh of a node
        min_gain: γ; a split must gain more, as ``loss_chg`` in XGBoost, which is twice what the loss falls
        min_child_weight: the least Σh of a child
        min_rows: the fewest rows of a child, over all clients
        bins: the most bins of a column
        row_share: the probability by which a row takes part in a round's trees, drawn by its client
        column_share: the share of columns that a round's trees may use, drawn by the server; at least one
        ranges: the least and the largest value of each column, or of all, from public knowledge, as [low, high] or as
            [low, high, bins]. Bins are then of equal width, and clients send no counts of values; larger and smaller
            values are in the outer bins. The losses are "logistic" and "softmax". Default: bins from counts
    """

    server_lr: Annotated[float, positive] = 0.3
    ridge: Annotated[float, at_least(0)] = 1.0
    min_gain: Annotated[float, at_least(0)] = 0.0
    min_child_weight: Annotated[float, at_least(0)] = 1.0
    min_rows: Annotated[int, at_least(1)] = 1
    bins: Annotated[int, in_range(2, 1024)] = 64
    row_share: Annotated[float, positive, at_most(1)] = 1.0
    column_share: Annotated[float, positive, at_most(1)] = 1.0
    ranges: Sequence[Sequence[float]] | None = None

    needs = frozenset({Need.TREES})

    def __post_init__(self) -> None:
        super().__post_init__()
        for ends in [[]] if self.ranges == [] else self.ranges or ():
            if len(ends) not in (2, 3) or not ends[0] < ends[1] or (ends[2:] and ends[2] not in range(2, 1025)):
                raise RecipeError(
                    f"Boost(ranges=...): {list(ends)}; give [low, high], with low < high, and a third number only for "
                    "2 to 1024 bins",
                    "ranges",
                )

    def start(self, x: Vec) -> Server:
        """The forest x₀; it may have grown already."""
        return Server(x, torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    def remember(self, x: Vec) -> Memory:
        """Nothing yet."""
        none = torch.zeros(0, dtype=torch.int64)
        return Memory(torch.zeros(0, dtype=torch.float64), none, torch.zeros(0), none)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Clients without their memory get the forest again."""
        s.have = {i: t for i, t in s.have.items() if i not in who}

    def round(self, s: Server, clients: Cohort) -> None:
        """Agree on bins if there are none; grow the trees of one round, level by level; add them to the forest."""
        layout = forest.layout_of(s.x)
        grown = int(s.x[forest.GROWN])
        if grown == layout.trees:
            raise Unsupported(
                f"Boost: the forest is full after {grown} rounds: give rounds={grown}, or problems.Trees(trees=...) "
                "with more of them",
                method=self.name,
                need="trees",
            )
        if not s.unit:
            self.agree(s, clients, layout)
        tree = self.grown(s, clients, layout)
        x = s.x.clone()
        first = layout.first + grown * layout.tree
        x[first : first + layout.tree] = flat(tree, x.dtype)
        x[forest.GROWN] = grown + 1
        s.x = x

    def agree(self, s: Server, clients: Cohort, layout: Layout) -> None:
        """Lines between bins from counts, the unit of g and h, and the outputs before the first tree."""
        if self.ranges is not None:
            self.line(s, self.public(self.ranges, layout), layout)
            s.unit = splits.PUBLIC
            return
        replies = clients.ask(self.survey, Hello(layout.columns))
        up = replies.sum(dict.fromkeys(clients.ids, 1.0))
        counts = up.counts.numpy().reshape(layout.columns, -1)
        rows = int(up.targets.sum())
        loss = forest.LOSSES[layout.loss]
        unit = splits.unit_of(loss, up.targets.numpy(), rows)
        cells = bins.Cells.first(counts)
        ids = replies.ids
        parts = None
        for bits in range(bins.FIRST, bins.FINEST, bins.STEP):
            coarse = cells.coarse(bits, self.bins)
            if not coarse.any() and parts is not None:
                break
            cell = cells.start[coarse] >> (32 - bits)
            request = Cells(torch.from_numpy(cells.column[coarse]), torch.from_numpy(cell), bits, unit)
            parts = clients.ask(self.divide, request, ids=ids).sum(dict.fromkeys(ids, 1.0))
            cells = cells.refined(coarse, parts.counts.numpy().reshape(-1, 1 << bins.STEP))
        cuts = cells.cuts(layout.columns, self.bins)
        if not sum(map(len, cuts)) and (counts.sum(1) == rows).all():
            raise BadData(
                f"Boost: all {layout.columns} columns are constant over the clients' rows, so no tree can divide them; "
                "give columns that vary"
            )
        self.line(s, cuts, layout)
        s.unit = unit
        if int(s.x[forest.GROWN]) == 0 and parts is not None:
            x = s.x.clone()
            x[forest.FIXED : layout.first] = flat(splits.base_of(loss, parts.sums.numpy(), round(parts.rows)), x.dtype)
            s.x = x

    def public(self, ranges: Sequence[Sequence[float]], layout: Layout) -> list[np.ndarray]:
        """Lines that divide each column's public range into bins of equal width."""
        loss = forest.LOSSES[layout.loss]
        if loss not in splits.BENDS:
            raise RecipeError(
                f"Boost(ranges=...): gradients of the loss {loss!r} have no bound that all know; use 'logistic' or "
                "'softmax', or leave ranges= out",
                "ranges",
            )
        if len(ranges) not in (1, layout.columns):
            raise RecipeError(
                f"Boost(ranges=...): {len(ranges)} ranges, and rows have {layout.columns} columns; give one for each, "
                "or one for all",
                "ranges",
            )
        each = [*ranges] * (layout.columns if len(ranges) == 1 else 1)
        widths = [int(more[0]) if more else self.bins for _, _, *more in each]
        ends = [(low, high) for low, high, *_ in each]
        return [np.linspace(*e, n + 1)[1:-1].astype(np.float32) for e, n in zip(ends, widths, strict=True)]

    def line(self, s: Server, cuts: list[np.ndarray], layout: Layout) -> None:
        """Keep the lines of all columns."""
        if layout.missing:  # a last line above all values divides rows that have one from those that lack it
            cuts = [np.append(lines, bins.ABOVE) for lines in cuts]
        s.cuts = torch.from_numpy(np.concatenate(cuts))
        s.lines = torch.tensor([*map(len, cuts)])

    def news(self, s: Server, layout: Layout, i: int) -> News:
        """What client i has not got yet."""
        first = layout.first + s.have.get(i, 0) * layout.tree
        trees = s.x[first : layout.first + int(s.x[forest.GROWN]) * layout.tree]
        if i in s.have:
            return News(trees, None, None, None)
        return News(trees, s.x[forest.FIXED : layout.first], s.cuts, s.lines)

    @on_client
    def survey(self, me: Client[Memory], request: Hello) -> Survey:
        """Rows by column and octave, and targets by exponent."""
        rows = cast(TreeRows, me.problem)
        counts = bins.octaves(rows.values())
        return Survey(flat(counts, torch.int32), flat(rows.largest(), torch.float64))

    @on_client
    def divide(self, me: Client[Memory], request: Cells) -> Parts:
        """Rows in the parts of each cell."""
        rows = cast(TreeRows, me.problem)
        counts = bins.divided(rows.values(), request.column.numpy(), request.cell.numpy(), request.bits)
        return Parts(flat(counts, torch.int32), flat(rows.sums(request.unit), torch.float64), float(rows.n))

    @on_client
    def begin(self, me: Client[Memory], request: Begin, news: News) -> Histograms:
        """Add the trees that are new to the outputs, and send the sums of all rows."""
        rows = cast(TreeRows, me.problem)
        memory = me.memory
        X = rows.values()
        if news.cuts is not None and news.lines is not None and news.base is not None:
            memory.lines = news.lines
            memory.cuts = news.cuts
            memory.F = news.base.double().repeat(len(X), 1)
        trees = forest.read(news.trees.numpy(), rows.layout)
        memory.F = torch.from_numpy(forest.add(memory.F.numpy(), X, trees))
        drawn = torch.rand(len(X), generator=me.rng("rows"), dtype=torch.float64) < self.row_share
        memory.at = (drawn.short() - 1).repeat(rows.layout.outputs, 1)
        memory.unit = request.unit
        memory.columns = request.columns
        return self.sums(me, np.arange(rows.layout.outputs) * rows.layout.nodes)

    @on_client
    def level(self, me: Client[Memory], request: Level) -> Histograms:
        """Send rows one level down, and the sums of the nodes that are wanted."""
        rows = cast(TreeRows, me.problem)
        X = rows.values()
        nodes = request.nodes.numpy()
        if len(nodes):
            trees = np.full((rows.layout.outputs, rows.layout.nodes, forest.RECORD), -1.0, np.float32)
            known = nodes.reshape(rows.layout.outputs, -1, forest.RECORD)
            trees[:, : known.shape[1]] = known
            at = [forest.descend(a, X, tree) for a, tree in zip(me.memory.at.long().numpy(), trees, strict=True)]
            me.memory.at = torch.from_numpy(np.stack(at)).short()
        return self.sums(me, request.wanted.numpy())

    def sums(self, me: Client[Memory], wanted: np.ndarray) -> Histograms:
        """Σg, Σh and rows of some nodes, by column and bin; nodes are numbered through all outputs' trees."""
        rows = cast(TreeRows, me.problem)
        memory = me.memory
        codes = rows.codes(memory.cuts, memory.lines)
        g, h = rows.gradients(memory.F.numpy(), memory.unit)
        widths = memory.lines + 1 + rows.layout.missing
        if memory.columns is not None:
            codes = codes[memory.columns.numpy()]
            widths = widths[memory.columns]
        me.problem.work += rows.n
        parts = []
        for k, at in enumerate(memory.at.long().numpy()):
            mine = wanted[wanted // rows.layout.nodes == k] % rows.layout.nodes
            slot = np.full(rows.layout.nodes + 1, -1)  # the last place is of rows that are left out, at −1
            slot[mine] = np.arange(len(mine))
            weights = [g[:, k], None] if h is None else [g[:, k], None, h[:, k]]
            parts.append(splits.histograms(codes, widths.tolist(), slot[at], len(mine), weights))
        joined = [np.concatenate(tables) for tables in zip(*parts, strict=True)]
        h_sums = flat(joined[2], torch.float64) if h is not None else None
        return Histograms(flat(joined[0], torch.float64), h_sums, flat(joined[1], torch.int32))

    @staticmethod
    def entered(memory: Memory, layout: Layout) -> int:
        """How many histograms of each output a row enters in one exchange: one for each column that trees may use."""
        return layout.columns if memory.columns is None else len(memory.columns)

    def grown(self, s: Server, clients: Cohort, layout: Layout) -> np.ndarray:
        """The trees of one round, records [outputs, nodes, record]."""
        columns = np.arange(layout.columns)
        sent = None
        if self.column_share < 1:
            order = torch.randperm(layout.columns, generator=clients.rng("columns"))
            sent = order[: max(1, int(self.column_share * layout.columns))].sort().values
            columns = sent.numpy()
        of = Bins(s.lines.numpy()[columns], bool(layout.missing))
        tree = np.zeros((layout.outputs, layout.nodes, forest.RECORD))
        tree[:, :, forest.FEATURE] = -1
        records = tree.reshape(-1, forest.RECORD)
        each = {i: self.news(s, layout, i) for i in clients.ids}
        replies = clients.ask(self.begin, Begin(s.unit, sent), each)
        up = replies.sum(dict.fromkeys(clients.ids, 1.0))
        table = read(up, of)
        noisy = up.n is None
        growth = self.growth(layout, noisy)
        s.have = s.have | dict.fromkeys(replies.ids, int(s.x[forest.GROWN]))
        ids = replies.ids
        nodes = np.arange(layout.outputs) * layout.nodes
        for level in range(layout.depth):
            best = splits.best_splits(table, of, growth).among(columns)
            if level == 0 or noisy:
                self.settle(records, nodes, best.total, growth)
            children = self.split(records, nodes, best, s, layout, growth)
            inner = best.column >= 0
            if not inner.any() or level == layout.depth - 1:
                break
            first = best.left.n[inner] * 2 <= best.total.n[inner]
            wanted = children.reshape(-1) if noisy else np.where(first, children[:, 0], children[:, 1])
            above = flat(tree[:, : 2 ** (level + 1) - 1], s.x.dtype)
            replies = clients.ask(self.level, Level(above, torch.from_numpy(wanted)), ids=ids)
            small = read(replies.sum(dict.fromkeys(ids, 1.0)), of)
            if noisy:  # a difference would have the noise of both, and sums of both children tell no more of a row
                table, ids = small, replies.ids
            elif replies.ids == ids:
                large = table.at(inner).less(small)
                pairs = [np.stack([a, b], 1) for a, b in zip(small, large, strict=True)]
                both = Sums(*(np.where(first[:, None, None], p, p[:, ::-1]) for p in pairs))
                table = Sums(*(t.reshape(-1, t.shape[-1]) for t in both))
            else:  # the parents' sums have rows of clients that no longer reply
                ids = replies.ids
                request = Level(above[:0], torch.from_numpy(children.reshape(-1)))
                replies = clients.ask(self.level, request, ids=ids)
                table = read(replies.sum(dict.fromkeys(ids, 1.0)), of)
            nodes = children.reshape(-1)
        return tree

    def growth(self, layout: Layout, noisy: bool = False) -> Growth:
        """What a split must reach; rows of noisy sums are not counted, and no leaf jumps where noise hides that Σh is
        small.
        """
        jump = splits.JUMP if forest.LOSSES[layout.loss] == "poisson" else splits.NOISY_JUMP if noisy else np.inf
        return Growth(self.ridge, self.min_gain, self.min_child_weight, 0 if noisy else self.min_rows, jump)

    def split(
        self, records: np.ndarray, nodes: np.ndarray, best: Splits, s: Server, layout: Layout, growth: Growth
    ) -> np.ndarray:
        """Write the splits of nodes into their records; the children of those that split [splits, 2]."""
        inner = best.column >= 0
        parent = nodes[inner]
        column = best.column[inner]
        lines = s.lines.numpy()
        line = (np.cumsum(lines) - lines)[column] + best.line[inner]
        records[parent, forest.FEATURE] = column
        records[parent, forest.THRESHOLD] = s.cuts.numpy()[line]
        records[parent, forest.MISSING] = best.missing[inner]
        records[parent, forest.GAIN] = best.gain[inner]
        first = parent + parent % layout.nodes + 1  # of node j of a tree: 2j + 1
        children = np.stack([first, first + 1], 1)
        self.settle(records, children[:, 0], best.left.at(inner), growth)
        self.settle(records, children[:, 1], best.right.at(inner), growth)
        return children

    def settle(self, records: np.ndarray, nodes: np.ndarray, sums: Sums, growth: Growth) -> None:
        """Write the output −ηG/(H + λ) of nodes, in case they stay leaves, and their Σh."""
        records[nodes, forest.VALUE] = (self.server_lr * sums.step(growth)).astype(np.float32)
        records[nodes, forest.COVER] = np.maximum(sums.h, 0)


def read(up: Histograms, of: Bins) -> Sums:
    """Histograms [nodes, Σ widths] of a reply or of a sum."""
    shape = (-1, int(of.widths.sum()))
    if up.n is None and up.h is not None:
        g, h = (of.levelled(t.numpy().reshape(shape)) for t in (up.g, up.h))
        return Sums(g, h, h)
    assert up.n is not None
    n = up.n.double().numpy().reshape(shape)
    h = n if up.h is None else up.h.numpy().reshape(shape)
    return Sums(up.g.numpy().reshape(shape), h, n)
