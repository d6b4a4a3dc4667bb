"""The board of a comparison: its runs, as a table, as figures and as an HTML report."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from .. import report
from ..contract.errors import RecipeError, WireError
from ..contract.explained import Explained
from ..contract.text import cell
from ..report.figures.paper import pdf
from ..report.numbers import COSTS
from ..report.table import NAMES, caption
from ..runtime.versions import install, is_installed
from ..storage import atomic
from ..storage.as_json import plain
from ..storage.result import Result, Status
from .plan import slot


@dataclass
class Board(Explained):
    """The runs of a comparison, one `Result` for each method and seed, grouped by method.

    Attributes:
        results: the runs
        base: the method from which differences are taken; default the first
        status: "finished", or "interrupted" if some runs were not made
        partition: the partition of the first seed, see `Federation.describe`; shown in the HTML report
        target: target values of metrics, by name. If runs reached them, methods are compared by the rounds, exchanges,
            bytes and virtual seconds that this took. Default: the target in the runs' settings
        target_over: number of last evaluations whose mean is compared with the target; default: the runs' own
        command: the command line that made the runs; shown in the report
    """

    results: list[Result]
    base: str | None = None
    status: Status = field(default_factory=lambda: Status("finished"))
    partition: Any = field(default=None, repr=False)
    target: Mapping[str, float] | None = None
    command: str | None = None
    target_over: int | None = None

    @property
    def _marked(self) -> list[Result]:
        return report.with_target(self.results, self.target, self.target_over)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict per method: means, spreads, 95 % intervals, the paired difference from ``base``, the status."""
        return report.rows(self._marked, self.base)

    def table(self) -> Any:
        """A table for the terminal, a `rich.table.Table`."""
        return report.table(self._marked, self.base)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """The table; a narrow console leaves out the status if all runs ended well, and then the last columns."""
        from rich.measure import Measurement

        table = self.table()
        free = options.update_width(10_000)
        least, drop = (3, -1) if all(r.status.ok for r in self.results) else (4, -2)
        least += any(str(column.header) == NAMES["epsilon"] for column in table.columns)
        while len(table.columns) > least and Measurement.get(console, free, table).maximum > options.max_width:
            del table.columns[drop]
        table.caption = caption(self._marked, [str(column.header) for column in table.columns])
        yield table

    def __repr__(self) -> str:
        """Methods, seeds and status in one line."""
        groups = report.by_method(self.results)
        return f"Board({', '.join(groups)}; seeds {sorted({r.seed for r in self.results})}; {self.status})"

    def _repr_html_(self) -> str:
        return report.html(self._marked, self.base)

    def frame(self, of: Literal["history", "clients"] = "history") -> Any:
        """History or clients of all runs as one pandas DataFrame; see `Result.frame`."""
        frames = [r.frame(of) for r in self.results]
        return sys.modules["pandas"].concat(frames, ignore_index=True)

    def __str__(self) -> str:
        """The table as text, as wide as the terminal."""
        from rich.console import Console

        console = Console(file=io.StringIO(), force_jupyter=False, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")

    def markdown(self) -> str:
        """The table in Markdown."""
        return report.markdown(self._marked, self.base)

    def paired(self, base: str | None = None, metric: str | None = None) -> list[report.Paired]:
        """Differences of every method from ``base``, seed by seed.

        Raises RecipeError for an unknown ``base``, and for a ``metric`` that no run has.
        """
        rows = chain.from_iterable([*r.history, r.summary] for r in self._marked)
        metrics = {"rounds", *COSTS}.union(*rows) - {"round", "task"}
        if metric is not None and metric not in metrics:
            raise RecipeError.unknown(metric, metrics, "paired(metric=...): this comparison")
        return report.paired(self._marked, base or self.base, metric)

    def save(
        self, path: str | Path, *, title: str | None = None, metric: str | None = None, over: str = "round"
    ) -> Path:
        """Write the board in the form that the ending of ``path`` names. Returns the path.

        - .html: a report with the title ``title``; default: its methods and data
        - .csv, .md, .tex: the table; .tex is LaTeX with booktabs
        - .svg, .pdf: the curves of ``metric`` over "round" (default), "bytes", "seconds" or "epsilon"; a PDF needs
          Matplotlib, the extra ``figures``. Default: the figure that runs are compared by
        - .json: all figures
        - a folder: every run, as `load` reads them

        Raises RecipeError for another ending, and for a metric that has no curve.
        """
        path = Path(path)
        kind = kind_of(path)
        if kind == "folder":
            methods = report.by_method(self.results)
            for name, runs in methods.items():
                for r in runs:
                    r.save(slot(path, name, r.seed, methods))
            return path
        if kind == ".html":
            return report.save(
                path,
                self.results,
                title=title,
                base=self.base,
                partition=self.partition,
                target=report.Goal.of(self.results, self.target, self.target_over),
                command=self.command,
            )
        if kind in (".svg", ".pdf"):
            curves = report.curve(self.results, metric, over, self.base)
            figure = pdf(**curves) if kind == ".pdf" else report.lines(**curves).encode()
            atomic.make_folder(path.parent)
            with atomic.replacing(path) as tmp:
                tmp.write_bytes(figure)
            return path
        if kind in (".md", ".tex"):
            atomic.make_folder(path.parent)
            atomic.write(path, self.markdown() if kind == ".md" else report.latex(self._marked, self.base))
            return path
        atomic.make_folder(path.parent)
        with atomic.replacing(path) as tmp, tmp.open("w", newline="", encoding="utf-8") as f:
            if kind == ".csv":
                rows = [{cell(k): cell(v) for k, v in row.items()} for row in self.rows]
                w = csv.DictWriter(f, list(dict.fromkeys(chain.from_iterable(rows))))
                w.writeheader()
                w.writerows(rows)
            else:
                json.dump(_finite(self._figures()), f, indent=1, default=plain, allow_nan=False)
        return path

    def _figures(self) -> dict[str, Any]:
        runs = [
            {
                "method": r.method,
                "seed": r.seed,
                "status": str(r.status),
                "summary": r.summary,
                "settings": r.settings,
                "history": r.history,
            }
            for r in self.results
        ]
        return {"status": str(self.status), "rows": self.rows, "runs": runs}

    @classmethod
    def load(cls, folder: str | Path, base: str | None = None) -> Board:
        """A board of all runs below ``folder``, without their networks. Raises WireError if there is none."""
        paths = sorted(Path(folder).glob("**/result.json"))
        if not paths:
            raise WireError(f"there is no run in {folder}: give a folder that compare(save=...) or run wrote")
        return cls([Result.load(f.parent, model=False) for f in paths], base)


FORMS = {
    ".html": "report",
    ".csv": "table",
    ".md": "table",
    ".tex": "table",
    ".svg": "curves",
    ".pdf": "curves",
    ".json": "figures",
}
"""What a file of each ending contains."""


def kind_of(path: Path) -> str:
    """The form in which to save a board: an ending of `FORMS`, or "folder".

    Raises RecipeError for another ending, and for a PDF if Matplotlib is not installed.
    """
    if path.suffix == ".pdf" and not is_installed("matplotlib"):
        raise RecipeError(f"{path}: a PDF needs Matplotlib, {install('figures')}; or save as .svg", "save")
    if path.suffix in FORMS:
        return path.suffix
    if path.suffix and not path.is_dir() and not path.suffix[1:].isdigit():
        listed = ", ".join(f"{ending} ({what})" for ending, what in FORMS.items())
        raise RecipeError(f"{path}: save a board as {listed}, or into a folder", "save")
    return "folder"


def _finite(value: Any) -> Any:
    """The same value with null instead of nan and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
