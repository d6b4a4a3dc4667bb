"""Arrays of npz files."""

from __future__ import annotations

from collections.abc import Sequence

from ...contract import RecipeError, checked
from ..dataset import Dataset
from ..files import Place, called, locate
from ..formats import read_npz, warn_of_unread
from ..ingest.keys import all_keys
from .table import Raw


@checked("datasets")
def npz(  # noqa: PLR0913
    path: Place,
    X: str = "X",
    y: str = "y",
    X_test: str | None = None,
    y_test: str | None = None,
    keys: Sequence[str] = (),
    regression: bool | None = None,
    folder: Place | None = None,
    client: str | None = None,
    missing: bool = False,
) -> Dataset:
    """Arrays of an npz file; nothing is unpickled.

    Args:
        path: A path, or a name in the folder.
        X: Name of the features [n, ...]; default "X".
        y: Name of the targets [n]; default "y".
        X_test: Name of the test features [m, ...]; default none.
        y_test: Name of the test targets [m]; default none.
        keys: Names of further columns [n], such as each row's patient; default none.
        regression: Whether targets are values; by default fractions are values, and everything else is classes, which
            are numbered in ascending order.
        folder: The folder to look in first; default none.
        client: Name of the column [n] of each row's client; default none.
        missing: Whether NaN in features stands for a missing value, for `medley.problems.Trees`; default False.

    The log names arrays that are not used. Raises RecipeError if the file lacks a name, or one of ``X_test`` and
    ``y_test`` is missing, and BadData if the file is damaged or holds Python objects.
    """
    call = called("npz", path, X=X, y=y, client=client, X_test=X_test, y_test=y_test)
    file = locate(path, folder, (), call)
    named = all_keys(y, client, keys, call)
    arrays = read_npz(file, [n for n in (X, y, X_test, y_test, *named) if n is not None], call)
    warn_of_unread(file, arrays, call)
    if (X_test is None) != (y_test is None):
        raise RecipeError(f"{call}: give both X_test= and y_test=, or neither.", "X_test")
    test = (arrays[X_test], arrays[y_test]) if X_test is not None and y_test is not None else None
    raw = Raw(call, arrays[X], arrays[y], y, {k: arrays[k] for k in named}, test=test, missing=missing)
    return raw.dataset(file.stem, regression)
