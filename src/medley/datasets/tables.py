"""Tables: sets that ship with scikit-learn; svmlight, CSV, npz and Parquet files; two published regressions.

Readers of files look for them in ``folder``, else $MEDLEY_DATA, else ~/.cache/medley. The sets that ship with
scikit-learn have no test set of their own: a fraction ``test`` of the rows, 0.2 by default, is drawn for one.
"""

from __future__ import annotations

import csv as csvfile
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, RecipeError, checked
from ..rows.columns import kept_apart, refuse_inexact
from ..rows.sparse import Sparse, is_sparse
from ..runtime.versions import install
from .arrays import SOME_LABELS, given_labels
from .dataset import Dataset
from .delimited import cells_of, names_of_columns
from .files import Place, called, check_delimiter, find, locate, read_npz, reencode, warn_of_unread
from .prepared import of_texts, places, preparation, refuse_special
from .splits import counted_from
from .table_cells import (
    bad_cell,
    cell_text,
    check_keys,
    check_target,
    names_in,
    refuse_index,
    refuse_nonfinite,
    targets_in,
    warn_of_guesses,
)


@checked("datasets")
def digits(test: float | int = 0.2, seed: int = 0) -> Dataset:
    """1,797 handwritten digits, 8×8 as 64 features in [0, 1], shipped with scikit-learn (Alpaydin, Kaynak, 1998)."""
    spec = find_spec("sklearn")
    assert spec is not None, "scikit-learn is one of our dependencies"
    assert spec.origin is not None
    # load_digits would import scikit-learn, which takes longer than training on its digits.
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    y = torch.from_numpy(rows[:, 64].astype(np.int64))
    return Dataset(_float(rows[:, :64] / 16), y, classes=10, name="digits").split(test, seed=seed)


@checked("datasets")
def breast_cancer(test: float | int = 0.2, seed: int = 0) -> Dataset:
    """569 tumours with 30 features in their own units, malignant (0) or benign (1), shipped with scikit-learn."""
    from sklearn import datasets as embedded

    bunch = embedded.load_breast_cancer()
    y = torch.from_numpy(bunch.target.astype(np.int64))
    labels = tuple(map(str, bunch.target_names))
    return Dataset(_float(bunch.data), y, classes=2, name="breast_cancer", labels=labels).split(test, seed=seed)


@checked("datasets")
def diabetes(test: float | int = 0.2, seed: int = 0) -> Dataset:
    """442 patients with 10 scaled features and the disease's progression, 25 to 346, shipped with scikit-learn."""
    from sklearn import datasets as embedded

    X, y = embedded.load_diabetes(return_X_y=True)
    return Dataset(_float(X), _float(y), name="diabetes").split(test, seed=seed)


@checked("datasets")
def svmlight(
    path: Place,
    folder: Place | None = None,
    regression: bool = False,
    sparse: bool = False,
    zero_based: bool | None = None,
    n_features: int | None = None,
) -> Dataset:
    """A file in svmlight's format. A file beside it with ``.t`` appended becomes the test set.

    Where each site reads a file of its own, give all sites the same ``zero_based`` and ``n_features``: a file does not
    say what it counts from, and lacks the columns in which all its rows are 0.

    Args:
        path: A path, or a name such as ``"w8a"``, which is looked for under ``libsvm`` or in the folder itself.
        folder: The folder to look in first; default none.
        regression: Whether targets are values; default False: labels are renumbered 0..C-1 in ascending order, so -1
            and +1 become 0 and 1.
        sparse: Whether X stays sparse, for linear models; default False.
        zero_based: Whether columns count from 0. By default they do where a row has an entry of column 0; else from 1,
            and the log says so.
        n_features: The number of columns; default the last one with an entry.

    Raises BadData if the file is missing, not in that format, or has entries of other columns than these two allow.
    """
    from sklearn import datasets as embedded

    call = f"datasets.svmlight({str(path)!r})"
    train = locate(path, folder, ("libsvm",), call)
    test = train.with_name(train.name + ".t")
    files = [train, test] if test.is_file() else [train]
    try:
        # Read together, so that both get the same columns though the last ones may be absent from one of them.
        out = embedded.load_svmlight_files([str(f) for f in files], dtype=np.float64, zero_based=True)
    except (ValueError, OSError, EOFError) as error:
        raise BadData(f"{call}: {train} is not in svmlight's format, `label index:value …` ({error}).") from None
    Xs = counted_from(out[::2], zero_based, n_features, call)
    parts = [(X if sparse else X.toarray(), y) for X, y in zip(Xs, out[1::2], strict=True)]
    return _table(*parts[0], train.name, call, regression, test=parts[1] if len(parts) > 1 else None)


