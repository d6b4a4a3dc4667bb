"""Runs on a deployment in which a node is stopped, cut off, restarted or restored, or the SuperLink dies twice.

    python benchmarks/hardships.py --save benchmarks/hardships.json

TLS, proxy, keys and three nodes are those of ``medley deploy init``. Each run must have the x of a run in one process,
and must say within 10 s for whom it waits. One node is given a memory that is older than the server's: then the run
must end with a sentence that names the client, and go on with ``--readmit``. Needs the extra ``flower`` and nginx.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import medley as md

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from deployed_kills import waited

from support.deployed import Deployment, started, until
from support.killed import VICTIMS, rounds, table
from support.link import Link

ROUNDS = 8
CLIENT = 2
AWAY = 60.0
"""Seconds for which a node is stopped or cut off."""

EXPLAINED = 10.0
"""The most seconds until a run says for whom it waits."""

SLOWLY = 3000.0
"""Bytes a second of client 2's link while a reply is to be caught half uploaded."""

NAMED = re.compile(rf"waits for clients \[{CLIENT}\]|SuperLink at \S+ has ended|the server app, process \d+, has died")


@dataclass
class Trial:
    """A run in progress, and what is done to it.

    Attributes:
        server: the deployment
        link: the way of client 2 to the server
        folder: the run's
        process, log: of ``medley deploy run``
        explained: seconds until the run said what it waits for, after each hardship
    """

    server: Deployment
    link: Link
    folder: Path
    process: subprocess.Popen[bytes]
    log: Path
    explained: list[float]

    def processes(self, word: str) -> list[int]:
        """Processes of the deployment whose command line has this word, without the shells that start them again."""
        return [i for i, line in self.server.processes().items() if word in line and not line.startswith("bash")]

    def shells(self) -> list[int]:
        """The shell that starts client 2's node again."""
        word = f"--client={CLIENT} "
        return [i for i, line in self.server.processes().items() if word in line and line.startswith("bash")]

    def signal(self, ids: list[int], number: signal.Signals) -> None:
        """Send a signal to processes."""
        assert ids, self.server.logs()
        for i in ids:
            os.kill(i, number)

    def names(self, seconds: float) -> None:
        """Wait so long, and note when the run first says what it waits for."""
        began = time.monotonic()
        at = len(self.log.read_text())
        first = None
        while time.monotonic() < began + seconds:
            is_named = waited(self.folder) == [CLIENT] or NAMED.search(self.log.read_text(), at) is not None
            if first is None and is_named:
                first = time.monotonic() - began
            if first is not None and seconds <= EXPLAINED + 5:
                break
            time.sleep(0.1)
        assert first is not None, f"nothing was said in {seconds:g} s\n{self.log.read_text()}"
        self.explained.append(round(first, 1))

    @property
    def node(self) -> list[int]:
        return self.processes(f"--client={CLIENT} ")

    @property
    def memory(self) -> Path:
        return self.server.folder / f"memory{CLIENT}"


def stopped(t: Trial) -> None:
    """Stopped by SIGSTOP for a minute."""
    t.signal(ids := t.node, signal.SIGSTOP)
    t.names(AWAY)
    t.signal(ids, signal.SIGCONT)


def cut(t: Trial) -> None:
    """Cut off from the server for a minute."""
    t.link.cut()
    t.names(AWAY)
    t.link.mend()


def restarted(t: Trial) -> None:
    """Ended by SIGTERM, and started again after ten seconds."""
    t.signal(shells := t.shells(), signal.SIGSTOP)
    t.signal(t.node, signal.SIGTERM)
    t.names(EXPLAINED + 5)
    t.signal(shells, signal.SIGCONT)


def restored(t: Trial) -> None:
    """Killed; its memory was lost and is restored from a backup of that moment."""
    t.signal(shells := t.shells(), signal.SIGSTOP)
    t.signal(t.node, signal.SIGKILL)
    backup = t.memory.with_name("backup")
    shutil.copytree(t.memory, backup)
    t.names(EXPLAINED + 5)
    shutil.rmtree(t.memory)
    backup.rename(t.memory)
    t.signal(shells, signal.SIGCONT)


def superlink_twice(t: Trial) -> None:
    """The SuperLink is killed, and once more two rounds later."""
    for _ in range(2):
        _killed(t)


def replies(server: Deployment, whole: bool) -> int:
    """Replies in the SuperLink's database that nobody has taken: whole ones, or those of which a part is missing."""
    parts = """WITH RECURSIVE part(root, id) AS (
        SELECT message_id, message_id FROM message_res WHERE delivered_at = ''
        UNION SELECT root, child_id FROM part JOIN object_children ON parent_id = id
    ) SELECT min(is_available), max(is_available) FROM part JOIN objects ON object_id = id GROUP BY root"""
    with contextlib.closing(sqlite3.connect(f"file:{server.folder}/superlink.db?mode=ro", uri=True)) as db:
        found = db.execute(parts).fetchall()
    return sum(bool(least) for least, _ in found) if whole else sum(not least for least, _ in found)


def superlink_uploading_twice(t: Trial) -> None:
    """The SuperLink is killed while a reply of client 2's is announced and a part of it is not there; and once more."""
    for _ in range(2):
        t.link.rate = SLOWLY
        until(lambda: replies(t.server, whole=False), t.process, t.log)
        _killed(t)


