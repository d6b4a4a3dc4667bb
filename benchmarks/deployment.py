"""Seconds and processor time that an exchange takes in a deployment on this machine.

    python benchmarks/deployment.py --clients 3 --rounds 40
    python benchmarks/deployment.py --clients 3 --rounds 3 --stock
    python benchmarks/deployment.py --hidden 3000 --rounds 5     # a model of 9.2 million numbers, 37 MB
    sudo python benchmarks/deployment.py --hidden 3450 --rounds 4 --mbit 100 --cut    # over a slow link that is cut
    sudo python benchmarks/deployment.py --hidden 7000 --rounds 3 --mbit 100 --cut --save benchmarks/links.json

Needs the extra ``flower`` and nginx. FedAvg and FedNorton have one exchange a round, and the model is evaluated before
the first round and after the last only. Wall time depends on the load of the machine, which is printed; processor time
hardly does.

With ``--mbit`` all runs in a network namespace of its own, in which a token bucket of the kernel (htb) holds what goes
from all nodes to the server to this rate, and what comes back too. With ``--cut`` all connections of the nodes end once
in the middle of the replies; the bytes that passed the bucket then say what was sent again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import medley as md
from medley import recipe
from support.deployed import Deployment, ports, started

TICK = os.sysconf("SC_CLK_TCK")

KINDS = {
    "medley deploy superlink": "SuperLink",
    "flwr-serverapp": "server's app",
    "nginx": "nginx",
    "medley node": "nodes",
    "flower-supernode": "SuperNodes",
    "flwr-clientapp": "clients' apps",
}
"""A word of the command line -> a name."""


def table(clients: int, rounds: int, hidden: int, method: str) -> recipe.Recipe:
    """A method on the digits in float32, one step a round: a softmax model, or a network with two hidden layers."""
    network = {"kind": "Network", "model": "mlp", "hidden": [hidden, hidden]}
    return recipe.Recipe(
        {
            "problem": network if hidden else {"kind": "Softmax", "mu": 0.001},
            "data": {"name": "digits", "flatten": True},
            "partition": {"kind": "IID", "clients": clients},
            "pace": {"lr": 0.01, "steps": 1, "batch": 32},
            "run": {"rounds": rounds, "eval_every": rounds, "dtype": "float32"},
            "methods": [{"kind": method}],
        }
    )


def tally(server: Deployment) -> dict[str, tuple[float, float]]:
    """Seconds of processor time, with children that have ended, and peak memory in MiB, by kind of process."""
    spent: dict[str, tuple[float, float]] = {}
    for number, command in server.processes().items():
        with contextlib.suppress(OSError, IndexError, ValueError):
            kind = next((name for word, name in KINDS.items() if word in command.partition("--")[0]), None)
            if kind is None or command.startswith("bash"):
                continue
            path = Path("/proc") / str(number)
            times = [int(v) for v in (path / "stat").read_text().rpartition(")")[2].split()[11:15]]
            status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines() if ":" in line)
            seconds = sum(times) / TICK if kind == "SuperNodes" else sum(times[:2]) / TICK
            before = spent.get(kind, (0.0, 0.0))
            spent[kind] = before[0] + seconds, max(before[1], int(status["VmHWM"].split()[0]) / 1024)
    return spent


def within_namespace() -> None:
    """Begin this script anew in a network namespace with nothing but a loopback."""
    os.environ["MEDLEY_NAMESPACE"] = "1"
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
    os.execvp(command[0], command)


def limited(port: int, mbit: float) -> None:
    """Hold the loopback's packets to this port, and those from it, to a rate each."""
    tc = ["tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "10", "r2q", "10000"]
    subprocess.run(tc, check=True)
    rates = {10: "10gbit", 20: f"{mbit}mbit", 30: f"{mbit}mbit"}
    for number, rate in rates.items():
        tc = ["tc", "class", "add", "dev", "lo", "parent", "1:", "classid", f"1:{number}", "htb", "rate", rate]
        subprocess.run([*tc, "burst", "256k", "quantum", "65536"], check=True)
    for number, side in ((20, "dport"), (30, "sport")):
        tc = ["tc", "filter", "add", "dev", "lo", "protocol", "ip", "parent", "1:", "prio", "1", "u32"]
        subprocess.run([*tc, "match", "ip", side, str(port), "0xffff", "flowid", f"1:{number}"], check=True)


def passed() -> tuple[float, float]:
    """MB that went up and down through the buckets."""
    text = subprocess.run(["tc", "-s", "class", "show", "dev", "lo"], check=True, capture_output=True, text=True).stdout
    counts = dict(re.findall(r"class htb 1:(\d+) .*?\n Sent (\d+) bytes", text))
    return int(counts["20"]) / 1e6, int(counts["30"]) / 1e6


def cut(server: Deployment) -> None:
    """End all connections of the nodes: nginx's master begins its worker anew."""
    for number, command in server.processes().items():
        if command.startswith("nginx: worker"):
            os.kill(number, signal.SIGKILL)


def between(log: str) -> list[float]:
    """Seconds between the ends of a node's answers to ``train``, from its log."""
    stamps = re.findall(r"^(\S+ \S+) DEBUG run \d+: query.train", log, re.MULTILINE)
    at = [datetime.datetime.strptime(s, "%Y-%m-%d %H:%M:%S,%f").timestamp() for s in stamps]
    return [b - a for a, b in itertools.pairwise(at)]


def options(words: list[str]) -> list[str]:
    """The words of a command line without ``--save FILE``."""
    at = words.index("--save") if "--save" in words else len(words)
    return words[:at] + words[at + 2 :]


def save(path: Path, run: dict[str, Any]) -> None:
    """Put a run into the file, in the place of an earlier one of its command."""
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    kept = [r for r in runs if r["command"] != run["command"]]
    path.write_text(json.dumps({"runs": [*kept, run]}, indent=1) + "\n", encoding="utf-8")


def rounded(values: Iterable[float], digits: int = 0) -> list[float]:
    return [round(v, digits) if digits else round(v) for v in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=0)
    parser.add_argument("--method", default="FedAvg", help="with one exchange a round")
    parser.add_argument("--stock", action="store_true", help="Flower's SuperNodes in the place of medley node")
    parser.add_argument("--mbit", type=float, help="of a link that all nodes share, in each direction; needs root")
    parser.add_argument("--cut", action="store_true", help="end the nodes' connections in the second round's replies")
    parser.add_argument(
        "--save", type=Path, help="a JSON file of such runs, in which this one replaces that of its command"
    )
    a = parser.parse_args()
    a.command = " ".join(["python benchmarks/deployment.py", *options(sys.argv[1:])])
    if a.mbit and "MEDLEY_NAMESPACE" not in os.environ:
        within_namespace()
    looks = dict[int, dict[str, tuple[float, float]]]()
    peaks = dict[str, float]()
    loads = list[float]()
    at = dict[int, tuple[float, float]]()
    cut_after = 0.0
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        server = stack.enter_context(Deployment.running(Path(tmp) / "server", keys=a.clients))
        server.app(table(a.clients, a.rounds, a.hidden, a.method))
        if a.mbit:
            limited(server.port, a.mbit)
        for k in range(a.clients):
            command = ["flower-supernode", "--root-certificates=keys/ca.crt", f"--superlink=127.0.0.1:{server.port}"]
            command += [f"--auth-supernode-private-key=keys/node{k}", "--host=127.0.0.1", f"--port={ports()}"]
            command += [f'--node-config=partition-id={k} memory="stock"']
            node = started(command, server.folder, server.env, f"node{k}") if a.stock else server.node(k)
            stack.enter_context(node)
        command = ["medley", "deploy", "run", ".", "--superlink=medley", f"--save={server.folder / 'run'}"]
        with started(command, server.folder, server.env, "run") as (p, log):
            while p.poll() is None:
                loads.append(os.getloadavg()[0])
                peaks |= {kind: max(most, peaks.get(kind, 0.0)) for kind, (_, most) in tally(server).items()}
                if done := len(re.findall(r"round \d+:", log.read_text())):
                    looks.setdefault(done, tally(server))
                if a.mbit:
                    at.setdefault(done, passed())
                    size = (a.hidden**2 + 74 * a.hidden) * 4e-6
                    if a.cut and done == 1 and passed()[0] - at[1][0] > a.clients * size / 2:
                        a.cut = False
                        cut(server)
                        cut_after = passed()[0] - at[1][0]
                        print(f"cut after {passed()[0] - at[1][0]:.0f} MB of round 2 went up", flush=True)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    p.wait(0.2)
            if p.returncode:
                sys.exit(f"the run ended with {p.returncode}\n{server.logs()}")
        result = md.Result.load(server.folder / "run")
        times = between((server.folder / "node0.log").read_text())
    report(a, result, times, loads, looks, peaks, at, cut_after)


def report(
    a: argparse.Namespace,
    result: md.Result,
    times: list[float],
    loads: list[float],
    looks: dict[int, dict[str, tuple[float, float]]],
    peaks: dict[str, float],
    at: dict[int, tuple[float, float]],
    cut_after: float,
) -> None:
    """Print the run's figures, and save them."""
    wall = (result.history[-1]["wall"] - result.history[0]["wall"]) / a.rounds
    size = result.x.numel() * result.x.element_size() / 1e6
    print(
        f"{a.clients} {'SuperNodes' if a.stock else 'nodes'}, {size:.3g} MB, {a.rounds} rounds, load {min(loads):.1f}",
        end="",
    )
    print(f" to {max(loads):.1f}\nwall seconds an exchange: mean {wall:.2f}", end="")
    print(f", median {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if times else "")
    for (k, (up, down)), (_, (more_up, more_down)) in itertools.pairwise(at.items()):
        print(f"  round {k + 1}: {more_up - up:.0f} MB up, {more_down - down:.0f} MB down")
    # The first look after a round: not at the last one, after which the clients evaluate.
    first = min(looks)
    last = max(k for k in looks if k < a.rounds)
    for kind, (seconds, _) in looks[last].items():
        spent = (seconds - looks[first].get(kind, (0.0, 0.0))[0]) / max(last - first, 1)
        print(f"  {kind:14} {spent:6.3f} s of processor time an exchange, peak of the run {peaks[kind]:.0f} MiB")
    if a.save:
        moved = [(b[0] - c[0], b[1] - c[1]) for c, b in itertools.pairwise(at.values())]
        run = {"command": a.command, "mbit": a.mbit, "model_MB": round(size, 3), "nodes": a.clients}
        run |= {"load": rounded([min(loads), max(loads)], 1)}
        run |= {"seconds_an_exchange": {"mean": round(wall, 2), "all": rounded(times, 2)}}
        run |= {"cut": f"in round 2, after {cut_after:.0f} MB went up"} if cut_after else {}
        run |= {"MB_up_by_round": rounded(u for u, _ in moved), "MB_down_by_round": rounded(d for _, d in moved)}
        save(a.save, run | {"peak_MiB": {kind: round(peak) for kind, peak in peaks.items()}})


if __name__ == "__main__":
    main()