@checked("datasets")
def w8a(folder: Place | None = None) -> Dataset:
    """w8a: 49,749 web pages with 300 binary features, few of them positive; from LIBSVM's collection (Platt, 1998)."""
    return svmlight("w8a", folder, zero_based=False)


@checked("datasets")
def a9a(folder: Place | None = None) -> Dataset:
    """a9a: 32,561 adults with 123 binary features and their income class; from LIBSVM's collection (Platt, 1998)."""
    return svmlight("a9a", folder, zero_based=False)


@checked("datasets")
def csv(
    path: Place,
    target: str,
    keys: Sequence[str] = (),
    regression: bool = False,
    delimiter: str = ",",
    folder: Place | None = None,
    header: bool | None = None,
    prepared: Any = None,
) -> Dataset:
    """A CSV file; every column but ``target`` and ``keys`` is a numeric feature.

    Args:
        path: A path, or a name in the folder.
        target: The column of targets.
        keys: Columns for natural clients, texts as the file has them; default none.
        regression: Whether targets are values; default False: classes are renumbered 0..C-1 in ascending order,
            numbers by value, False and True as booleans, anything else as text, as are numbers with leading zeros.
            `Result.predict` gives those back.
        delimiter: Between cells; default a comma.
        folder: The folder to look in first; default none.
        header: Whether the first line names the columns; False names them "0", "1", ... By default it does, and one
            that looks like a row of numbers raises BadData.
        prepared: What `Study.prepare` found, or its file: its columns are the features, with empty cells and text.
            Default none.

    Raises:
        RecipeError: A column is not there.
        BadData: A cell is empty, no number, NaN or infinite, or a row has another length. Names row, counted from 0
            below the header, and column. A column is a frame's index, which pandas writes by default.
    """
    call = called("csv", path, delimiter=None if delimiter == "," else delimiter)
    check_delimiter(delimiter, call)
    file = locate(path, folder, (), call)
    scaling, inputs = None if prepared is None else preparation(prepared, call), list[int]()
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = csvfile.reader(stream, delimiter=delimiter, strict=True)
            first = next(lines, [])
            names = names_of_columns(first, header, delimiter, call)
            named, numeric = _columns(names, target, keys, call)
            if scaling is not None:
                refuse_special(scaling, [target], call)
                numeric, inputs = [], places(scaling, names, call)
            places_of = numeric, [*named.values(), *inputs]
            numbers, text = cells_of(lines, [first] if header is False else [], names, places_of, call)
    except (UnicodeDecodeError, csvfile.Error) as error:
        raise BadData(f"{call}: {file} is no CSV file in UTF-8 ({error}). {reencode(file)}") from None
    X = np.frombuffer(numbers, np.float64).reshape(len(text[0]), len(numeric))
    cells = dict(zip(named, text[: len(named)], strict=True)), named
    if scaling is None or scaling.coding is None:
        return _of_columns((X, numeric), cells, names, file.stem, call, regression)
    X = of_texts(scaling, text[len(named) :], call).numpy()
    made = _of_columns((X, numeric), cells, names, file.stem, call, regression)
    return replace(made, features=scaling.coding.features, scaling=scaling)


@checked("datasets")
def npz(
    path: Place,
    X: str = "X",
    y: str = "y",
    X_test: str | None = None,
    y_test: str | None = None,
    keys: Sequence[str] = (),
    regression: bool = False,
    folder: Place | None = None,
) -> Dataset:
    """Arrays of an npz file; nothing is unpickled.

    Args:
        path: A path, or a name in the folder.
        X: Name of the features [n, ...]; default "X".
        y: Name of the targets [n]; default "y".
        X_test: Name of the test features [m, ...]; default none.
        y_test: Name of the test targets [m]; default none.
        keys: Names of columns [n] for natural clients; default none.
        regression: Whether targets are values; default False: classes are renumbered 0..C-1 in ascending order.
        folder: The folder to look in first; default none.

    The log names arrays that are not used. Raises RecipeError if the file lacks a name, or one of ``X_test`` and
    ``y_test`` is missing, and BadData if the file is damaged or holds Python objects.
    """
    call = called("npz", path, X=X, y=y, X_test=X_test, y_test=y_test)
    file = locate(path, folder, (), call)
    got = read_npz(file, [n for n in (X, y, X_test, y_test, *keys) if n is not None], call)
    warn_of_unread(file, got, call)
    if (X_test is None) != (y_test is None):
        raise RecipeError(f"{call}: give both X_test= and y_test=, or neither.", "X_test")
    test = (got[X_test], got[y_test]) if X_test is not None and y_test is not None else None
    return _table(got[X], got[y], file.stem, call, regression, {k: got[k] for k in keys}, test)


