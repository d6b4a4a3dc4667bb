"""`medley deploy`: a recipe as a Flower app, with scripts that make keys and start a server; and the app's run.

The run's folder is on this machine. Its events show within a second that the server app has died; Flower notices after
a minute. Flower's own commands start and stop the app, each in its own process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from ..contract.errors import MedleyError, RecipeError
from ..datasets.ingest.prepared import preparation
from ..recipe import Recipe, load, loads
from ..recipe.user_code import modules, names, refuse_absent
from ..runtime.signals import handled
from ..storage import events, run_view
from ..storage.atomic import locked
from ..storage.result import Status
from ..storage.run_folder import holds_run
from .protocol import flwr_texts
from .protocol.agreement import own_version, settled

LOOK = 0.5
"""Seconds between two looks at the run's folder."""

ASK = 20.0
"""Seconds between two questions to Flower about a run that has not begun."""

SUPERLINK = 300.0
"""The most seconds that a SuperLink may take to come back, for a run that may restart."""

GONE = 3.0
"""Seconds without a listener at the SuperLink's address after which a run has lost its SuperLink."""

END = 10.0
"""The most seconds that a server app may take to end; one that waits for its SuperLink takes 7 s."""

SAVED = 60.0
"""The most seconds that saving the result may take after the run has ended."""


UNEQUAL = {"lr": (0.5, 0.2, 0.1), "epochs": (1, 2, 3)}
"""Paces of the clients of ``scripts/recipe.txt``, repeated from the first when there are more clients."""

SCRIPTS = (
    "keys.sh", "server.sh", "trial.sh", "nginx.conf", "server.service",
    "node/node.service", "node/node.slurm", "node/Dockerfile",
)  # fmt: skip
CONTAINERS = {
    "compose.yaml": "compose.yaml",
    "Dockerfile": "Dockerfile",
    ".dockerignore": "dockerignore",
    "node/.dockerignore": "dockerignore",
}
"""Files next to the app, and the texts of the container files, in the folder ``scripts`` of this package."""

APP = {
    "app/pyproject.toml": "app/pyproject.txt",
    **{f"app/{side}_app.py": f"{{kind}}/{side}_app.txt" for side in ("server", "client")},
}
"""The app's files, and their texts in that folder, for a training ("app") or a study."""

EXTRAS = "flower", "privacy", "secure", "statistics"
"""Medley's extras that the images of server and nodes have."""

OWN = "node/mydata.py"
"""An example of a client's own data."""


def init(folder: Path, recipe: Recipe | None = None, clients: int | None = None) -> list[Path]:
    """Write the app and the scripts into ``folder``. Returns the paths of the files.

    The recipe is checked first. ``clients`` is the number of nodes, by default its ``partition.clients``. Raises
    RecipeError if it can't be deployed, for example because lists in [pace] have other lengths, or if the folder is not
    empty.
    """
    scripts = resources.files(__package__) / "scripts"
    if recipe is None:
        r = loads((scripts / "recipe.txt").read_text(encoding="utf-8"))
        paces = {k: [v[i % len(v)] for i in range(clients or 3)] for k, v in UNEQUAL.items()}
        r = r.with_settings([f"pace.{k}={v}" for k, v in paces.items()])
    else:
        r = recipe
    if clients is not None and "partition" in r.tables:
        r = r.with_settings([f"partition.clients={clients}"])
    study = "study" in r.tables
    r.analyses() if study else r.methods()
    n = r.tables.get("partition", {}).get("clients") if clients is None else clients
    if not isinstance(n, int) or n < 1:
        raise RecipeError(
            f"{r.source}: the number of nodes, from --clients or partition.clients, is {n!r}; give a whole "
            "number, at least 1",
            "clients",
        )
    if not study:
        r.check_clients(n)
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError(f"{folder} is not empty; choose another folder")
    named = _named_files(r)
    names_used = names(r.tables)
    code = f" --allow-code {','.join(sorted(names_used))}" if names_used else ""
    data = "" if "data" in r.tables and not study else " --data node/mydata.py"
    each = (scripts / "compose_node.txt").read_text(encoding="utf-8")
    nodes = "".join(each.replace("@K@", str(k)) for k in range(n))
    words = {"@NODES@\n": nodes, "@CLIENTS@": str(n), "@CODE@": code, "@DATA@": data, "@VERSION@": own_version()}
    words |= {"@PYTHON@": "{}.{}".format(*sys.version_info)}

    def text(name: str) -> str:
        return reduce(lambda t, word: t.replace(*word), words.items(), (scripts / name).read_text(encoding="utf-8"))

    kind, mine = ("study", "study") if study else ("app", "node")
    files = {name: text(source.format(kind=kind)) for name, source in APP.items()}
    files |= dict.fromkeys(("app/recipe.toml", "node/recipe.toml"), _text(r))
    files |= {name: text(name) for name in SCRIPTS} | {name: text(source) for name, source in CONTAINERS.items()}
    files |= {OWN: text(f"{mine}/mydata.txt")}
    files |= dict.fromkeys(("constraints.txt", "node/constraints.txt"), _constraints())
    for source, name in named.items():
        files |= {f"{side}/{name}": source.read_text(encoding="utf-8") for side in ("app", "node")}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return [folder / name for name in files]


