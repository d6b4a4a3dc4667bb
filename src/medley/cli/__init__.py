"""The command line: new, plan, run, compare, tune, predict, prepare, study, watch, status, report,
show, list, cite, docs, doctor, node, deploy.

Side: the machine of whoever types the command: a researcher, an operator, or with `medley node` a data owner. A
command writes only where you tell it to.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done; 1 a run diverged (in a
comparison: every run); 2 a setting, data or a file cannot be used; 130 Ctrl-C, after which finished runs are kept.
Slow imports, torch above all, happen in the functions that need them, so that help and completion appear at once.
"""

from __future__ import annotations

from ..runtime.terminals import quiet_stop

with quiet_stop():
    from typing import Annotated

    import typer

    from ..runtime.versions import version as own_version
    from .arguments import Debug
    from .console import Commands, Listed, show
    from .deploy import deploy_evaluate, deploy_gate, deploy_init, deploy_run, deploy_superlink
    from .docs import docs
    from .doctor import doctor
    from .folders import show_folder
    from .information import cite, list_all, make_report
    from .new import new
    from .node import node
    from .plan import plan
    from .predict import predict
    from .study import prepare, study
    from .train import compare, run, tune
    from .watch import status, watch


def _version(value: bool) -> bool:
    if value:
        show(f"medley {own_version()}")
        raise typer.Exit
    return value


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # frames around help cost as much time as all else of it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

deployment = typer.Typer(
    cls=Listed, no_args_is_help=True, rich_markup_mode=None, help="Run recipes on other machines, with Flower."
)


@app.callback()
def medley(
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning when the clients differ: in their data, their compute, their bandwidth and in time."""


for command in (new, plan, run, compare, tune, predict, prepare, study, watch, status):
    app.command()(command)
app.command("report")(make_report)
app.command("show")(show_folder)
app.command("list")(list_all)
app.command()(cite)
app.command()(docs)
app.command()(doctor)
app.command()(node)
app.add_typer(deployment, name="deploy")
deployment.command("init")(deploy_init)
deployment.command("run")(deploy_run)
deployment.command("evaluate")(deploy_evaluate)
deployment.command("gate", hidden=True)(deploy_gate)
passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
deployment.command("superlink", hidden=True, add_help_option=False, context_settings=passed_on)(deploy_superlink)
