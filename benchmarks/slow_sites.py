"""Four nodes of which one computes twenty times slower: the loss over all rows by the clock on the wall.

    python benchmarks/slow_sites.py --save benchmarks/slow_sites.json
    python benchmarks/slow_sites.py --only "FedNorton, late replies" --pictures .

TLS, proxy, keys and nodes are those of ``medley deploy init``. A node waits after each visit for the time that its work
takes at its speed: a visit of 40 steps takes a second, at the slow site 20. Each way runs for ``--seconds`` and is then
stopped. Whenever the run has saved a round, this script keeps the model, and measures it on the rows of all four sites
afterwards, the slow one's included. Needs the extra ``flower`` and nginx.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import medley as md
from medley import recipe
from medley.contract import pytree
from medley.report.timeline import timeline
from medley.storage import checkpoint, events

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.deployed import Deployment, started, until
from support.killed import rounds

BATCH, STEPS = 32, 40
SPEEDS = (1280.0, 1280.0, 1280.0, 64.0)
"""Row gradients a second of each node: a visit takes 1 s, at the last one 20 s."""

TARGETS = (1.0, 0.6, 0.4)
"""Values of the loss whose times are given."""

WAYS: dict[str, tuple[str, list[str]]] = {
    "FedAvg, everyone waits": ("FedAvg", []),
    "FedAvg, deadline 3 s": ("FedAvg", ["reply_policy.clock=wall", "reply_policy.deadline=3"]),
    "FedNorton, everyone waits": ("FedNorton", []),
    "FedNorton, a twentieth of the steps": ("FedNorton", ["pace.steps=[40,40,40,2]"]),
    "FedNorton, late replies": ("FedNorton", ["reply_policy.clock=wall", "reply_policy.deadline=3"]),
    "FedBuff, late replies": ("FedBuff", ["reply_policy.clock=wall", "reply_policy.replies=3"]),
}
"""Name -> method and settings. A deadline alone drops late replies, unless the method can use them."""


def table(kind: str, settings: list[str]) -> recipe.Recipe:
    """The digits on four sites with labels of their own mixture."""
    return recipe.Recipe(
        {
            "rules": {"exact": True},
            "problem": {"kind": "Softmax", "mu": 0.001},
            "data": {"name": "digits", "flatten": True},
            "partition": {"kind": "Dirichlet", "clients": len(SPEEDS), "alpha": 0.3},
            "pace": {"lr": 0.3, "batch": BATCH, "steps": STEPS},
            "run": {"rounds": 1000, "eval_every": 10},
            "methods": [{"kind": kind}],
        }
    ).with_settings(settings)


def node(speed: float, arguments: list[str]) -> None:
    """``medley node`` whose visits take the time of their work at this speed, in row gradients a second."""
    from medley.cli import app
    from medley.deploy.node import serve

    ours = serve.serve

    def slowly(*given: Any) -> Any:
        reply = ours(*given)
        time.sleep(sum(r.work for r in reply.receipts) / speed)
        return reply

    serve.serve = slowly
    sys.argv = ["medley", "node", *arguments]
    app()


def trace(folder: Path, keep: Path, process: Any, log: Path, seconds: float) -> list[tuple[float, Path]]:
    """Copies of the run's checkpoints with the seconds since its first exchange with all nodes."""
    until(lambda: first(folder) is not None, process, log)
    began = first(folder) or 0.0
    copies = list[tuple[float, Path]]()
    file = folder / checkpoint.FILE
    seen = 0.0
    while time.time() < began + seconds:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError):
            at = file.stat().st_mtime
            if at != seen:
                copy = keep / str(len(copies))
                copy.mkdir(parents=True)
                shutil.copy(file, copy)
                copies.append((at - began, copy))
                seen = at
        time.sleep(0.1)
    return copies