def _text(r: Recipe) -> str:
    """The recipe's file as its author wrote it, with comments, or its tables if they are not those of the file."""
    with suppress(OSError, RecipeError):
        if r.folder is not None and load(r.folder / r.source).tables == r.tables:
            return (r.folder / r.source).read_text(encoding="utf-8-sig")
    return r.dumps()


def _constraints() -> str:
    """This machine's versions of all packages that a node needs, as pip's constraints, for any build of torch."""
    pins = dict[str, str]()
    names = ["medley-fl"]
    while names:
        name = names.pop()
        with suppress(metadata.PackageNotFoundError):
            pins[name] = metadata.version(name).partition("+")[0]
            for line in metadata.requires(name) or ():
                extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
                package = re.sub(r"[._]", "-", re.split(r"[^\w.-]", line, maxsplit=1)[0]).lower()
                if package not in pins and (extra is None or (name == "medley-fl" and extra[1] in EXTRAS)):
                    names.append(package)
    del pins["medley-fl"]
    return "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))


def _named_files(r: Recipe) -> dict[Path, str]:
    """The files that a recipe names and that travel with it, by their paths next to it: modules and a preparation.

    Raises RecipeError for one that is missing or lies elsewhere, and BadData for a file that is no preparation.
    """
    refuse_absent(r.tables, r.folder, r.source)
    folder = r.folder or Path()
    out = {path: str(path.relative_to(folder)) for path in modules(r.tables, r.folder)}
    for table in ("clients", "data"):
        name = r.tables.get(table, {}).get("prepared", "")
        path = folder / name
        if name and not path.resolve().is_relative_to(folder.resolve()):
            raise RecipeError(
                f"{r.source}: {table}.prepared = {name!r} is not next to the recipe: put the file into "
                f"{folder.resolve()}, and write prepared = {path.name!r}; it is copied to the server and the nodes",
                f"{table}.prepared",
            )
        if name:
            preparation(path, f"[{table}] prepared")
            out[path] = name
    return out


