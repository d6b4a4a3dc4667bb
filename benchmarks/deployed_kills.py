"""Runs on a deployment with a node, the server's app or the SuperLink killed at a random moment, to their end.

    python benchmarks/deployed_kills.py --count 30 --save benchmarks/sound.json
    python benchmarks/deployed_kills.py --count 30 --views kills.jsonl --write

The second command kills nodes alone, keeps each away until every view of the run names it, and measures how long that
takes, and how long until the node is asked again once it is back. A kill is a line of its file: started again, it goes
on after the last one.

TLS, proxy, keys and three nodes are those of ``medley deploy init``. Each run has the digest of a run of the same
method that nothing happened to. Needs the extra ``flower`` and nginx.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, dropwhile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from differential import report
from typer.testing import CliRunner

import medley as md
from medley.cli import app as cli

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from medley.storage import events
from support.deployed import Deployment, ports, started, until
from support.killed import METHODS, VICTIMS, deployment, ended, rounds, table

ROUNDS = 30
AWAY = 15.0
"""Rounds of a run with kills of nodes, and the most seconds that a view may take."""

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
VIEWS = ("the run's folder", "`medley status`", "`medley watch`", "`medley deploy run`")
HEAD = "| a node is killed; until | median | largest |\n|---|---|---|\n"


def kills(most: int, seed: int, methods: Sequence[str] = METHODS) -> Iterator[dict[str, Any]]:
    """So many kills at random moments, the methods and victims in turn; yields the counts after each run.

    Raises AssertionError at another digest.
    """
    rng = random.Random(seed)
    counts = Counter[str]()
    ran = Counter[str]()
    restarts = 0
    times = list[float]()
    loads = list[float]()
    for k, kind in enumerate(methods):
        share = most // len(methods) + (k < most % len(methods))
        with (
            tempfile.TemporaryDirectory(prefix="medley-kills-") as tmp,
            deployment(Path(tmp) / "server", kind) as server,
        ):
            reference = ended(server, "whole")
            turn = count(k)
            while ran[kind] < share:
                n = next(turn)
                victim = list(VICTIMS)[n % len(VICTIMS)]
                end = ended(server, f"run{n}", victim, rng.uniform(0, reference.seconds), rng)
                print(
                    f"{kind}, {victim}: {end.killed} killed, {end.restarts} restarts, {end.seconds:.0f} s", flush=True
                )
                assert end.digest == reference.digest, f"{kind}, {victim}:\n{end.log}\n{reference.log}\n{server.logs()}"
                counts[victim] += end.killed
                ran[kind] += end.killed
                restarts += end.restarts
                times.append(end.seconds)
                loads.append(os.getloadavg()[0])
                yield {
                    "kills": sum(counts.values()),
                    "by_process": dict(counts),
                    "by_method": dict(ran),
                    "restarts": restarts,
                    "seed": seed,
                    "seconds a run": [round(f(times), 1) for f in (min, statistics.median, max)],
                    "load": [round(f(loads), 1) for f in (min, max)],
                    "failures": 0,
                }


def watched_moments(folder: Path, log: Path, port: int, client: int) -> dict[str, float]:
    """Seconds until each view of a run names a client that is awaited, and since when."""
    began = time.time()
    moments = dict[str, float]()
    at = len(log.read_text())
    since = r"since \d\d:\d\d:\d\d"

    def status() -> bool:
        output = CliRunner().invoke(cli, ["status", str(folder)]).output
        return re.search(rf"(?m)^\W*{client}\W+awaited\W.*{since}", output) is not None

    def watch() -> bool:
        with urlopen(f"http://127.0.0.1:{port}/view.json") as answer:
            row = json.load(answer)["clients"][client]
        return row["standing"] == "awaited" and re.match(since, row["why"]) is not None

    warned = re.compile(rf"waits for clients \[(.*\D)?{client}(\D.*)?\], for \d+ s so far")
    looks = lambda: client in waited(folder), status, watch, lambda: warned.search(log.read_text(), at) is not None
    while len(moments) < len(looks) and time.time() < began + AWAY:
        for name, look in zip(VIEWS, looks, strict=True):
            if name not in moments and look():
                moments[name] = round(time.time() - began, 2)
        time.sleep(0.1)
    return moments


def waited(folder: Path) -> list[int]:
    """Whom a run waits for, as its folder has it."""
    awaited = [e["clients"] for e in events.read(folder) if e.get("event") == "awaited"]
    return list(awaited[-1]) if awaited else []


def node_kills(server: Deployment, name: str, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Kills of nodes in one run, until it ends; a line for each. Raises AssertionError where its x differs."""
    folder = server.folder / name
    port = ports()
    command = ["medley", "deploy", "run", ".", "--superlink=medley", f"--save={folder}", "--timeout=300"]
    page = ["medley", "watch", str(folder), f"--port={port}"]
    with (
        started(command, server.folder, server.env, name) as (p, log),
        started(page, server.folder, server.env, "watch"),
    ):
        until(lambda: rounds(folder) > 0 and server.answers(port), p, log)
        while p.poll() is None:
            time.sleep(rng.uniform(0, 3))
            if rounds(folder) > ROUNDS - 4:
                break
            k = rng.randrange(3)
            processes = sorted(
                (line.startswith("bash"), i) for i, line in server.processes().items() if f"--client={k} " in line
            )
            (_, node), (_, shell) = processes
            os.kill(shell, signal.SIGSTOP)  # it starts the node again
            os.kill(node, signal.SIGKILL)
            moments = watched_moments(folder, log, port, k)
            at = len((out := server.folder / f"node{k}.log").read_text())
            os.kill(shell, signal.SIGCONT)
            until(lambda at=at, out=out: len(answered(out.read_text()[at:])) == 2, p, log)  # type: ignore[misc]
            until(lambda: not waited(folder), p, log)
            back, requested = answered(out.read_text()[at:])
            yield {"client": k, **moments, "asked": round(requested - back, 2), "load": os.getloadavg()[0]}
        assert p.wait(600) == 0, f"{log.read_text()}\n{server.logs()}"
    r = table("SCAFFOLD", ROUNDS)
    reference = r.federation().run(r.methods()[0], ROUNDS, transport=md.transports.Lossy(), **r.options())
    assert torch.equal(reference.x, md.Result.load(folder).x), f"{name}: another x\n{server.logs()}"


