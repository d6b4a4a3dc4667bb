"""The commands that read sites' tables on this machine: study, prepare."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import Debug, RecipeFile, Set
from .console import say, show
from .rows import Delimiter, table_of

Files = Annotated[
    list[Path],
    typer.Argument(
        help="A CSV or Parquet file for each site, named after it; or one file with --site.", metavar="FILE..."
    ),
]

SiteColumn = Annotated[
    str | None, typer.Option("--site", metavar="COLUMN", help="The column of each row's site, in a single file.")
]

RegisterFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where each site records what has left, for the next study on the same rows."),
]

CODE = re.compile(r"0\d+")
"""Texts that are codes, such as those of a ward, although they could be numbers."""


def study(
    recipe_file: RecipeFile,
    files: Files,
    site: SiteColumn = None,
    settings: Set = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each analysis here too, with tables in LaTeX.")
    ] = None,
    registers: RegisterFolder = None,
    delimiter: Delimiter = ",",
    debug: Debug = False,
) -> None:
    """Run a recipe's [[study]] on files of this machine, as medley deploy run does on the sites', and print it."""
    from .. import recipe
    from ..statistics import Study
    from ..statistics.files import save_last
    from ..statistics.study import gaps
    from ..storage.atomic import private

    r = recipe.load(recipe_file).with_settings(settings or [])
    analyses = r.analyses()
    frames = _frames(files, site, delimiter, f"medley study {recipe_file}")
    sites = Study(frames, r.rules(), r.complete(), r.options().get("secure"), registers=registers)
    for warning in filter(None, [gaps(analyses, site) for site in sites.sites.values()]):
        say(warning)
    folder = None if save is None else private(save)
    results = list[Any]()
    for analysis in analyses:
        results.append(sites.run(analysis))
        show(f"{len(results)} of {len(analyses)}: {analysis!r}\n")
        show(results[-1].summary() + results[-1].pooled_line() + "\n")
        name = "" if folder is None else save_last(folder, analysis, results)
        if name:
            say(f"{name} is for the next recipe: put it next to it")
    if folder is not None:
        show(f"saved in {folder}")


def prepare(
    files: Files,
    site: SiteColumn = None,
    steps: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="'NAME: STEPS'",
            help="A column and its steps, 'age: median, standardise' or 'ward: mode, encode'. May be repeated; by "
            "default every column gets steps by its type.",
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A column that is no input, such as the outcome. May be repeated."),
    ] = None,
    save: Annotated[Path, typer.Option(metavar="FILE.json", help="Where to write it.")] = Path("prepared.json"),
    registers: RegisterFolder = None,
    delimiter: Delimiter = ",",
    debug: Debug = False,
) -> None:
    """Fit a preprocessing of columns to files of this machine, and write it for recipes: data.prepared."""
    from ..statistics import Study
    from ..storage import atomic

    atomic.writable(save, "medley prepare --save")
    sites = Study(_frames(files, site, delimiter, "medley prepare"), registers=registers)
    prepared = sites.prepare(steps or None, leave_out=leave_out or ())
    show(prepared.summary())
    show(f"saved in {prepared.save(save)}")
    if steps is None:
        columns = json.dumps([*prepared.analysis.columns], ensure_ascii=False)
        show(f'in a recipe it is this analysis:\n\n[[study]]\nkind = "prepare"\ncolumns = {columns}')


def _frames(files: Sequence[Path], site: str | None, delimiter: str, call: str) -> dict[str, Any]:
    """A frame for each site: of each file by its name, or by a column of the only one."""
    from ..contract import BadData, RecipeError

    if site is not None and len(files) > 1:
        raise RecipeError(f"{call} --site {site}: give one file, or leave --site out: each file is a site", "site")
    frames = dict[str, Any]()
    for path in files:
        if path.stem in frames:
            raise RecipeError(f"{call}: two files are called {path.stem}; rename one, for its site is named after it")
        frames[path.stem] = _frame(path, site, delimiter, call)
    if site is None:
        return frames
    (frame,) = frames.values()
    if site not in frame.columns:
        raise RecipeError.unknown(site, [*map(str, frame.columns)], f"{call} --site")
    if frame[site].isna().any():
        row = int(frame[site].isna().argmax())
        raise BadData(f"{call} --site {site}: row {row} of {files[0]} has none; fill it in, or drop the row")
    return {str(name): rows.drop(columns=site) for name, rows in frame.groupby(site)}


def _frame(path: Path, site: str | None, delimiter: str, call: str) -> Any:
    """A file as a frame. Numbers that begin with 0, such as "01", are codes: they stay texts, and it is said.

    Raises BadData, naming row and column, for a text such as "NA" among numbers.
    """
    from ..contract import Place
    from ..datasets.ingest.prepared import cells_of
    from ..datasets.readers.csv import Texts
    from ..rows.numbers import MISSING, is_number, no_number
    from ..statistics.extra import needed

    pandas = needed("pandas")
    table = table_of(path, delimiter, {}, call)
    if not isinstance(table, Texts):
        return table.to_pandas()
    columns = dict[str, Any]()
    for name, texts in table.texts.items():
        kinds = {*texts} - {""}
        gaps = {text for text in kinds if text.lower() in MISSING and not is_number(text)}
        if gaps and name != site and kinds != gaps and all(map(is_number, kinds - gaps)):
            row = next(row for row, text in enumerate(texts) if text in gaps)
            raise no_number(texts[row], Place(str(path), row=row, column=name))
        codes = sorted(text for text in kinds if CODE.fullmatch(text))
        if codes and name != site:
            say(f"{path}: {name} is read as text, because {codes[0]!r} begins with 0, as a code does")
        columns[name] = cells_of(texts, texts if name == site else codes)
    return pandas.DataFrame(columns)