@dataclass
class Deployment:
    """An app that `medley deploy init` wrote, and its SuperLink.

    Attributes:
        project: the folder that ``medley deploy init`` wrote
        superlink: the SuperLink's name in Flower's configuration; default Flower's own default
    """

    project: Path
    say: Callable[[str], object]
    superlink: str = ""
    _patience: float = field(default=0.0, init=False)
    """Seconds to wait for a SuperLink that is gone; 0 if the run may not restart."""

    def __post_init__(self) -> None:
        if not (self.project / "app" / "pyproject.toml").is_file():
            raise RecipeError(f"{self.project} has no app/pyproject.toml: give a folder that medley deploy init wrote")

    def run(
        self,
        save: Path,
        config: Mapping[str, Any],
        resume: bool = False,
        readmit: Sequence[int] = (),
        restarts: int = 0,
    ) -> Status:
        """Run the app to its end, and restart it after failures that may be temporary. Returns the run's status.

        Args:
            readmit: clients that lost their memory and start again without it
            restarts: how often the run restarts by itself after a failure
        """
        save = save.resolve()
        if resume and not (save / events.FILE).exists():
            raise RecipeError(f"there is no run in {save}: nothing to resume", "resume")
        if not resume and holds_run(save):
            raise RecipeError(f"{save} already holds a run; continue it with --resume", "save")
        if resume:
            try:
                with locked(save):  # now, and not when the app has started
                    config = {**_settings_before(save), **config}
            except RecipeError as e:
                raise RecipeError(f"{e}. The run goes on without its command: follow it by medley status {save}") from e
        _check(self.project / "app" / "recipe.toml", config)
        with _ended_by_signals():
            return self._run(save, config, resume, readmit, restarts)

    def _run(self, save: Path, config: Mapping[str, Any], again: bool, readmit: Sequence[int], left: int) -> Status:
        """Start and follow the app until it ends; after failures, restart it at most ``left`` times."""
        while True:
            began = time.time()
            before = _last_round(save)
            where = {"resume" if again else "save": str(save)}
            back = {"readmit": ",".join(map(str, readmit))} if readmit and again else {}
            self._patience = SUPERLINK if left else 0.0
            number = self._start({**config, **where, **back}, self._patience)
            try:
                status, final = self._follow(save, number, began)
            except BaseException:
                self._stop(save, number, began)
                raise
            if final or not left or status.outcome != "failed":
                return status
            left = left - 1
            again = (save / "flower.json").exists()
            if _last_round(save) > before:
                readmit = ()
            how = "continuing from the last checkpoint" if holds_run(save) else "starting again"  # e.g. a study
            self.say(f"{status}; {how}, {left} more {'restart' if left == 1 else 'restarts'} after this one")
            self._stop(save, number, began)

    def _flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", **os.environ}
        env["FLWR_HOME"] = str(self._home.resolve())
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
        name = [self.superlink] if self.superlink else []
        head = words[: 1 + (words[0] == "run")]
        tail = words[1 + (words[0] == "run") :]
        command = ["flwr", *head, *name, *tail]
        return subprocess.run(command, cwd=self.project, env=env, capture_output=True, text=True, timeout=300)

    @property
    def _server(self) -> str:
        """The script that started the server, or would: next to Flower's configuration, if that is ours."""
        beside = self._home.parent / "server.sh"
        return str(beside if beside.exists() else self.project / "server.sh")

    @property
    def _home(self) -> Path:
        """The folder of Flower's configuration: as set, or else the one that server.sh writes."""
        own = self.project / "flwr"
        return Path(os.environ.get("FLWR_HOME") or (own if own.is_dir() else Path.home() / ".flwr"))

    def _address(self) -> tuple[str, int] | None:
        """Host and port of the SuperLink in Flower's configuration; None if they are not there."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            links = tomllib.loads((self._home / "config.toml").read_text(encoding="utf-8"))["superlink"]
            host, port = links[self.superlink or links["default"]]["address"].rsplit(":", 1)
            return host.strip("[]"), int(port)
        return None

    def _is_listening(self) -> bool:
        """Whether something listens at the SuperLink's address, as far as one can tell: only a refusal says no."""
        address = self._address()
        if address is None:
            return True
        try:
            socket.create_connection(address, timeout=1.0).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True

    def _start(self, config: Mapping[str, Any], patience: float) -> str:
        """Start the app, if need be after the SuperLink has come back within ``patience`` seconds. Returns Flower's
        number of the run.
        """
        if self.superlink in ("", "medley") and self._address() is None:  # the name that server.sh gives it
            raise RecipeError(
                f"{self._home}/config.toml has no address of a server of Medley: start {self._server}; if another "
                "folder's server.sh runs, export FLWR_HOME=FOLDER/flwr; or name a SuperLink of your Flower "
                "configuration with --superlink",
                "superlink",
            )
        config_text = " ".join(f"{k}={_toml(v)}" for k, v in config.items())
        until = time.monotonic() + patience
        is_logged = False
        while True:
            why = flwr_texts.UNAVAILABLE
            if self._is_listening():
                done = self._flwr("run", "app", "--format", "json", "--run-config", config_text)
                number = flwr_texts.run_number(done.stdout)
                if number:
                    return number
                why = flwr_texts.reason(done.stdout + done.stderr)
            if not flwr_texts.is_unavailable(why):
                raise MedleyError(f"flwr run did not start the app: {why}")
            if time.monotonic() >= until:
                waited = f" for {patience:g} s" if patience else ""
                raise MedleyError(
                    f"{self._link} does not answer{waited}: start {self._server}, and repeat the command"
                    + ("" if patience else f"; with --restarts 1 it waits up to {SUPERLINK:g} s for the SuperLink")
                )
            if not is_logged:
                self.say(f"waiting for {self._link}, at most {patience:g} s: start {self._server}")
                is_logged = True
            time.sleep(1)

    @property
    def _link(self) -> str:
        address = self._address()
        return "the SuperLink" if address is None else "the SuperLink at {}:{}".format(*address)

    def _follow(self, save: Path, number: str, began: float) -> tuple[Status, bool]:
        """Print the run's events until it ends. Returns its status, and whether another start would fail in the same
        way. A server app that has died counts as a failure, and so does one without its SuperLink.
        """
        shown = 0
        last_request = time.monotonic()
        last_heard = time.monotonic()
        pid = None
        while True:
            gone = pid is not None and not run_view.alive(pid)
            fresh = [e for e in events.read(save) if e["at"] >= began]
            for e in fresh[shown:]:
                if run_view.is_logged(e) and e.get("event") != "end":
                    self.say(run_view.line(e, run_view.names(save)))
                if e.get("event") == "app":
                    pid = e.get("pid")
                if e.get("event") == "end":
                    if e["outcome"] != "failed" or any(known.get("event") == "start" for known in fresh):
                        _saved(save, pid, began)  # before its rounds a run that fails saves nothing
                    return self._explained(e, number), bool(e.get("final"))
            shown = len(fresh)
            if gone:
                return Status("failed", f"the server app, process {pid}, has died"), False
            if self._is_listening():
                last_heard = time.monotonic()
            elif time.monotonic() > last_heard + GONE:
                return self._without_link(save, number, began), False
            if pid is None and time.monotonic() > last_request + ASK:
                last_request = time.monotonic()
                state = self._state(number)
                ended = any(e.get("event") == "end" and e["at"] >= began for e in events.read(save))
                if flwr_texts.has_ended(state) and not ended:  # else the next look has the reason
                    reason = f"Flower ended the run before its first line ({state}): {self._log()}"
                    return Status("failed", reason), False
            time.sleep(LOOK)

    def _explained(self, end: Mapping[str, Any], number: str) -> Status:
        """A run's status by its last event. Flower interrupts an app if the SuperLink ends, and nobody's Ctrl-C did."""
        status = Status(end["outcome"], str(end.get("message", "")))
        if status.outcome != "interrupted":
            return status
        if flwr_texts.was_stopped(self._state(number)):
            return Status("interrupted", "somebody stopped the run at the SuperLink")
        return Status("failed", f"Flower interrupted the server app, because {self._link} ended or gave it up")

    def _without_link(self, save: Path, number: str, began: float) -> Status:
        """End the app of a SuperLink that is gone, which would wait for it. Returns the run's status."""
        waits = f"; `medley deploy run` waits for it, at most {self._patience:g} s" if self._patience else ""
        message = f"{self._link} has ended: start {self._server} again{waits}"
        self.say(f"{message}. The run's app ends")
        self._stop(save, number, began)
        events.Events(save, listen=False).add("end", outcome="failed", message=message)
        return Status("failed", message)

    def _log(self) -> str:
        """The last error in the SuperLink's log, or where to look for it."""
        path = Path(self._server).parent / "logs" / "superlink"
        with suppress(OSError):
            text = flwr_texts.last_error("\n".join(events.tail(path, 1 << 16)))
            return f"{text} ({path})" if text else f"see {path}"
        return "see the SuperLink's log"

    def _state(self, number: str) -> str:
        """Flower's status of the run; empty if the SuperLink does not answer."""
        if not self._is_listening():
            return ""
        return flwr_texts.run_state(self._flwr("list", "--run-id", number, "--format", "json").stdout)

    def _stop(self, save: Path, number: str, began: float) -> None:
        """End a server app that is still running, and remove its messages from the SuperLink."""
        pids = [e.get("pid", 0) for e in events.read(save) if e.get("event") == "app" and e["at"] >= began]
        running = [pid for pid in pids if run_view.alive(pid)]
        for end in (signal.SIGTERM, signal.SIGKILL) if hasattr(signal, "SIGKILL") else (signal.SIGTERM,):
            for pid in running:
                with suppress(OSError):
                    os.kill(pid, end)
            until = time.monotonic() + END
            while time.monotonic() < until and any(map(run_view.alive, running)):
                time.sleep(LOOK / 5)
            running = [pid for pid in running if run_view.alive(pid)]
        with suppress(subprocess.TimeoutExpired):
            if self._is_listening():
                self._flwr("stop", number)