def superlink_unread_twice(t: Trial) -> None:
    """The SuperLink is killed while it holds all replies and the server's app has read none; and once more."""
    for _ in range(2):
        done = rounds(t.folder)
        t.signal(apps := t.processes(VICTIMS["server's app"]), signal.SIGSTOP)
        while replies(t.server, whole=True) == 0:  # it had nothing under way: it goes on for a moment
            t.signal(apps, signal.SIGCONT)
            time.sleep(0.3)
            t.signal(apps, signal.SIGSTOP)
            time.sleep(2)
            assert t.process.poll() is None, t.log.read_text()
        t.signal(t.processes(VICTIMS["SuperLink"]), signal.SIGKILL)
        for app in apps:
            with contextlib.suppress(ProcessLookupError):
                os.kill(app, signal.SIGCONT)
        t.names(EXPLAINED + 5)
        until(lambda done=done: rounds(t.folder) >= min(done + 2, ROUNDS - 1), t.process, t.log)


def _killed(t: Trial) -> None:
    """Kill the SuperLink, and wait until two more rounds have ended."""
    t.signal(t.processes(VICTIMS["SuperLink"]), signal.SIGKILL)
    t.link.rate = None
    t.names(EXPLAINED + 5)
    done = rounds(t.folder)
    until(lambda: rounds(t.folder) >= min(done + 2, ROUNDS - 1), t.process, t.log)


HARDSHIPS = (stopped, cut, restarted, restored, superlink_twice, superlink_uploading_twice, superlink_unread_twice)


@contextlib.contextmanager
def begun(server: Deployment, link: Link, name: str, *more: str) -> Iterator[Trial]:
    """A run that has two rounds behind it."""
    folder = server.folder / name
    where = [] if more else [f"--save={folder}"]
    command = ["medley", "deploy", "run", ".", "--superlink=medley", *where, "--restarts=3", "--timeout=300", *more]
    with started(command, server.folder, server.env, f"{name}{len(more)}") as (p, log):
        until(lambda: rounds(folder) >= 2, p, log)
        yield Trial(server, link, folder, p, log, [])


def outdated(server: Deployment, link: Link, name: str) -> dict[str, Any]:
    """A node's memory is restored from a backup that is two rounds old: the run names it, and goes on without."""
    began = time.monotonic()
    with begun(server, link, name) as t:
        backup = t.memory.with_name("old")
        shutil.copytree(t.memory, backup)
        done = rounds(t.folder)
        until(lambda: rounds(t.folder) >= done + 2, t.process, t.log)
        t.signal(shells := t.shells(), signal.SIGSTOP)
        t.signal(t.node, signal.SIGKILL)
        shutil.rmtree(t.memory)
        backup.rename(t.memory)
        t.signal(shells, signal.SIGCONT)
        code = t.process.wait(300)
        text = " ".join(t.log.read_text().split())
    assert code == 2, text
    assert f"client {CLIENT}" in text, text
    with begun(server, link, name, f"--resume={server.folder / name}", f"--readmit={CLIENT}") as t:
        assert t.process.wait(600) == 0, t.log.read_text() + server.logs()
    reason = re.search(rf"client {CLIENT}[^;]*memory[^;]*", text)
    return {"exit code": code, "message": reason and reason[0][:300], "seconds": round(time.monotonic() - began, 1)}


def run(file: Path | None, only: str) -> dict[str, Any]:
    """All hardships in turn, or one.

    Raises AssertionError for a run with another x, or that did not say within 10 s what it waits for.
    """
    r = table("SCAFFOLD", ROUNDS)
    reference = r.federation().run(r.methods()[0], ROUNDS, transport=md.transports.Lossy(), **r.options())
    out: dict[str, Any] = {"rounds": ROUNDS, "cores": os.cpu_count()}
    if only and file is not None and file.exists():
        out |= json.loads(file.read_text(encoding="utf-8"))
    with contextlib.ExitStack() as stack:
        tmp = stack.enter_context(tempfile.TemporaryDirectory(prefix="medley-hardships-"))
        server = stack.enter_context(Deployment.running(Path(tmp) / "server", again=True))
        server.app(r)
        link = stack.enter_context(Link.to(server.port))
        for k in range(3):
            through = replace(server, port=link.port) if k == CLIENT else server
            stack.enter_context(through.node(k, f"--memory=memory{k}", again=True))
        for hardship in [h for h in HARDSHIPS if only in ("", h.__name__)]:
            began = time.monotonic()
            with begun(server, link, hardship.__name__) as t:
                hardship(t)
                assert t.process.wait(900) == 0, f"{t.log.read_text()}\n{server.logs()}"
            x = md.Result.load(t.folder).x
            assert torch.equal(reference.x, x), f"{hardship.__name__}: another x\n{server.logs()}"
            assert max(t.explained) <= EXPLAINED, f"{hardship.__name__}: {t.explained}\n{t.log.read_text()}"
            seconds = round(time.monotonic() - began, 1)
            load = round(os.getloadavg()[0], 1)
            out[hardship.__name__] = {"explained after": t.explained, "seconds": seconds, "x": "equal", "load": load}
            print(hardship.__name__, out[hardship.__name__], flush=True)
            if file is not None:
                file.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
        if only in ("", "outdated"):
            out["outdated"] = outdated(server, link, "outdated")
            print("outdated", out["outdated"], flush=True)
    if file is not None:
        file.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="put the figures into this JSON file")
    parser.add_argument("--only", default="", help="one of the hardships; the file keeps the others")
    args = parser.parse_args()
    run(args.save, args.only)


if __name__ == "__main__":
    sys.exit(main())
