"""Files in svmlight's format, and two published sets of LIBSVM's collection."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...contract import BadData, RecipeError, checked
from ...contract import Place as DataPlace
from ..dataset import Dataset
from ..files import Place, locate
from .table import Raw

log = logging.getLogger("medley")


@checked("datasets")
def svmlight(
    path: Place,
    folder: Place | None = None,
    regression: bool | None = None,
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
        regression: Whether targets are values; by default fractions are values, and everything else is classes, which
            are numbered in ascending order, so -1 and +1 become 0 and 1.
        sparse: Whether X stays sparse, for linear models; default False.
        zero_based: Whether the file numbers its columns from 0. By default they do where a row has an entry of column
            0; else from 1, and the log says so.
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
    except (ValueError, OSError, EOFError, OverflowError) as error:
        raise _unread(files, error, call) from None
    Xs = counted_from(out[::2], zero_based, n_features, call)
    for y in out[1::2]:
        odd = np.abs(y) >= 2**53
        if odd.any():
            place = DataPlace(call, row=int(odd.argmax()), column="y")
            raise BadData(
                f"{y[odd][0]:.0f} has more digits than the reader's floats hold; replace such labels by small numbers",
                place=place,
            )
    parts = [(X if sparse else X.toarray(), y) for X, y in zip(Xs, out[1::2], strict=True)]
    return Raw(call, *parts[0], test=parts[1] if parts[1:] else None).dataset(train.name, regression)


def _unread(files: Sequence[Path], error: Exception, call: str) -> BadData:
    """The error for files that scikit-learn's reader refuses: it names the first line that it refuses by itself."""
    from sklearn.datasets import load_svmlight_file

    format_of = "is not in svmlight's format, `label index:value …`"
    for file in files:
        for k, line in enumerate(file.read_bytes().splitlines()):
            try:
                load_svmlight_file(io.BytesIO(line))
            except (ValueError, OverflowError) as e:
                return BadData(
                    f"{call}: line {k + 1} of {file} {format_of} ({e}); labels are numbers, and indices whole numbers "
                    "below 2^31 in ascending order, each once"
                )
    return BadData(f"{call}: {files[0]} {format_of} ({error})")


def counted_from(Xs: Sequence[Any], zero_based: bool | None, n_features: int | None, call: str) -> list[Any]:
    """Sparse rows whose columns begin at the first one of the file, and are ``n_features``."""
    first = min((int(X.indices.min()) for X in Xs if X.nnz), default=0)
    if zero_based is False and not first:
        raise BadData(f"{call}: it has an entry of column 0; give zero_based=True")
    if zero_based is None and first:
        log.warning(
            "%s: no row has an entry of column 0, so columns are taken to count from 1; say zero_based=False, or True",
            call,
        )
    if n_features is None and not any(X.nnz for X in Xs):
        raise BadData(f"{call}: no row has an entry, so there are no columns; give n_features= if that is meant")
    begin = 0 if zero_based or not first else 1
    width = Xs[0].shape[1] - begin
    if n_features is not None and n_features < width:
        raise BadData(
            f"{call}: it has an entry of column {width - 1 + begin}, and n_features={n_features}; give {width}"
        )
    if n_features is not None and not 0 < n_features < 1 << 31:
        raise RecipeError(f"{call}: n_features={n_features}; give the number of columns, below 2^31", "n_features")
    Xs = [X[:, begin:] for X in Xs]
    for X in Xs:
        X.resize(X.shape[0], n_features or width)
    return Xs


@checked("datasets")
def w8a(folder: Place | None = None) -> Dataset:
    """w8a: 49,749 web pages with 300 binary features, few of them positive; from LIBSVM's collection (Platt, 1998)."""
    return svmlight("w8a", folder, zero_based=False)


@checked("datasets")
def a9a(folder: Place | None = None) -> Dataset:
    """a9a: 32,561 adults with 123 binary features and their income class; from LIBSVM's collection (Platt, 1998)."""
    return svmlight("a9a", folder, zero_based=False)