def _settings_before(save: Path) -> dict[str, Any]:
    """The values that the run in ``save`` was started with, such as ``open``; none if its folder does not have them."""
    with suppress(OSError, ValueError, AttributeError):
        return dict(json.loads((save / "flower.json").read_text(encoding="utf-8")).get("config", {}))
    return {}


def _saved(save: Path, pid: int | None, began: float) -> None:
    """Wait until an ended run has its result on disk, or its server app is gone; at most `SAVED` seconds."""
    until = time.monotonic() + SAVED
    result = save / "result.json"
    while time.monotonic() < until and pid is not None and run_view.alive(pid):
        if result.exists() and result.stat().st_mtime >= began:
            return
        time.sleep(LOOK / 5)


def _last_round(save: Path) -> int:
    return max([int(e["round"]) for e in events.read(save) if e.get("event") == "round"], default=0)


def _toml(value: Any) -> str:
    """A value for ``flwr run --run-config``. Flower ends a text at its first double quote, escaped or not."""
    if not isinstance(value, str):
        return json.dumps(value)
    return '"' + r"\u0022".join(json.dumps(part, ensure_ascii=False)[1:-1] for part in value.split('"')) + '"'


def _check(path: Path, config: Mapping[str, Any]) -> None:
    """Raise what the server's app would raise for its recipe with the run's settings, before it is sent.

    Nothing is checked if the app has no such file, and no method if the server's code is not `init`'s: it may have one.
    """
    if path.exists():
        where = f"{path.parent.name}/{path.name}"
        try:
            text = path.read_text(encoding="utf-8-sig")
            r = settled(replace(loads(text, where), folder=path.parent), config)
        except MedleyError:
            raise
        except ValueError as e:  # not UTF-8, or quotes in the settings
            raise RecipeError(f"{where}: {e}") from None
        r.options()
        if "study" in r.tables:
            r.analyses()
        elif "methods" in r.tables and _is_as_written(path.parent / "server_app.py"):
            r.only().methods()


def _is_as_written(path: Path) -> bool:
    """Whether the server's code is that of `init`; also if there is none."""
    text = resources.files(__package__).joinpath("scripts", "app", "server_app.txt").read_text(encoding="utf-8")
    return not path.exists() or path.read_text(encoding="utf-8") == text


def _ended_by_signals() -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP end the command like Ctrl-C: they raise SystemExit, once, and the command stops the app."""

    def end(number: int, _: object) -> None:
        for name in both:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        raise SystemExit(128 + number)

    both = [n for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]
    return handled(dict.fromkeys(both, end))
