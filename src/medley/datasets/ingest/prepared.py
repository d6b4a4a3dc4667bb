"""Preparations: scalings with a coding, which were fitted across sites; in memory, or in a file of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...contract import BadData, RecipeError
from ...numerics.scaling import Scaling
from ...rows.numbers import FLAGS, is_number


def preparation(source: Any, call: str) -> Scaling:
    """The scaling of a `medley.statistics.Preparation`, or of the file that its `save` wrote.

    Raises RecipeError for another value, and BadData for a file that does not exist or holds no preparation.
    """
    scaling = getattr(source, "scaling", source)
    if isinstance(scaling, str | Path):
        try:
            scaling = Scaling.from_plain(json.loads(Path(scaling).expanduser().read_text(encoding="utf-8")))
            if scaling.coding is None or scaling.mean.shape != (1, len(scaling.coding.features)):
                raise ValueError("it has other columns than features")
            numbers = torch.stack([scaling.mean, scaling.deviation])
            if not torch.isfinite(numbers).all() or not (scaling.deviation > 0).all():
                raise ValueError("means are finite, and deviations above 0")
        except FileNotFoundError:
            raise BadData(
                f'{call}: there is no file {source}; a study with an analysis of kind = "prepare" writes it into its '
                "folder as prepared.json: put it next to the recipe, and at each node next to its copy of the recipe"
            ) from None
        except OSError as e:
            whose = "the user who runs this may not read it: change its owner, or its mode"
            raise BadData(f"{call}: {source}: {whose if isinstance(e, PermissionError) else e}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise BadData(f"{call}: {source} holds no preparation ({type(e).__name__}: {e})") from None
    if not isinstance(scaling, Scaling) or scaling.coding is None:
        raise RecipeError(
            f"{call}: prepared={source!r} is not a preparation; give the result of study.prepare(), or its file",
            "prepared",
        )
    return scaling


def refuse_special(scaling: Scaling, special: Sequence[str], call: str) -> None:
    """Raise RecipeError if the target or the client is a column of the preparation, whose columns are inputs."""
    assert scaling.coding is not None
    both = [name for name in special if name in scaling.coding.names]
    if both:
        raise RecipeError(
            f"{call}: prepared= would make an input of {both[0]!r}, the target or the client; prepare only the "
            "other columns",
            "prepared",
        )


def cells_of(texts: Sequence[str], levels: Sequence[str] | None) -> np.ndarray:
    """A text file's column: empty cells are missing. It is text if one cell is among the categories ``levels``, such as
    "01", or else True and False, or numbers, if all cells are.
    """
    kinds = {*texts} - {""}
    cells: dict[str, Any] = {text: text for text in kinds}
    if kinds.isdisjoint(levels or ()):
        if kinds <= FLAGS.keys():
            cells = {text: bool(FLAGS[text]) for text in kinds}
        elif all(map(is_number, kinds)):
            cells = {text: float(text) for text in kinds}
    return np.array([cells.get(text) for text in texts], object)
