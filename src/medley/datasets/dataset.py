"""The data set that every reader returns: rows, targets, a test set, and columns that group rows naturally."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from ..contract import BadData, Place, RecipeError, Settings, checked
from ..contract.explained import Explained
from ..numerics.scaling import Scaling
from ..rows.columns import differ, names_of
from ..rows.fields import Fields, described, layout
from ..rows.lazy import in_memory
from ..rows.sparse import Sparse
from ..rows.tensors import as_tensor, check_tensor
from ..storage.html import facts
from .checks import check_keys, check_kinds, check_rows, check_targets, refuse_other_form, weights_of
from .ingest.keys import as_column
from .ingest.labels import Label, RawTargets, code, is_plain
from .on_use import by_row, sampled
from .splits import carved, in_time, sample_rows

# Lengths are checked in __post_init__, with a message; one name for all of them would tie training to test.
Features = Float[Tensor, "_ ..."] | Int[Tensor, "_ ..."]  # integers are token ids

Targets = Int[Tensor, "_ ..."] | Float[Tensor, "_ ..."]

if not TYPE_CHECKING:  # tests check types at run time, before __post_init__ makes tensors of arrays
    Features = Targets = object

PARTS = ("X", "y", "X_test", "y_test", "X_validation", "y_validation", "weights")
"""The tensors of a data set."""

ASIDE = {"identity": False}
"""Fields that describe the rows and do not change a run; a data set's fingerprint leaves them out."""

