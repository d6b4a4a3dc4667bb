"""`medley deploy`: a recipe as a Flower app, with scripts that make keys and start a server; and the app's run.

The run's folder is on this machine. Its events show within a second that the server app has died; Flower notices after
a minute. Flower's own commands start and stop the app, each in its own process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any

from ..contract.errors import MedleyError, RecipeError
from ..recipe import Recipe, loads
from ..recipe.user_code import modules, names
from ..runtime.signals import handled
from ..storage import events, run_view
from ..storage.result import Status
from ..storage.run_folder import holds_run
from .protocol.agreement import own_version

LOOK = 0.5
"""Seconds between two looks at the run's folder."""

ASK = 20.0
"""Seconds between two questions to Flower about a run that has not begun."""

SUPERLINK = 300.0
"""The most seconds that a SuperLink may take to come back."""

SAVED = 60.0
"""The most seconds that saving the result may take after the run has ended."""


UNEQUAL = {"lr": (0.5, 0.2, 0.1), "epochs": (1, 2, 3)}
"""Paces of the clients of ``scripts/recipe.txt``, repeated from the first when there are more clients."""

SCRIPTS = "keys.sh", "server.sh", "trial.sh", "nginx.conf", "server.service", "node/node.service", "node/Dockerfile"
CONTAINERS = {"compose.yaml": "compose.yaml", "Dockerfile": "Dockerfile", ".dockerignore": "dockerignore"}
"""Files next to the app, and the texts of the container files, in the folder ``scripts`` of this package."""

