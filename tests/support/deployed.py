"""A deployment for real on this machine: the scripts of ``medley deploy init``, processes, keys, ports."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import medley as md
from medley import recipe
from medley.deploy import commands

PATIENCE = 300
"""Seconds; a busy machine takes long to start processes."""


LAST_CLIENT = """
from dataclasses import replace
from medley import recipe
from medley.datasets import Dataset
from medley.deploy.node import rows

def last_client():
    r = recipe.load("app/recipe.toml")
    (lot,), d = rows.share(r, 2), r.federation().whole(r.seed)[0].data
    given = {"labels": d.labels, "features": d.features, "scaling": replace(d.scaling, shared=True)}
    return Dataset(lot.X, lot.y, lot.X_test, lot.y_test, classes=lot.classes, **given)
"""
"""For a node's own data function: client 2's rows of the recipe, as data of its own."""


def ports() -> int:
    """A port that is free, and so is the next one. Connections of others take none of this range for themselves."""
    while True:
        at = random.SystemRandom().randrange(12000, 32000)
        with socket.socket() as a, socket.socket() as b, contextlib.suppress(OSError):
            a.bind(("127.0.0.1", at))
            b.bind(("127.0.0.1", at + 1))
            return at


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    source = os.pathsep.join([str(Path(md.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ours = {"PATH": path, "PYTHONPATH": source, "FLWR_HOME": str(home)}
    return {**os.environ, **ours, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def until(condition: Callable[[], object], p: subprocess.Popen[bytes], log: Path, seconds: float = PATIENCE) -> None:
    """Wait until something is so, while a process lives."""
    end = time.monotonic() + seconds
    while not condition():
        assert p.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


@contextlib.contextmanager
def started(
    command: list[str], folder: Path, env: dict[str, str], name: str = "out"
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process, and the file that it writes to; at the end it ends, and everything that it started."""
    out = folder / f"{name}.log"
    with out.open("wb") as f:
        p = subprocess.Popen(command, cwd=folder, env=env, stdout=f, stderr=f, start_new_session=True)
    try:
        yield p, out
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGTERM)
            end = time.monotonic() + 15
            while time.monotonic() < end:
                p.poll()  # a zombie would be one of its group
                os.killpg(p.pid, 0)
                time.sleep(0.1)
            os.killpg(p.pid, signal.SIGKILL)
        p.wait()


def respawning(command: list[str]) -> list[str]:
    """A command that starts this one again a second after its end."""
    return ["bash", "-c", 'while :; do "$@"; sleep 1; done', "again", *command]


@dataclass
class Deployment:
    """A server with its proxy, and keys of nodes.

    Attributes:
        folder: the folder of the scripts
        port: the proxy's port; the SuperLink has the next one
        alive: the nodes of now that are not started again, each with its log
    """

    folder: Path
    port: int
    env: dict[str, str]
    alive: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path, keys: int = 3, again: bool = False) -> Iterator[Deployment]:
        """A server, and ``keys`` nodes that are registered.

        Args:
            folder: a new folder
            keys: the number of nodes
            again: whether a server that ends is started again
        """
        commands.init(folder, clients=keys)
        port = ports()
        self = cls(folder, port, {**environment(folder / "flwr"), "PORT": str(port), "LISTEN": "127.0.0.1"})
        subprocess.run(["./keys.sh", "127.0.0.1", str(keys)], cwd=folder, env=self.env, check=True)
        server = respawning(["./server.sh"]) if again else ["./server.sh"]
        with started(server, folder, self.env, "server") as (p, log):
            link = folder / "logs" / "superlink"
            until(lambda: link.exists() and "startup complete" in link.read_text() and self.answers(port), p, log)
            registrations = [self.flwr("supernode", "register", f"keys/node{k}.pub", "medley") for k in range(keys)]
            for t in registrations:
                assert t.wait(PATIENCE) == 0, t.args
            yield self

    def flwr(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["flwr", *args], cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL)

    @staticmethod
    def answers(port: int) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    def app(self, r: recipe.Recipe) -> None:
        """Another recipe, for the server and the nodes that are started from now on."""
        (self.folder / "app" / "recipe.toml").write_text(r.dumps())

    def processes(self) -> dict[int, str]:
        """Command lines of the processes of this deployment, by id; others have another FLWR_HOME.

        A worker of nginx has neither an environment nor the folder in its command line. Its parent has.
        """
        commands = dict[int, str]()
        workers = dict[int, tuple[int, str]]()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self.folder) in line or str(self.folder).encode() in (path / "environ").read_bytes():
                    commands[int(path.name)] = line
                elif line.startswith("nginx: worker"):
                    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                    workers[int(path.name)] = parent, line
        return commands | {i: line for i, (parent, line) in workers.items() if parent in commands}

    @contextlib.contextmanager
    def node(
        self, k: int, *more: str, key: str = "", again: bool = False
    ) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        command = ["medley", "node", f"--superlink=127.0.0.1:{self.port}", f"--key={key or f'keys/node{k}'}"]
        command += ["--ca=keys/ca.crt", "--recipe=app/recipe.toml", f"--client={k}", "--verbose", *more]
        command = respawning(command) if again else command
        with started(command, self.folder, self.env, f"node{k}") as running:
            watched = [] if again else [running]
            self.alive += watched
            try:
                yield running
            finally:
                self.alive = [node for node in self.alive if node not in watched]

    @contextlib.contextmanager
    def nodes(self, n: int = 3, again: bool = False) -> Iterator[list[tuple[subprocess.Popen[bytes], Path]]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.node(k, again=again)) for k in range(n)]

    @contextlib.contextmanager
    def begun(self, name: str, **config: object) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A run of the app, whose result goes to the folder ``name``."""
        config = {"timeout": 1500, **({} if "resume" in config else {"save": str(self.folder / name)}), **config}
        settings = " ".join(f"{k}={json.dumps(v)}" for k, v in config.items())
        with started(
            ["flwr", "run", "app", "medley", "--stream", "--run-config", settings], self.folder, self.env, name
        ) as p:
            yield p

    def result(self, name: str, **config: object) -> md.Result:
        """The result of a run to its end."""
        with self.begun(name, **config) as (p, log):
            self.wait(p, 1500)
        out = Path(str(config.get("resume", self.folder / name)))
        assert (out / "result.json").exists(), f"{log.read_text()[-3000:]}\n{self.logs()}"
        return md.Result.load(out)

    def wait(self, p: subprocess.Popen[bytes], seconds: float) -> None:
        """Wait for the end of a run. Fails at once if a node ends before: the server would wait for it."""
        end = time.monotonic() + seconds
        while p.poll() is None:
            for node, log in self.alive:
                assert node.poll() is None, f"{log.name} ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < end, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of all logs."""
        files = [*self.folder.glob("*.log"), *(self.folder / "logs").iterdir()]
        return "\n".join(f"--- {f.name}\n{f.read_text()[-2000:]}" for f in sorted(files))