@checked("datasets")
def parquet(
    path: Place, target: str, keys: Sequence[str] = (), regression: bool = False, folder: Place | None = None
) -> Dataset:
    """A Parquet file; every column but ``target`` and ``keys`` is a numeric feature. Arguments and errors as of `csv`.

    It needs pyarrow, the extra ``parquet``; without it RecipeError is raised.
    """
    call = f"datasets.parquet({str(path)!r})"
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ImportError:
        raise RecipeError(f"{call} needs pyarrow: {install('parquet')}.") from None
    file = locate(path, folder, (), call)
    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise BadData(f"{call}: {file} is no readable Parquet file ({error}).") from None
    header = list(table.column_names)
    named, numeric = _columns(header, target, keys, call)
    for j in range(len(header)):
        column = table.column(j)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise bad_cell(call, "null", row, j, header)
        kind = column.type
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if not number and (j in numeric or (regression and header[j] == target)):
            remedy = "for classes leave regression=True out" if header[j] == target else "name it in keys="
            raise BadData(f"{call}: column {header[j]!r} holds {kind}, not numbers; {remedy}.", column=j)
    values: list[np.ndarray] = [table.column(j).to_numpy() for j in numeric]
    for j, column in zip(numeric, values, strict=True):
        refuse_inexact(column, f"{call}: column {header[j]!r}")
    X = np.stack([v.astype(np.float64) for v in values], axis=1) if values else np.empty((table.num_rows, 0))
    text = {name: [cell_text(v, call, name) for v in table.column(j).to_pylist()] for name, j in named.items()}
    return _of_columns((X, numeric), (text, named), header, file.stem, call, regression)


def _of_columns(
    numbers: tuple[np.ndarray, list[int]],
    texts: tuple[Mapping[str, Sequence[Any]], dict[str, int]],
    header: Sequence[str],
    name: str,
    call: str,
    regression: bool,
) -> Dataset:
    """The data set of features [n, p] and of the cells of target and keys, the target first, each with its place."""
    (X, numeric), (cells, named) = numbers, texts
    target, *keys = named
    refuse_nonfinite(X, numeric, header, call)
    y, columns = targets_in(cells[target], regression, call), {k: names_in(cells[k]) for k in keys}
    check_target(y, regression, call, named[target], header)
    check_keys({named[k]: columns[k].astype(str).tolist() for k in keys}, call, header)
    warn_of_guesses(X, features := tuple(header[j] for j in numeric), y, call, regression)
    return _table(X, y, name, call, regression, columns, features=features)


@checked("datasets")
def online_news(folder: Place | None = None) -> Dataset:
    """Online News Popularity: 9,874 articles with 59 features in their own units; y is the log of the shares.

    From ``online_news_subset.npz`` (``x``, ``shares``, ``columns``); no test set. ``keys["channel"]`` is the section
    that an article appeared in, ``keys["weekday"]`` its day (Fernandes, Vinagre, Cortez, 2015).
    """
    call = "datasets.online_news()"
    (file,) = find(call, ["online_news_subset.npz"], folder)
    got = read_npz(file, ["x", "shares", "columns"], call)
    if (got["shares"] <= 0).any():
        row = int(np.argmax(got["shares"] <= 0))
        raise BadData(f"{call}: row {row} has {got['shares'][row]} shares; the logarithm needs at least 1.", row=row)
    names = got["columns"].tolist()
    for prefix in KEYS.values():
        if not any(name.startswith(prefix) for name in names):
            raise BadData(f"{call}: {file} has no column {prefix}…; fetch it again.")
    keys = {key: _one_hot(got["x"], names, prefix) for key, prefix in KEYS.items()}
    return Dataset(_float(got["x"]), _float(np.log(got["shares"])), keys=keys, name="online_news")


KEYS = {"channel": "data_channel_is_", "weekday": "weekday_is_"}
"""Prefixes of one-hot columns by the name of the key that they become."""