def answered(log: str) -> list[float]:
    """When a node that was started connected, and when it was first asked, from its log; what there is of the two."""
    stamp = lambda text: datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").timestamp()
    back = re.search(r"(?m)^(\S+ \S+) INFO connected to", log)
    first = back and re.compile(r"(?m)^(\S+ \S+) DEBUG run \d+: \S+: pull and answer (\S+) s, push (\S+) s").search(
        log, back.end()
    )
    requested = [stamp(first[1]) - float(first[2]) - float(first[3])] if first else []
    return [stamp(back[1]), *requested] if back else []


def views(most: int, file: Path, seed: int) -> list[dict[str, Any]]:
    """So many kills of nodes, with those that the file has. Raises AssertionError for a run with another x."""
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    rng = random.Random(f"{seed} {len(lines)}")
    n = count()
    with contextlib.ExitStack() as stack:
        server = None
        while len(lines) < most:
            if server is None:
                tmp = stack.enter_context(tempfile.TemporaryDirectory(prefix="medley-kills-"))
                server = stack.enter_context(deployment(Path(tmp) / "server", "SCAFFOLD"))
                server.app(table("SCAFFOLD", ROUNDS))
            for line in node_kills(server, f"run{next(n)}", rng):
                lines.append(line)
                with file.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                print(line, flush=True)
    return lines


def written(lines: Sequence[dict[str, Any]]) -> str:
    """The table of the page, from lines of `views`."""
    what = {
        **{name: f"{name} names it and since when" for name in VIEWS},
        "asked": "it is asked again, once it is back",
    }
    rows = [(text, [line.get(name, AWAY) for line in lines]) for name, text in what.items()]
    return HEAD + "".join(f"| {text} | {statistics.median(s):.1f} s | {max(s):.1f} s |\n" for text, s in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--methods", default=",".join(METHODS), help="which of the methods, with commas between them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="put the counts into this JSON file")
    parser.add_argument("--views", type=Path, metavar="FILE", help="kill nodes, and measure until views name them")
    parser.add_argument("--write", action="store_true", help="with --views: put the table into docs/benchmarks.md")
    args = parser.parse_args()
    if args.views is not None:
        text = written(lines := views(args.count, args.views, args.seed))
        print(f"{len(lines)} kills\n{text}")
        if args.write:
            before, _, after = PAGE.read_text(encoding="utf-8").partition(HEAD)
            rest = "".join(dropwhile(lambda line: line.startswith("| "), after.splitlines(keepends=True)))
            PAGE.write_text(before + text + rest, encoding="utf-8")
        return
    began = time.monotonic()
    for result in kills(args.count, args.seed, args.methods.split(",")):
        report("deployed kills", result, began, args.save)


if __name__ == "__main__":
    sys.exit(main())
