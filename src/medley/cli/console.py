"""Output of the command line, and its exit codes."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import typer
from typer.core import TyperGroup

from ..runtime.terminals import on_terminal

DIVERGED = 1
REFUSED = 2
INTERRUPTED = 130


class Listed(TyperGroup):
    """A group of commands whose help has each one's whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands that are not hidden."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, c.get_short_help_str(limit=500)) for name, c in commands if c is not None and not c.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the words before the command."""
        _leave_unread(self, ctx)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name."""
        name, command, rest = super().resolve_command(ctx, args)
        _leave_unread(command, ctx)
        return name, command, rest


class Unread:
    """Leaves a value of the command line as it is."""

    def coerce(self, value: Any, **_: Any) -> Any:
        """The value."""
        return value


def _leave_unread(command: Any, ctx: Any) -> None:
    """While a shell completes a line, leave its values texts: importing what checks them takes longer than all else."""
    for parameter in command.get_params(ctx) if command is not None and ctx.resilient_parsing else ():
        if hasattr(parameter, "_runtime_param"):  # newer versions of typer have one
            parameter._runtime_param = Unread()


class Commands(Listed):
    """A group of commands that turns errors into one readable message and an exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name. An unknown one raises an error with the nearest, or the one meant."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as e:  # typer has a click of its own, or imports it: the class is not always the same
            if hasattr(e, "message") and args:
                from ..runtime.field_words import meant  # a table of other libraries' words, for errors only

                hint = meant(args[0], self.list_commands(ctx), in_recipe=True)
                e.message = f"No such command {args[0]!r}.{hint or ' medley -h lists all.'}"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was given. With ``--debug`` an error keeps its traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as e:
            say(str(e) or "stopped by Ctrl-C")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as e:
            if hasattr(e, "message") and hasattr(e, "ctx"):  # an error of typer about the command line
                _explain(e)
                raise
            if "medley.contract.errors" not in sys.modules:  # help, or an unknown command: nothing has run
                raise
            from ..contract.errors import Diverged, MedleyError

            is_expected = isinstance(e, MedleyError) or (isinstance(e, OSError) and e.errno != errno.EPIPE)
            if ctx.meta.get("debug") or not is_expected:  # a closed pipe is not an error
                raise
            from ..recipe.terms import in_terms

            say(f"Error: {in_terms(str(e))}")
            raise typer.Exit(DIVERGED if isinstance(e, Diverged) else REFUSED) from None


def _explain(e: Any) -> None:
    """Put into an error about the command line what to write instead."""
    if type(e).__name__ == "MissingParameter":
        e.message = getattr(e.param, "help", None) or e.message
    elif e.message.startswith("Got unexpected extra"):
        spaces = "KEY=VALUE has no spaces" if "=" in e.message else "text with spaces stands in quotes"
        e.message += f": {spaces}, and -h lists what the command takes"
    if not hasattr(e, "possibilities"):
        return
    from ..runtime.field_words import meant

    options = chain.from_iterable(p.opts for p in e.ctx.command.params)
    names = [option.removeprefix("--") for option in options if option.startswith("--")]
    # The option that is meant, or the table of a recipe that has it.
    hint = meant(e.option_name.lstrip("-"), names, in_recipe=True).replace("mean '", "mean '--")
    listed = f" It knows: --{', --'.join(names)}."
    e.message = f"No such option: {e.option_name}.{hint or listed}"
    e.possibilities = None


def show(renderable: Any) -> None:
    """Print to stdout: as wide as the terminal, or, without a terminal, wide enough for any table."""
    from .shown import Shown  # rich takes longer to import than help takes to print

    Shown(width=None if on_terminal(sys.stdout) else 200, soft_wrap=isinstance(renderable, str)).print(
        renderable, highlight=False, markup=False
    )
    sys.stdout.flush()  # a file, as under nohup, shows at once what a command prints before it waits


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[str] = (), title: str | None = None
) -> Any:
    """A `rich.table.Table`. Cells are texts, or `rich.text.Text`; columns named in ``right`` are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    out = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for k, name in enumerate(head):
        out.add_column(name, justify="right" if name in right else "left", no_wrap=k == 0)
    for row in rows:
        out.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return out


def pairs(title: str, values: Mapping[str, Any]) -> Any:
    """A table with a row for each key; values that are not text are written as JSON."""
    return table((title, ""), [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in values.items()])


def say(text: str) -> None:
    """Print a message to stderr."""
    from .shown import Shown

    Shown(stderr=True, soft_wrap=True).print(text, highlight=False, markup=False)