@checked("datasets")
def msd_years(folder: Place | None = None) -> Dataset:
    """Million Song subset: 4,680 songs with 54 timbre features in their own units; y is the year, 1926 to 2010.

    From ``msd_year_subset.npz`` (``x``, ``y``); no test set. ``keys["year"]`` makes every year a client
    (Bertin-Mahieux et al., 2011).
    """
    call = "datasets.msd_years()"
    (file,) = find(call, ["msd_year_subset.npz"], folder)
    got = read_npz(file, ["x", "y"], call)
    return Dataset(_float(got["x"]), _float(got["y"]), keys={"year": got["y"].astype(np.int64)}, name="msd_years")


def _one_hot(x: np.ndarray, names: list[str], prefix: str) -> np.ndarray:
    columns = [j for j, name in enumerate(names) if name.startswith(prefix)]
    # Articles outside the listed channels have zeros throughout.
    kinds = np.array([*(names[j].removeprefix(prefix) for j in columns), "other"])
    flags = x[:, columns] > 0.5
    return kinds[np.where(flags.any(1), flags.argmax(1), len(columns))]


def _columns(header: list[str], target: str, keys: Sequence[str], call: str) -> tuple[dict[str, int], list[int]]:
    """Positions of target and keys by name, and positions of the features.

    Raises BadData for a header that names a column twice, or has a frame's index, RecipeError for a column that is not
    there.
    """
    if len(set(header) - {""}) != len(header) - header.count(""):
        twice = next(h for h in header if header.count(h) > 1)
        raise BadData(f"{call}: the header names {twice!r} twice.", column=header.index(twice, header.index(twice) + 1))
    for argument, name in (("target", target), *(("keys", key) for key in keys)):
        if name not in header:
            raise RecipeError.unknown(name, header, f"{call}: {argument}=: the header")
    if target in keys:
        raise RecipeError(f"{call}: {target!r} cannot be both target and key.", "keys")
    named = {name: header.index(name) for name in (target, *keys)}
    refuse_index([name for name in header if name not in named], call, "write the file with index=False")
    return named, [j for j in range(len(header)) if j not in named.values()]


def _table(
    X: Any,
    y: np.ndarray,
    name: str,
    call: str,
    regression: bool,
    keys: Mapping[str, np.ndarray] | None = None,
    test: tuple[Any, np.ndarray] | None = None,
    features: tuple[str, ...] = (),
) -> Dataset:
    """A Dataset of raw arrays.

    Args:
        X: Features [n, ...], maybe a SciPy sparse matrix; they become float32.
        y: Targets [n]; labels become 0..C-1.

    Raises BadData if there are no numbers, no rows or no features; a label is no whole number, or all are the same.
    """
    for array_ in (X, y, *(test or ())):
        if array_.dtype.kind not in "biufU" or (array_.dtype.kind == "U" and (array_ is X or regression)):
            raise BadData(f"{call}: it holds {array_.dtype} where numbers are needed.")
    if not math.prod(X.shape):
        raise BadData(
            f"{call}: there are {X.shape[0]} rows of {math.prod(X.shape[1:])} features; at least one of each is needed."
        )
    for values in (X, *(test or ())[:1], *([y, *(test or ())[1:]] if regression else ())):
        refuse_inexact(values, call)
    X_test = None if test is None else _float(test[0])
    if regression:
        y_test = None if test is None else _float(test[1])
        return Dataset(_float(X), _float(y), X_test, y_test, keys=keys or {}, name=name, features=features)
    parts = [y] if test is None else [y, test[1]]
    for part in parts:
        if part.dtype.kind == "f" and (odd := (part != np.round(part)) | np.isinf(part)).any():
            row = int(odd.argmax())
            raise BadData(
                f"{call}: target {part[row]} in row {row} is no class; pass regression=True for values.", row=row
            )
    kinds = np.unique(np.concatenate(parts))
    if len(kinds) < 2:
        raise BadData(
            f"{call}: all rows have the same label, {kinds[0].item()!r}; name another target, or pass "
            f"regression=True for values; {SOME_LABELS}"
        )
    codes = [torch.from_numpy(np.searchsorted(kinds, part).astype(np.int64)) for part in parts]
    labels = given_labels(kinds, tuple(map(str, kinds.tolist())))
    y_test = None if test is None else codes[1]
    return Dataset(_float(X), codes[0], X_test, y_test, len(kinds), keys or {}, name, labels, features=features)


def _float(values: Any) -> Tensor:
    """Numbers in float32, or in float64 where they lie too close together for it."""
    found = kept_apart(values)
    return Sparse.of(found) if is_sparse(found) else torch.from_numpy(found)