APP = {
    "app/pyproject.toml": "app/pyproject.txt",
    **{f"app/{side}_app.py": f"{{kind}}/{side}_app.txt" for side in ("server", "client")},
}
"""The app's files, and their texts in that folder, for a training ("app") or a study."""

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
    names_used = names(r.tables)
    code = f" --allow-code {','.join(sorted(names_used))}" if names_used else ""
    data = " --data node/mydata.py" if study else ""
    each = (scripts / "compose_node.txt").read_text(encoding="utf-8")
    nodes = "".join(each.replace("@K@", str(k)) for k in range(n))
    words = {"@NODES@\n": nodes, "@CLIENTS@": str(n), "@CODE@": code, "@DATA@": data, "@VERSION@": own_version()}

    def text(name: str) -> str:
        return reduce(lambda t, word: t.replace(*word), words.items(), (scripts / name).read_text(encoding="utf-8"))

    kind, mine = ("study", "study") if study else ("app", "node")
    files = {name: text(source.format(kind=kind)) for name, source in APP.items()}
    files |= {f"{side}/recipe.toml": r.dumps() for side in ("app", "node")}
    files |= {name: text(name) for name in SCRIPTS} | {name: text(source) for name, source in CONTAINERS.items()}
    files |= {OWN: text(f"{mine}/mydata.txt")}
    for source in modules(r.tables, r.folder):
        files |= {f"{side}/{source.name}": source.read_text(encoding="utf-8") for side in ("app", "node")}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return [folder / name for name in files]


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
            config = {**_settings_before(save), **config}
        with _ended_by_signals():
            return self._run(save, config, resume, readmit, restarts)

    def _run(self, save: Path, config: Mapping[str, Any], again: bool, readmit: Sequence[int], left: int) -> Status:
        """Start and follow the app until it ends; after failures, restart it at most ``left`` times."""
        while True:
            began = time.time()
            before = _last_round(save)
            where = {"resume" if again else "save": str(save)}
            back = {"readmit": ",".join(map(str, readmit))} if readmit and again else {}
            number = self._start({**config, **where, **back})
            try:
                status, final = self._follow(save, number, began)
            except BaseException:
                self._stop(save, number, began)
                raise
            if final or not left or not self._ended_by_fault(status, number):
                return status
            left = left - 1
            again = (save / "flower.json").exists()
            if _last_round(save) > before:
                readmit = ()
            how = "continuing from the last checkpoint" if holds_run(save) else "starting again"  # e.g. a study
            self.say(f"{status}; {how}, {left} restarts left")
            self._stop(save, number, began)

    def _flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", **os.environ}
        if (self.project / "flwr").is_dir():
            env.setdefault("FLWR_HOME", str((self.project / "flwr").resolve()))
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
        name = [self.superlink] if self.superlink else []
        head = words[: 1 + (words[0] == "run")]
        tail = words[1 + (words[0] == "run") :]
        command = ["flwr", *head, *name, *tail]
        return subprocess.run(command, cwd=self.project, env=env, capture_output=True, text=True, timeout=300)

    def _start(self, config: Mapping[str, Any]) -> str:
        """Start the app, once the SuperLink answers. Returns Flower's number of the run."""
        config_text = " ".join(f"{k}={_toml(v)}" for k, v in config.items())
        until = time.monotonic() + SUPERLINK
        is_logged = False
        while True:
            done = self._flwr("run", "app", "--format", "json", "--run-config", config_text)
            match = re.search(r'"run-id":\s*"(\d+)"', done.stdout)
            if match:
                return match[1]
            why = _sentence(done.stdout + done.stderr)
            if time.monotonic() > until or not re.search("nreachable|onnect", why):
                raise MedleyError(f"flwr run did not start the app: {why}")
            if not is_logged:
                self.say(f"waiting for the SuperLink: {why}")
                is_logged = True
            time.sleep(3)

    def _follow(self, save: Path, number: str, began: float) -> tuple[Status, bool]:
        """Print the run's events until it ends. Returns its status, and whether another start would fail in the same
        way. A server app that has died counts as a failure.
        """
        shown = 0
        last_request = time.monotonic()
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
                    _saved(save, pid, began)
                    return Status(e["outcome"], str(e.get("message", ""))), bool(e.get("final"))
            shown = len(fresh)
            if gone:
                return Status("failed", f"the server app, process {pid}, has died"), False
            if pid is None and time.monotonic() > last_request + ASK:
                last_request = time.monotonic()
                state = self._state(number)
                if state and "finished" in state:
                    reason = f"Flower ended the run before its first line ({state}): see Flower's log"
                    return Status("failed", reason), False
            time.sleep(LOOK)

    def _ended_by_fault(self, status: Status, number: str) -> bool:
        """Whether a run failed, or was interrupted though nobody stopped it: Flower does so if the SuperLink ends."""
        return status.outcome == "failed" or (status.outcome == "interrupted" and "stopped" not in self._state(number))

    def _state(self, number: str) -> str:
        """Flower's status of the run; empty if the SuperLink does not answer."""
        done = self._flwr("list", "--run-id", number, "--format", "json")
        match = re.search(r'"status":\s*"([^"]+)"', done.stdout)
        return match[1] if match else ""

    def _stop(self, save: Path, number: str, began: float) -> None:
        """Stop a server app that is still running, and remove its messages from the SuperLink."""
        for e in events.read(save):
            if e.get("event") == "app" and e["at"] >= began and run_view.alive(pid := e.get("pid", 0)):
                with suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
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


def _sentence(text: str) -> str:
    """The error in Flower's output; if there is none, the first line with content."""
    lines = [re.sub(r"[│╭╮╰╯─]|\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    try:
        return str(json.loads(text)["error-message"]).strip().splitlines()[0][:300]
    except (ValueError, KeyError, TypeError, IndexError):
        at = next((k for k, line in enumerate(lines) if re.match(r"Error\b", line)), None)
        if at is not None and (sentence := " ".join(" ".join(lines[at:]).removeprefix("Error").lstrip(": ").split())):
            return sentence[:300]
        return next((line[:300] for line in lines if len(line) > 8), text.strip()[-300:])


def _ended_by_signals() -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP end the command like Ctrl-C: they raise SystemExit, once, and the command stops the app."""

    def end(number: int, _: object) -> None:
        for name in both:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        raise SystemExit(128 + number)

    both = [n for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]
    return handled(dict.fromkeys(both, end))
