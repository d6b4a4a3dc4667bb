"""Kills in a deployment: a node, the server's app or the SuperLink, at a moment of a run that goes on afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import medley as md
from medley import recipe
from medley.storage import events

from .deployed import Deployment, started, until

VICTIMS = {"node": "medley node", "server's app": "flwr-serverapp", "SuperLink": "medley deploy superlink"}
"""A process that is killed -> a word of its command line."""

METHODS = ("SCAFFOLD", "FedNorton", "CFLAG.joint", "SHED")


def table(kind: str, rounds: int = 4) -> recipe.Recipe:
    """A method on three clients' shares of the digits, evaluated every second round; CFLAG.joint on two tasks."""
    tasks = {"stream": {"kind": "Split", "tasks": 2, "mode": "class"}, "replay": {"kind": "Ring", "capacity": 20}}
    rounds = rounds // 2 if kind == "CFLAG.joint" else rounds  # of each task
    return recipe.Recipe(
        {
            **(tasks if kind == "CFLAG.joint" else {}),
            "rules": {"exact": True},  # so many runs of one recipe would be refused by their count
            "problem": {"kind": "Softmax", "mu": 0.01},
            "data": {"name": "digits", "flatten": True, "train": 300},
            "partition": {"kind": "IID", "clients": 3},
            "pace": {"lr": 0.1, "batch": "full"},
            "run": {"rounds": rounds, "eval_every": 2},
            "methods": [{"kind": kind}],
        }
    )


@contextlib.contextmanager
def deployment(folder: Path, kind: str) -> Iterator[Deployment]:
    """A server and three nodes. Each is started again a second after its end, as systemd does."""
    with Deployment.running(folder, again=True) as deployed:
        deployed.app(table(kind))
        with deployed.nodes(again=True):
            yield deployed


@dataclass(frozen=True)
class Ended:
    """The end of a run.

    Attributes:
        digest: of its result
        seconds: from the start of the server's app
        killed: the number of processes that were killed
        restarts: the number of times that the server's app was started again
        log: the lines of ``medley deploy run``
    """

    digest: str
    seconds: float
    killed: int
    restarts: int
    log: str


def ended(
    deployed: Deployment,
    name: str,
    victim: str = "",
    after: float = 0.0,
    rng: random.Random | None = None,
    done: int = 0,
) -> Ended:
    """A run to its end.

    Args:
        deployed: the deployment
        name: of the run's folder
        victim: a key of `VICTIMS`; empty for a run that nothing happens to
        after: seconds to the kill from the start of the server's app, or from the end of ``done`` rounds if later
        rng: chooses among several such processes; default the first
        done: rounds that end before the kill
    """
    folder = deployed.folder / name
    command = [
        "medley",
        "deploy",
        "run",
        ".",
        "--superlink=medley",
        f"--save={folder}",
        "--restarts=3",
        "--timeout=300",
    ]
    with started(command, deployed.folder, deployed.env, name) as (p, log):
        until(lambda: _apps(folder), p, log)
        began = time.monotonic()
        killed = 0
        if victim:
            until(lambda: rounds(folder) >= done, p, log)
            time.sleep(after)
            all_ = deployed.processes().items()
            victims = sorted(i for i, line in all_ if VICTIMS[victim] in line and not line.startswith("bash"))
            if victims and p.poll() is None:
                os.kill((rng or random.Random(0)).choice(victims), signal.SIGKILL)
                killed = 1
        code = p.wait(600)
        seconds = time.monotonic() - began
        assert code == 0, f"{log.read_text()}\n{deployed.logs()}"
    return Ended(md.Result.load(folder).digest, seconds, killed, _apps(folder) - 1, log.read_text())


def _apps(folder: Path) -> int:
    """The number of starts of the server's app."""
    return sum(e.get("event") == "app" for e in events.read(folder))


def rounds(folder: Path) -> int:
    """The number of rounds that have ended."""
    return max((int(e["round"]) for e in events.read(folder) if e.get("event") == "round"), default=0)