DENSE = "give dense rows, sparse=False or X.toarray(), or divide the columns of X by numbers of your own first"
"""The remedy if rows cannot be scaled."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Settings, Explained):
    """A data set in memory, not yet divided among clients.

    Raises ``BadData``, with the row if one is at fault, for lengths, labels or numbers that do not fit.

    Arrays, lists, pandas frames and SciPy's sparse matrices become tensors. Several inputs a row are a dict or a tuple
    of arrays [n, ...], for a `Network` whose module takes them by name or by place.

    Attributes:
        X: Training rows [n, ...], floats, or integer token ids. For linear models it may be sparse
            (`medley.rows.sparse.Sparse`).
        y: Training targets [n, ...]: labels 0..``classes``-1 or texts, or floating-point values if ``classes`` is
            None. Integers [n, t] do not need ``classes`` if your own loss reads them.
        X_test: Test rows [m, ...]; default none.
        y_test: Test targets [m]; default none.
        classes: The number of classes C, if your labels are already 0..C-1; by default Medley counts ``labels``.
            Without them whole numbers [n], booleans and texts are classes, which are numbered in ascending order;
            floats are values, and classes is None.
        keys: Columns [n] by name, such as the user or the year of each training row, for natural clients; default none.
        name: The data set's name in messages and reports.
        labels: Names of the classes, which `Result.predict` returns: texts, numbers or booleans. Targets that are
            texts get their places among these; default those texts, in the order of the alphabet.
        X_validation: Validation rows [v, ...]; default none.
        y_validation: Validation targets [v]; default none.
        weights: Weight of each training row's loss [n], at least 0; default 1 each.
        test_keys: Columns [m] of the test rows by name, such as their users; default none.
        features: Names of the columns of X [n, features]; by default those of a frame, else none.
        scaling: Mean and deviation by which `standardise` has scaled X; default None.
        inferred: Whether ``labels`` lists only the classes that these rows happen to have, so that other rows may have
            more; default False.
        missing: Whether NaN in X stands for a missing value. Only `medley.problems.Trees` takes such rows; default
            False, which raises BadData for NaN.
    """

    X: Features
    y: Targets
    X_test: Features | None = None
    y_test: Targets | None = None
    classes: int | None = None
    keys: Mapping[str, np.ndarray] = field(default_factory=dict)
    name: str = "data"
    labels: tuple[Label, ...] = ()
    X_validation: Features | None = None
    y_validation: Targets | None = None
    weights: Float[Tensor, " _"] | None = None
    test_keys: Mapping[str, np.ndarray] = field(default_factory=dict)
    features: tuple[str, ...] = field(default=(), metadata=ASIDE)
    scaling: Scaling | None = field(default=None, metadata=ASIDE)
    inferred: bool = field(default=False, metadata=ASIDE)
    missing: bool = field(default=False, metadata=ASIDE)

    if TYPE_CHECKING:  # arguments may be arrays, lists and frames; attributes are tensors
        # fmt: off
        def __init__(  # noqa: PLR0913
            self, X: Any, y: Any, X_test: Any = None, y_test: Any = None, classes: int | None = None,
            keys: Mapping[str, Any] = ..., name: str = "data", labels: Sequence[Label] = (), X_validation: Any = None,
            y_validation: Any = None, weights: Any = None, test_keys: Mapping[str, Any] = ...,
            features: Sequence[str] = (), scaling: Scaling | None = None, inferred: bool = False,
            missing: bool = False,
        ) -> None: ...
        # fmt: on

    def __post_init__(self) -> None:
        check_kinds(self)
        self._take_arrays()
        for part in PARTS:
            t = getattr(self, part)
            # The same numbers in another memory order would use other kernels, whose last bits differ.
            if type(t) is Tensor and t.layout == torch.strided and not t.is_contiguous():
                object.__setattr__(self, part, t.contiguous())
        check_rows(self.X, self.y, Place(self.name), self.missing)
        check_targets(self.y, self.classes, Place(self.name))
        if self.features and layout(self.X) != (len(self.features),):
            raise BadData(
                f"{self.name}: features= has {len(self.features)} names, but a row has shape {described(self.X)}; "
                "give one name for each column"
            )
        check_keys(self)
        for X, y, part in ((self.X_test, self.y_test, "test"), (self.X_validation, self.y_validation, "validation")):
            if X is not None and y is not None:
                place = Place(self.name, part)
                check_rows(X, y, place, self.missing)
                check_targets(y, self.classes, place)
                refuse_other_form((X, y), (self.X, self.y), place, "the training rows")
            elif X is not None or y is not None:
                raise BadData(f"{self.name}: the {part} set needs both X and y, or neither.")
        if self.weights is not None:
            object.__setattr__(self, "weights", weights_of(self.weights, len(self.X), Place(self.name)))
        if self.labels and len(self.labels) != self.classes:
            raise BadData(
                f"{self.name}: labels= has {len(self.labels)} names for {self.classes} classes; give one for each class"
            )

    def __repr__(self) -> str:
        """Name, rows, classes and keys, in one line."""
        return f"Dataset({self.name}: {', '.join(f'{v} {k}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        return facts(f"Dataset {self.name}", self._facts())

    def _facts(self) -> dict[str, object]:
        entries: dict[str, object] = {f"rows {described(self.X)}": len(self.X)}
        for what, X in (("test rows", self.X_test), ("validation rows", self.X_validation)):
            if X is not None:
                entries[what] = len(X)
        if self.classes is not None:
            names = [str(label) for label in self.labels[:6]]
            renamed = names != [str(k) for k in range(len(names))]
            more = ", …" if len(self.labels) > len(names) else ""
            entries["classes" + (f" ({', '.join(names)}{more})" if renamed else "")] = self.classes
        return entries | ({"as keys": "/".join(self.keys)} if self.keys else {})

    def _take_arrays(self) -> None:
        """Make tensors of arrays, and number the classes of texts and whole numbers."""
        named = {part: names_of(getattr(self, part), self.name) for part in ("X", "X_test", "X_validation")}
        for part, theirs in named.items():
            if theirs and named["X"] and theirs != named["X"]:
                raise BadData(
                    f"{self.name}: {part} has the columns {', '.join(theirs)}, X "
                    f"{', '.join(named['X'])}; give both the same columns in the same order."
                )
        object.__setattr__(self, "features", tuple(map(str, self.features)) or named["X"])
        for part in PARTS:
            value = getattr(self, part)
            if value is None and part in ("X", "y"):
                raise BadData(f"{self.name}: {part} is None; give an array or a tensor")
            if value is None or part[0] != "X":
                continue
            place = Place(self.name, part[2:])
            if isinstance(value, Tensor):
                check_tensor(value, place, part)
            rows = value if isinstance(value, Tensor) else as_tensor(value, place, part, self.missing)
            object.__setattr__(self, part, rows.detach() if type(rows) is Tensor else rows)
        self._take_targets()
        for part in ("keys", "test_keys"):
            place = Place(self.name, "test" if part == "test_keys" else "")
            columns = {k: as_column(values, place.at(column=k)) for k, values in getattr(self, part).items()}
            object.__setattr__(self, part, columns)

    def _take_targets(self) -> None:
        ys = {p: getattr(self, p) for p in ("y", "y_test", "y_validation") if getattr(self, p) is not None}
        if all(isinstance(y, Tensor) for y in ys.values()) and (self.classes is not None or self.y.is_floating_point()):
            for part, y in ys.items():
                check_tensor(y, Place(self.name, part[2:]), part)
                y = in_memory(y).detach()
                object.__setattr__(self, part, y.float() if y.dtype == torch.bfloat16 else y)
            return
        parts = [RawTargets.of(y, Place(self.name, part[2:], column="y")) for part, y in ys.items()]
        new: dict[str, Any] = {}
        text = any(p.are_text for p in parts)
        if (self.classes is not None and not text) or (self.labels and not text):
            tensors = [p.tensor() for p in parts]
            real = tensors[0].is_floating_point()
            new = {} if self.classes is not None or real else {"classes": len(self.labels)}
        else:
            coded = code(parts, labels=self.labels)
            tensors = coded.parts
            new = {} if coded.classes is None or self.classes else {"classes": coded.classes}
            if not self.labels and coded.classes is not None:
                new |= {"labels": () if is_plain(coded.labels) else coded.labels, "inferred": True}
        for part, value in (*zip(ys, tensors, strict=True), *new.items()):
            object.__setattr__(self, part, value)

    @checked("datasets")
    def split(
        self,
        test: float | int = 0.2,
        validation: float | int = 0,
        seed: int = 0,
        by: str | Sequence[str] = (),
        together: str | Sequence[str] = (),
        last: str | Sequence[str] = (),
    ) -> Dataset:
        """Draw a test set, if there is none, and then a validation set from the training rows.

        Rows are drawn uniformly and keep their order and their keys. If the data set already has a test set, it keeps
        it. Rows of one patient, or of one walk, resemble each other: a model knows a test row whose neighbours it was
        trained on. Draw such rows together.

        Args:
            test: Fraction of the training rows; default 0.2. 0 draws none.
            validation: Fraction of the training rows left; default 0, no validation set.
            seed: Of the streams (seed, "split", "test") and (seed, "split", "validation"); default 0.
            by: Keys, such as the clients', or "label". From each group of rows with the same values in all of these,
                the split draws this fraction, rounded, and leaves at least one training row. Default none, the fraction
                is of all rows together.
            together: Keys, such as "patient". The split draws whole groups of rows with the same values in all of
                these, until it has about this fraction of the rows. Default none.
            last: Keys, such as "walk": the part is the last rows of each, in the order in which they stand; nothing is
                drawn. Default none.

        Raises RecipeError if a fraction leaves a part empty, a validation set exists already, or a key does not.
        """
        out = self
        keys_of = [(v,) if isinstance(v, str) else tuple(v) for v in (by, together, last)]
        if sum(map(bool, keys_of[1:])) + bool(keys_of[0] and keys_of[2]) > 1:
            raise RecipeError(f"{self.name}.split(): you cannot combine last= with by= or together=", "last")
        columns: Any = lambda d: [*map(d._strata, keys_of, ("by", "together", "last"))]
        columns(out)
        if self.X_test is None and test:
            rest, taken = carved(len(out.X), test, seed, "test", self.name, *columns(out))
            part = out._rows(taken)
            out = replace(out._rows(rest), X_test=part.X, y_test=part.y, test_keys=part.keys)
        if validation:
            if self.X_validation is not None:
                raise RecipeError(
                    f"{self.name}.split(validation={validation}): the data set has a validation set already; leave "
                    "validation= out"
                )
            rest, taken = carved(len(out.X), validation, seed, "validation", self.name, *columns(out))
            out = replace(out._rows(rest), X_validation=out.X[taken], y_validation=out.y[taken])
        return out

    def _strata(self, by: Sequence[str], parameter: str) -> list[np.ndarray]:
        """The columns that ``by`` names, the argument ``parameter``. Raises RecipeError for an unknown column."""
        labels = {"label": self.y.numpy()} if self.classes is not None and self.y.ndim == 1 else {}
        unknown = [name for name in by if name not in self.keys and name not in labels]
        if unknown:
            where = f"{self.name}.split({parameter}=...): the data set"
            raise RecipeError.unknown(unknown[0], [*self.keys, *labels], where)
        return [self.keys[name].astype(str) if name in self.keys else labels[name] for name in by]

    def _rows(self, rows: Tensor) -> Dataset:
        index = rows.numpy()
        keys = {k: v[index] for k, v in self.keys.items()}
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, X=self.X[rows], y=self.y[rows], keys=keys, weights=weights)

    def _test_rows(self, rows: Tensor) -> Dataset:
        """The data set with these of its test rows; with none left it has no test set."""
        if not len(rows) or self.X_test is None or self.y_test is None:
            return replace(self, X_test=None, y_test=None, test_keys={})
        keys = {k: v[rows.numpy()] for k, v in self.test_keys.items()}
        return replace(self, X_test=self.X_test[rows], y_test=self.y_test[rows], test_keys=keys)

    @checked("datasets")
    def take(self, n_train: int | None = None, n_test: int | None = None, seed: int = 0) -> Dataset:
        """Keep some rows, drawn uniformly without replacement, in their order.

        Args:
            n_train: Number of training rows; default None, all.
            n_test: Number of test rows; default None, all.
            seed: Of the streams (seed, "take", "train") and (seed, "take", "test"); default 0.

        Raises RecipeError if there are fewer rows, or no test set.
        """
        out = self
        if n_train is not None:
            out = out._rows(sample_rows(n_train, len(self.X), seed, "train", self.name))
        if n_test is not None:
            if self.X_test is None or self.y_test is None:
                raise RecipeError(
                    f"{self.name}.take(n_test={n_test}): there is no test set; call .split() first.", "n_test"
                )
            out = out._test_rows(sample_rows(n_test, len(self.X_test), seed, "test", self.name))
        return out

    def where(self, pick: Callable[[Tensor, Tensor], Tensor], name: str, key: str | None = None) -> Dataset:
        """The training, test and validation rows that ``pick(X, y)`` marks, a mask [n], in their order.

        The result is called ``name``. With a key, ``pick`` gets `order_of` that key instead of X. Raises ``BadData`` if
        no training row is left. If no row of another part is left, that part is None.
        """
        inputs = (self.X, self.X_test) if key is None else self.order_of(key)
        rows = pick(inputs[0], self.y).nonzero()[:, 0]
        if not len(rows):
            raise BadData(f"{name} has no training rows.")
        out = replace(self._rows(rows), name=name)
        if inputs[1] is not None and self.y_test is not None:
            out = out._test_rows(pick(inputs[1], self.y_test).nonzero()[:, 0])
        X = self.X_validation
        y = self.y_validation
        if X is not None and y is not None:
            some = pick(X, y)
            validation = (X[some], y[some]) if bool(some.any()) else (None, None)
            out = replace(out, X_validation=validation[0], y_validation=validation[1])
        return out

    def order_of(self, key: str) -> tuple[Tensor, Tensor | None]:
        """The places of the training rows' and the test rows' values of a key in their common order, [n, 1] each.

        Raises RecipeError for a key that is not there, BadData if test or validation rows lack it, and by `in_time`.
        """
        if key not in self.keys:
            raise RecipeError.unknown(key, self.keys, f"{self.name}: the data set")
        if self.X_validation is not None or (self.X_test is not None and key not in self.test_keys):
            part = "validation" if self.X_validation is not None else "test"
            raise BadData(f"{self.name}: its {part} rows have no key {key!r}; leave them out, or draw them by split()")
        both = [self.keys[key], *([] if self.X_test is None else [self.test_keys[key]])]
        n = len(self.X)
        values = in_time(np.concatenate(both), f"{self.name}: key {key!r}", len(self.X))
        places = torch.from_numpy(np.unique(values, return_inverse=True)[1].reshape(-1, 1).astype(float))
        return places[:n], None if self.X_test is None else places[n:]

    def flatten(self) -> Dataset:
        """Rows as flat vectors: X becomes [n, features]."""
        return self if self.features else self.map(lambda X: by_row(X, lambda X: X.flatten(1)))

    @checked("datasets")
    def pool(self, factor: int) -> Dataset:
        """Mean-pool images [n, channels, h, w] over ``factor`` × ``factor`` squares, e.g. 28×28 to 14×14.

        Raises ``RecipeError`` for rows that are not images, or a factor that does not divide height and width.
        """
        if self.X.ndim != 4:
            raise RecipeError(f"{self.name}.pool(): X is {tuple(self.X.shape)}, not [n, channels, height, width].")
        h, w = self.X.shape[2:]
        if factor < 1 or h % factor or w % factor:
            raise RecipeError(f"{self.name}.pool(factor={factor}) does not divide images of {h}×{w}.", "factor")
        pooled = lambda X: F.avg_pool2d(X if X.is_floating_point() else X.float(), factor)
        return self.map(lambda X: by_row(X, pooled))

    def standardise(self, like: Dataset | None = None) -> Dataset:
        """Subtract the mean and divide by the standard deviation (1/n) of the training rows.

        The statistics are per feature of [n, features], per channel of images [n, channels, h, w]; a constant feature
        is only centred. The data set keeps both as ``scaling``, and `Result.predict` scales raw rows with them.

        Args:
            like: A standardised data set whose mean and deviation to use, such as the training rows' for a data set
                of test rows; named columns are matched by name. Default None, this one's own.

        Raises RecipeError if ``like`` is not standardised, and BadData if the rows are sparse or have several
        inputs, or ``like`` has other columns.
        """
        out = self
        call = f"{self.name}.standardise({'' if like is None else f'like={like!r}'})"
        if self.missing:
            raise BadData(f"{call}: rows with missing values have no mean; trees need no scaling, so leave it out")
        if isinstance(self.X, Sparse | Fields):
            raise BadData(f"{call} subtracts means, which would make sparse rows dense; {DENSE}")
        if like is None:
            scaling = Scaling.of(sampled(self.X))
        elif like.scaling is None:
            raise RecipeError(
                f"{call}: the data set in like= is not standardised; call its standardise() first, and pass the result",
                "like",
            )
        elif layout(like.X) != layout(self.X):
            raise BadData(
                f"{call}: rows of like= have shape {described(like.X)}, but rows of {self.name} {described(self.X)}"
            )
        else:
            scaling = replace(like.scaling, shared=True)
            out = self.ordered(like.features, call)
        return replace(out._mapped(lambda X: by_row(X, scaling)), scaling=scaling.after(out.scaling))

    def ordered(self, features: Sequence[str], call: str) -> Dataset:
        """The data set with its columns in the order of these names, if both have names.

        Raises BadData, naming the call, for other names.
        """
        if not features or not self.features or tuple(features) == self.features:
            return self
        difference = differ(self.features, features)
        if difference:
            raise BadData(f"{call} {difference}; give the columns of the training rows")
        at = [self.features.index(name) for name in features]
        scaling = None if self.scaling is None else self.scaling.picked(at)
        return replace(self._mapped(lambda X: X[:, at]), features=tuple(features), scaling=scaling)

    def map(self, f: Callable[[Tensor], Tensor]) -> Dataset:
        """The data set with ``f`` applied to the X of the training, test and validation rows.

        The names of its features and its scaling are dropped.
        """
        return replace(self._mapped(f), features=(), scaling=None)

    def _mapped(self, f: Callable[[Tensor], Tensor]) -> Dataset:
        X_test = None if self.X_test is None else f(self.X_test)
        X_validation = None if self.X_validation is None else f(self.X_validation)
        return replace(self, X=f(self.X), X_test=X_test, X_validation=X_validation)