def first(folder: Path) -> float | None:
    """When the run sent its first request to train."""
    sent = [v["visits"] for v in events.read(folder) if v["event"] == "visits" and v["kind"] != "evaluate"]
    return min((at for at, _ in sent[0].values()), default=None) if sent else None


def losses(r: recipe.Recipe, copies: list[tuple[float, Path]]) -> list[tuple[float, float]]:
    """Seconds and the loss over all rows, Σ p_i f_i(x)."""
    method = r.methods()[0]
    fed = r.federation()
    drawn = fed.draw(r.seed)
    method = method.suited(drawn.problem.gives)
    evaluator = drawn.evaluator()
    out = list[tuple[float, float]]()
    for at, copy in copies:
        x0 = torch.zeros(drawn.problem.d, dtype=drawn.problem.dtype)
        classes = pytree.dataclasses_in(method.start(x0), method.memory)
        with contextlib.suppress(md.WireError):  # copied while it was replaced
            state = checkpoint.load(copy, classes)
            row = evaluator.evaluate(method.model(state["server"]), None, 1)
            out.append((round(at, 1), float(row["loss"])))
    return out


def one(server: Deployment, name: str, seconds: float, pictures: Path | None) -> dict[str, Any]:
    """One way, from its start until it is stopped."""
    kind, settings = WAYS[name]
    r = table(kind, settings)
    server.app(r)
    folder = server.folder / name.replace(" ", "-").replace(",", "")
    with contextlib.ExitStack() as stack:
        for k, speed in enumerate(SPEEDS):
            command = [sys.executable, str(Path(__file__).resolve()), f"--node={speed}"]
            command += [f"--superlink=127.0.0.1:{server.port}", f"--key=keys/node{k}", "--ca=keys/ca.crt"]
            command += ["--recipe=app/recipe.toml", f"--client={k}", f"--memory=memory{k}"]
            stack.enter_context(started(command, server.folder, server.env, f"node{k}"))
        command = ["medley", "deploy", "run", ".", "--superlink=medley", f"--save={folder}", "--timeout=120"]
        p, log = stack.enter_context(started(command, server.folder, server.env, folder.name))
        copies = trace(folder, server.folder / f"copies-{folder.name}", p, log, seconds)
        p.send_signal(signal.SIGINT)
        p.wait(60)
    curve = losses(r, copies)
    reached = {str(t): next((at for at, loss in curve if loss <= t), None) for t in TARGETS}
    if pictures is not None:
        (pictures / f"{folder.name}.svg").write_text(timeline(folder, 60.0), encoding="utf-8")
    load = round(os.getloadavg()[0], 1)
    return {"rounds": rounds(folder), "seconds to a loss of": reached, "loss at the end": curve[-1][1], "load": load}


def run(file: Path | None, only: str, seconds: float, pictures: Path | None) -> dict[str, Any]:
    """All ways in turn, or one."""
    out: dict[str, Any] = {"seconds": seconds, "speeds": SPEEDS, "cores": os.cpu_count()}
    if only and file is not None and file.exists():
        out |= json.loads(file.read_text(encoding="utf-8"))
    with (
        tempfile.TemporaryDirectory(prefix="medley-slow-") as tmp,
        Deployment.running(Path(tmp) / "server", keys=len(SPEEDS)) as server,
    ):
        for name in [w for w in WAYS if only in ("", w)]:
            out[name] = one(server, name, seconds, pictures)
            print(name, out[name], flush=True)
            if file is not None:
                file.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="put the figures into this JSON file")
    parser.add_argument("--only", default="", choices=("", *WAYS), help="one of the ways; the file keeps the others")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long each way runs")
    parser.add_argument(
        "--pictures", type=Path, help="a folder for drawings of who waited for whom in the first minute"
    )
    parser.add_argument("--node", type=float, help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.node:
        node(args.node, rest)
    elif rest:
        parser.error(f"unknown: {rest[0]}")
    else:
        run(args.save, args.only, args.seconds, args.pictures)


if __name__ == "__main__":
    sys.exit(main())
