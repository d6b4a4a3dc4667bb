"""The command that serves a client's data to a deployed run: node."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import Debug

if TYPE_CHECKING:
    from ..contract.errors import RecipeError

log = logging.getLogger("medley.node")

ALLOWED = "run.* pace.* methods.* codec.* reply_policy.* participation.*"
"""Keys that a server may change by default; not ``data``, which names files of this machine."""

Key = typer.Option(
    help="This node's private key: ssh-keygen -t ecdsa -b 384 -N '' -f node0. For --log, node0.pub will do."
)
Data = typer.Option(metavar="FILE.py", help="Your file with data(context); by default a share of the recipe's data.")
Number = typer.Option(min=0, help="This client's number; by default the number at the end of the key's name.")
Memory = typer.Option(metavar="DIR", help="The folder for the client's memories and the message that it answers.")
Serve = typer.Option(metavar="METHODS", help="The methods that you serve, FedNorton,SCAFFOLD; default all.")
Allow = typer.Option(
    metavar="KEYS",
    help="The settings of the recipe that the server may change, as patterns. For an approved recipe, give them with "
    "--approve.",
)
Approve = typer.Option(
    "--approve",
    help="Approve the recipe until the day of --until, and exit. From then on the node rejects other recipes.",
)
Until = typer.Option(metavar="YYYY-MM-DD", help="The last day of an approval.")
Log = typer.Option(
    "--log",
    metavar="show|verify|sent",
    help="Show or verify the record of what left the node, or show the numbers that it sent, and exit.",
)
Renew = typer.Option(metavar="OLDKEY", help="Hand the ledgers of your earlier key over to --key, and exit.")
RecipeFile = typer.Option("--recipe", metavar="RECIPE.toml", help="The recipe, the server's or your own copy.")
Keyring = typer.Option(metavar="FILE", help="A file of all clients' public keys, which sign the keys of secure sums.")
AllowCode = typer.Option(
    metavar="NAMES",
    help="Code of your own that the recipe and the server may name, mynet:Net,mynet:loss; default none.",
)
Epsilon = typer.Option(
    min=0, metavar="E", help="The ε that all studies together may spend on private rows; by default the recipe's."
)
Name = typer.Option(help="A name for this client, for example Bern; the server shows it on pages and in messages.")
Keep = typer.Option(
    metavar="AGE", help="Delete memories of runs that have sent no request for this long, for example 30d or 12h."
)


def node(
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The server.")] = None,
    key: Annotated[Path | None, Key] = None,
    ca: Annotated[Path | None, typer.Option(help="The certificates that vouch for the server, in PEM.")] = None,
    recipe_file: Annotated[Path, RecipeFile] = Path("recipe.toml"),
    data: Annotated[Path | None, Data] = None,
    client: Annotated[int | None, Number] = None,
    name: Annotated[str, Name] = "",
    memory: Annotated[Path, Memory] = Path("memory"),
    serve: Annotated[str | None, Serve] = None,
    allow: Annotated[str | None, Allow] = None,
    allow_code: Annotated[str, AllowCode] = "",
    keyring: Annotated[Path | None, Keyring] = None,
    epsilon: Annotated[float | None, Epsilon] = None,
    keep: Annotated[str | None, Keep] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Delete memories, all or by --keep, and exit.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read recipe and data, report them, and exit.")] = False,
    leave: Annotated[bool, typer.Option("--leave", help="Leave the run: answer once more, and exit.")] = False,
    approve: Annotated[bool, Approve] = False,
    until: Annotated[str | None, Until] = None,
    close: Annotated[bool, typer.Option("--close", help="Answer no more requests of the recipe, and exit.")] = False,
    show: Annotated[str | None, Log] = None,
    renew: Annotated[Path | None, Renew] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print a line for every message.")] = False,
    debug: Debug = False,
) -> None:
    """Serve one client's data to runs of a SuperLink, until you stop it.

    The node runs only the code that is installed here, and never code that it receives. Its data stays here.
    """
    from ..deploy.node import cleaning
    from ..deploy.node.fleet import FleetNode
    from ..deploy.node.owner import ledgers, own_folder
    from ..deploy.node.poll import Resident

    os.umask(0o077)  # only this user may read its memories
    age = None if keep is None else cleaning.seconds(keep)
    if clean:
        return _clean(memory, age or 0.0)
    if leave:
        return _leave(memory, _number(client, key))
    if show is not None:
        return _log(memory, client, key, show)
    if renew is not None:
        return _renew(memory, key, renew)
    if approve or close:
        return _approve(memory, key, recipe_file, data, until if approve else None, approve, allow or "")
    values = {"serve": serve, "keyring": keyring, "epsilon": epsilon, "name": name or None, "allow": allow, "key": key}
    texts = {k: str(v) for k, v in values.items() if v is not None}
    config: dict[str, str | int] = {"memory": str(memory), "allow": ALLOWED, **texts, "reader": _reader(data)}
    if check:
        config["partition-id"] = _number(client, key)
        return _report(recipe_file, data, config, allow_code, superlink, ca)
    if superlink is None or key is None or ca is None:
        raise _missing({"superlink": superlink, "key": key, "ca": ca})
    config["partition-id"] = _begin(recipe_file, keyring, key, verbose, client)
    app = _app(recipe_file, data, allow_code)
    ledgers(config)
    tidy = [partial(cleaning.clean, memory, age)] if age is not None else []
    Resident(FleetNode(superlink, key, ca), app, config, own_folder(config), *tidy).run()


def _app(recipe_file: Path, data: Path | None, code: str) -> Any:
    """The app of a training, or of a study."""
    from ..deploy.node.poll import data_function
    from ..flower import client_app, study_client_app

    read_data = None if data is None else data_function(data)
    if not _is_study(recipe_file):
        return client_app(recipe_file, read_data, code=code.replace(",", " ").split())
    if read_data is None:
        raise _missing({"data": None}, "a study uses your rows: a file whose data(context) returns a frame")
    return study_client_app(recipe_file, read_data)


def _is_study(recipe_file: Path) -> bool:
    from .. import recipe

    return "study" in recipe.load(recipe_file).tables


def _begin(recipe_file: Path, keyring: Path | None, key: Path, verbose: bool, client: int | None) -> int:
    """Begin the log, check the files, and warn of a key that others can read. Returns the client's number."""
    from ..logs import TextLines

    handler = logging.StreamHandler()
    handler.setFormatter(TextLines("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("medley").setLevel(logging.DEBUG if verbose else logging.INFO)
    _check(recipe_file, keyring)
    if os.name == "posix" and key.is_file() and key.stat().st_mode & 0o077:
        log.warning("%s can be read by others than its owner: chmod 600 %s", key, key)
    return _number(client, key)


def _report_connection(superlink: str | None, ca: Path | None, config: Mapping[str, str | int]) -> None:
    """Check what a node needs to connect, as far as it was passed, and say what was not."""
    from ..contract.errors import RecipeError
    from ..deploy.node.fleet import FleetNode
    from ..deploy.node.keys import private_key
    from ..deploy.node.owner import refuse_elsewhere
    from ..deploy.node.sums import read_keyring

    client = int(config["partition-id"])
    key = Path(str(config["key"])) if "key" in config else None
    if key is not None:
        private_key(key)
        refuse_elsewhere(config)
    if "keyring" in config and client not in read_keyring(Path(str(config["keyring"]))):
        raise RecipeError(f"--keyring {config['keyring']} has no key of client {client}: add its line", "keyring")
    values = {"superlink": superlink, "key": key, "ca": ca}
    absent = [f"--{name}" for name, value in values.items() if value is None]
    if superlink is not None and key is not None and ca is not None:
        FleetNode(superlink, key, ca).close()
        typer.echo("key, certificates and ledgers fit")
    else:
        typer.echo(f"not checked: {', '.join(absent)}; a node needs them to connect")


def _report(
    recipe_file: Path,
    data: Path | None,
    config: Mapping[str, str | int],
    code: str,
    superlink: str | None,
    ca: Path | None,
) -> None:
    """Print what the server will learn of a client's rows. Raises the error with which a run would be refused."""
    _check(recipe_file, None)
    _refuse_closed(recipe_file, config)
    if _is_study(recipe_file):
        _report_site(recipe_file, data, int(config["partition-id"]))
    else:
        _report_rows(recipe_file, data, config, code)
    _report_connection(superlink, ca, config)


def _refuse_closed(recipe_file: Path, config: Mapping[str, str | int]) -> None:
    """Raise RecipeError for a recipe that the node's owner closed, or has not approved."""
    from ..deploy.node import record
    from ..deploy.node.owner import ledgers_to_read

    key = config.get("key")
    approvals = record.Record(ledgers_to_read(config) / record.APPROVALS, None if key is None else Path(str(key)))
    record.refuse_unapproved(
        approvals, record.digest(recipe_file), int(config["partition-id"]), {}, str(config["reader"])
    )


def _reader(data: Path | None) -> str:
    """The digest of the file of --data, which an approval may name; empty without one."""
    from ..deploy.node import record

    return record.digest(data) if data is not None and data.is_file() else ""


def _report_rows(recipe_file: Path, data: Path | None, config: Mapping[str, str | int], code: str) -> None:
    """Build the client's model, then print the description of its rows that the server will get."""
    from ..contract.errors import BadData, MedleyError
    from ..deploy.node.app import ClientSide
    from ..deploy.node.poll import data_function
    from ..deploy.node.rows import report
    from ..deploy.protocol.reports import agreed
    from ..rows.coding import counting

    client = int(config["partition-id"])
    side = ClientSide(recipe_file, None if data is None else data_function(data), None, code.replace(",", " ").split())
    context: Any = SimpleNamespace(run_config={}, node_config=config)
    side.recipe_and_method(context)
    side.recipe.options()
    side.claims = False
    with counting() as counts:
        try:
            side.own_data(client, context)
        except MedleyError:
            raise
        except Exception as e:
            raise BadData(f"--data {data}: data(context) fails: {type(e).__name__}: {e}", client=client) from e
        lots = side.lots(context)
    client_report = report(lots, client)
    scenario = side.recipe.scenario(tuple(client_report.X.shape), client_report.classes)
    scenario.problem.ready(client_report.X.example(), client_report.y.example(), client_report.classes, None, "cpu")
    disagreement = agreed(client_report, side.recipe.limits())
    if disagreement:
        raise BadData(disagreement, client=client)
    kind = "regression" if client_report.classes is None else f"{client_report.classes} classes"
    typer.echo(f"client {client}: rows of shape {tuple(client_report.X.shape)}, {kind}; {recipe_file} fits")
    for what, names in (("columns", client_report.names.features), ("labels", client_report.names.labels)):
        typer.echo(f"{what}: {', '.join(names) if names else 'without names'}")
    if client_report.names.scaling:
        typer.echo(f"scaled by the numbers {client_report.names.scaling}")
    typer.echo("the server compares columns, labels and scaling with the other clients' before round 1")
    for k, task in enumerate(client_report.tasks):
        where = f"task {k}: " if len(client_report.tasks) > 1 else ""
        typer.echo(f"{where}{task.rows} training rows, {task.test} test rows, labels {list(task.labels)}")
    for column, (known, others, missing) in counts.items():
        typer.echo(f"column {column}: {known} rows with a known category, {others} with another, {missing} missing")


def _report_site(recipe_file: Path, data: Path | None, client: int) -> None:
    """Read the columns of the recipe's analyses as they do, then print a description of the site's rows."""
    from .. import recipe
    from ..deploy.node.poll import data_function
    from ..statistics.site import Site
    from ..statistics.study import check_site, gaps

    if data is None:
        raise _missing({"data": None}, "a study uses your rows: a file whose data(context) returns a frame")
    r = recipe.load(recipe_file)
    analyses = r.analyses()
    context = SimpleNamespace(run_config={}, node_config={"partition-id": client})
    site = Site.of(f"client {client}", data_function(data)(context), r.rules(), r.complete(), None)
    warning = gaps(analyses, site)
    check_site(analyses, site)
    typer.echo(
        f"client {client}: {site.n} rows; {site.dropped} are left out because a column in complete is missing there"
    )
    typer.echo(f"columns: {', '.join(map(str, site.frame.columns))}")
    typer.echo(f"{recipe_file} asks for {', '.join(a.name for a in analyses)}; {r.rules()!r} say what may leave")
    if warning:
        typer.echo(f"warning: {warning}")


def _check(recipe_file: Path, keyring: Path | None) -> None:
    """Raise RecipeError for files that cannot be used, and MedleyError for another version of flwr."""
    from ..contract.errors import RecipeError
    from ..deploy.node.sums import read_keyring
    from ..deploy.protocol.flwr_api import checked_version

    checked_version()
    if not recipe_file.is_file():
        raise RecipeError(f"--recipe {recipe_file}: no such file; give the server's recipe.toml", "recipe")
    if keyring is not None:
        read_keyring(keyring)


def _missing(values: Mapping[str, object], why: str = "a node needs --superlink, --key and --ca") -> RecipeError:
    from ..contract.errors import RecipeError

    missing = next(name for name, value in values.items() if value is None)
    return RecipeError(f"medley node: give --{missing} ({why})", missing)


def _number(client: int | None, key: Path | None) -> int:
    """The client's number: as given, or the number at the end of the key's name."""
    from ..contract.errors import RecipeError

    if client is not None:
        return client
    number = None if key is None else re.search(r"\d+$", key.stem)
    if number is None:
        name = "" if key is None else f" (the name of {key} does not end in a number)"
        raise RecipeError(f"say which client this is: --client 0{name}", "client")
    return int(number[0])


def _leave(memory: Path, client: int) -> None:
    """Tell the client's node, through a file, that its next answer is its last."""
    from ..contract.errors import RecipeError
    from ..deploy.node.owner import own_folder
    from ..deploy.node.serve import LEAVE

    folder = own_folder({"memory": str(memory), "partition-id": client})
    if not folder.is_dir():
        raise RecipeError(
            f"{memory} is not the memory folder of client {client}'s node; pass the right one as --memory", "memory"
        )
    (folder / LEAVE).touch(mode=0o600)
    typer.echo(f"client {client} leaves: its node answers the next request, and ends")


def _approve(
    memory: Path, key: Path | None, recipe_file: Path, data: Path | None, until: str | None, approve: bool, allow: str
) -> None:
    """Approve a recipe until a day, with the settings that the server may change in it, or close it.

    An approval with ``data`` holds for this file alone, with the queries in it, which are kept beside the record.
    """
    import datetime

    from ..contract.errors import RecipeError
    from ..deploy.node import record
    from ..deploy.node.owner import record_of

    if key is None:
        raise _missing(
            {"key": key}, "you sign the approval with your node's key, and every node with this key then follows it"
        )
    today = datetime.datetime.now(datetime.UTC).date()
    day = None
    try:
        day = None if not approve else datetime.date.fromisoformat(until or "")
    except ValueError:
        invalid = "" if until is None else f", not {until}"
        raise RecipeError(
            f"--approve: give the last day with --until, for example {today + datetime.timedelta(90)}{invalid}", "until"
        ) from None
    if day is not None and day < today:
        raise RecipeError(f"--approve --until {day}: this day is past (today is {today}, UTC); give a later one, or "
                          "--close to end the study now", "until")  # fmt: skip
    _check(recipe_file, None)
    digest = record.digest(recipe_file)
    approvals = record_of({"memory": str(memory), "key": str(key)}, record.APPROVALS)
    approvals.keep(recipe_file.read_bytes())
    what = "closed" if day is None else f"approved until {day}; the server may set {allow or 'nothing'}"
    rows = {}
    if data is not None and day is not None:
        if not data.is_file():
            raise RecipeError(f"--data {data}: no such file", "data")
        approvals.keep(data.read_bytes())
        rows["reader"] = record.digest(data)
        what = f"{what}; its rows are those of {data.name} (digest {rows['reader']})"
    ends = None if day is None else day.isoformat()
    approvals.add(recipe=digest, until=ends, allow=allow, what=f"the owner: {what}", **rows)
    typer.echo(f"{recipe_file} (digest {digest}) is {what}")


def _renew(memory: Path, key: Path | None, old: Path) -> None:
    from ..deploy.node.owner import renew

    if key is None:
        raise _missing({"key": key}, "the new key")
    folder = renew({"memory": str(memory), "key": str(key)}, old)
    typer.echo(f"the ledgers of {old} are now those of {key}, in {folder}")


def _log(memory: Path, client: int | None, key: Path | None, what: str) -> None:
    """Show the records of a node, or check every line of them."""
    from ..contract.errors import RecipeError
    from ..contract.text import shown
    from ..deploy.node import record
    from ..deploy.node.owner import ledgers_to_read

    if what not in ("show", "verify", "sent"):
        raise RecipeError(f"--log {what}: give show, verify or sent", "log")
    number = re.search(r"\d+$", "" if key is None else key.stem)
    at = int(number[0]) if client is None and number else client or 0  # where earlier versions kept the record
    config = {"memory": str(memory), "partition-id": at, **({} if key is None else {"key": str(key)})}
    folder = ledgers_to_read(config)
    for name in (record.LEFT, record.APPROVALS):
        log = record.Record(folder / name, key)
        n = 0
        deleted = 0
        for line in log.lines():
            n = n + 1
            answer = log.kept(line)
            deleted += bool(line.get("kept")) and answer is None
            if what == "show" or (answer is not None and what == "sent"):
                typer.echo("  ".join(f"{k} {shown(v)}" for k, v in line.items() if k != "before"))
            if what == "sent" and answer is not None:
                typer.echo("".join(f"    {line}\n" for line in record.numbers(answer)), nl=False)
        signed = "signed" if key is not None else "not checked for signatures; give --key"
        if log.path.exists():
            typer.echo(f"{log.path}: {n} lines, whole, {signed}; the last digest is {log.head()}")
            if log.torn():
                typer.echo(f"{log.path}, line {n + 1}: incomplete, not sent; the node removes it when it writes again")
            if deleted:
                typer.echo(
                    f"of {deleted} answers only the digest is left: they are no longer in {folder / record.SENT}"
                )
        elif name == record.LEFT:
            raise RecipeError(
                f"{log.path}: there is no such record; pass the node's memory folder as --memory, and its --key",
                "memory",
            )


def _clean(memory: Path, age: float) -> None:
    from ..deploy.node.cleaning import clean as delete_old

    deleted = delete_old(memory, age)
    typer.echo("\n".join(f"deleted {run}" for run in deleted) or f"{memory} holds no memories to delete")
