"""Faults that lose nothing, for as long as you like: kill -9 at random moments, and memory over many rounds.

python benchmarks/soak.py kills --count 100                    # as many runs, each killed up to three times
python benchmarks/soak.py memory --on processes --rounds 50000  # or --on ray, --on local
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import medley as md
from medley.codecs import Delta, Quantise
from medley.storage.history import history_of
from medley.storage.result import Result
from medley.storage.run_folder import holds_run
from medley.transports import InProcess, Lossy, Processes

BOUND = 4096
"""Bytes a round that memory may grow by, and yet be called flat: less than half of the model below."""

DELIVERY = 56
"""Bytes that the ledger keeps of each delivery, which no bound is about."""


@dataclass(frozen=True)
class Job:
    """A method on its toy."""

    method: Any
    fed: md.Federation
    rounds: int
    options: dict[str, Any] = field(default_factory=dict)
    per_task: int = 1

    def run(self, folder: Path | None) -> Result:
        """The run, or what is left of it."""
        where = {} if folder is None else {"resume" if holds_run(folder) else "checkpoint": folder}
        options = {"checkpoint_every": 3, "progress": False, "throw": False}
        return md.run(self.method, self.fed, self.rounds, **options, **self.options, **where)


def jobs() -> dict[str, Job]:
    """A run or two of every family of methods."""
    toy = md.problems.synthetic_quadratics(clients=10)
    curved = md.problems.synthetic_logistic(clients=10, d=20, mu=1e-4)
    uneven = md.scenarios.Pace(lr=md.distributions.Uniform(0.02, 0.1), epochs=md.distributions.Integers(1, 10), batch=4)
    first = md.Federation(toy.problem, clients=toy.clients, pace=uneven, participation=0.5)
    slow = md.devices.Devices(speed=[1000.0] * 8 + [50.0] * 2)
    late = md.Federation(toy.problem, clients=toy.clients, pace=uneven, devices=slow)
    second = md.Federation(curved.problem, clients=curved.clients)
    stream = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.IID(5),
        pace=md.scenarios.Pace(lr=0.3, steps=3),
        stream=md.tasks.Split(tasks=5, mode="class"),
        replay=md.replay.Ring(capacity=40, sample=20),
    )
    patient = {"reply_policy": md.ReplyPolicy(replies=5, faulty="drop")}
    faults = {
        "transport": Lossy(loss=0.2, corrupt=0.05),
        "codec": Delta(Quantise(4)),
        "reply_policy": md.ReplyPolicy(retries=3),
    }
    return {
        "SCAFFOLD": Job(md.SCAFFOLD(), first, 60),
        "FedNorton": Job(md.FedNorton(), first, 40),
        "SHED": Job(md.SHED(pairs=1), second, 40),
        "SHED.fast": Job(md.SHED.fast(pairs=1), second, 40),
        "CFLAG.joint": Job(md.CFLAG.joint(), stream, 4, per_task=5),
        "FedBuff, late replies": Job(md.FedBuff(), late, 60, patient),
        "FedNorton, late replies": Job(md.FedNorton(flows="client"), late, 40, patient),
        "SCAFFOLD, 4 bits, faults": Job(md.SCAFFOLD(), first, 40, faults),
        "SCAFFOLD, 2 processes": Job(md.SCAFFOLD(), first, 30, {"transport": Processes(2)}),
    }


def killed(job: Job, folder: Path, after: float) -> bool:
    """Whether a process that runs the job was killed so many seconds after its birth; else it had ended by then."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            job.run(folder)
            os._exit(0)
        os._exit(1)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the run ended by itself with {code}"
    return code != 0


def kills(count: int, seed: int) -> None:
    """``count`` runs, each killed one to three times at random moments and resumed: the digests are the same."""
    rng = random.Random(seed)
    all_jobs = jobs()
    same = 0
    total = 0
    references: dict[str, tuple[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="medley-soak-") as base:
        for name, job in all_jobs.items():
            reference = job.run(None).digest
            began = time.perf_counter()
            job_result = job.run(Path(base) / f"whole {name}")
            references[name] = reference, time.perf_counter() - began
            assert job_result.digest == reference, f"{name}: kept in a folder, the run has other bits"
        for k, (name, job) in zip(range(count), itertools.cycle(all_jobs.items()), strict=False):
            folder = Path(base) / str(k)
            reference, seconds = references[name]
            most = rng.randint(1, 3)
            moments = []
            rounds = job.rounds * job.per_task
            while len(moments) < most:
                left = 1 - max([0, *moments]) / rounds
                if killed(job, folder, rng.uniform(0, seconds * left)):
                    rows = folder / "history.jsonl"
                    moments.append(rows.read_text().count("\n") - 1 if rows.exists() else -1)
                elif moments:
                    break
                else:  # it was faster than the one before it
                    shutil.rmtree(folder)
            last = job.run(folder)
            rows = [row["round"] for row in history_of((folder / "history.jsonl").read_text())]
            assert last.digest == reference == Result.load(folder).digest, (
                f"{name}, killed in rounds {moments}: other bits"
            )
            assert rows == list(range(rounds + 1)), f"{name}: the history has rows {rows}"
            same = same + 1
            total = total + len(moments)
            print(f"{k + 1:4d}  {name}: killed after rounds {moments}, same digest {reference[:8]}", flush=True)
    print(f"{total} kills at random moments: {same} of {count} runs resumed to identical digests")


@dataclass
class Watch:
    """A transport that looks at the memory every so many rounds, not seconds: a busy machine sees the same."""

    inner: Any
    every: int
    samples: list[tuple[int, int]] = field(default_factory=list)
    """(round, bytes) of this process and its workers."""

    def open(self, host: Any) -> Watched:
        return Watched(self, self.inner.open(host))


@dataclass
class Watched:
    watch: Watch
    connection: Any

    def exchange(self, exchange: Any) -> Iterator[Any]:
        if exchange.round % self.watch.every == 0:
            self.watch.samples.append((exchange.round, resident()))
        return self.connection.exchange(exchange)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def resident() -> int:
    """Resident bytes of this process and its workers, without the processes that Ray has for itself."""
    parents = {}
    names = {}
    sizes = {}
    for at in Path("/proc").iterdir():
        if at.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (at / "stat").read_text()
                pid = int(at.name)
                fields = stat[stat.rindex(")") + 2 :].split()
                parents[pid] = int(fields[1])
                names[pid] = stat[stat.index("(") + 1 : stat.rindex(")")]
                sizes[pid] = int((at / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
        mine |= more
    actors = {pid for pid in mine if names[pid] == "ray::Actor"}
    return sum(sizes.get(pid, 0) for pid in (actors | {os.getpid()} if actors else mine))


def slope(samples: list[tuple[int, int]], blocks: int = 20) -> tuple[float, float]:
    """Bytes a round and half of its 95 % interval, by least squares over means of blocks: single ones hang together.

    The first third is warming up.
    """
    rounds, sizes = np.array(samples[len(samples) // 3 :], dtype=float).T
    x, y = (np.array([part.mean() for part in np.array_split(v, blocks)]) for v in (rounds, sizes))
    fit = stats.linregress(x, y)
    return float(fit.slope), float(fit.stderr * stats.t.ppf(0.975, blocks - 2))


def memory(on: str, rounds: int) -> None:
    """So many rounds of SCAFFOLD with a small network; fails if memory grows by more than BOUND a round."""
    clients = 10
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 10, (32,))),
        data=md.datasets.digits(),
        partition=md.partitions.IID(clients),
        pace=md.scenarios.Pace(lr=0.01, steps=2, batch=32),
    )
    inner = {"local": InProcess, "processes": lambda: Processes(2), "ray": lambda: md.transports.Ray(2)}[on]()
    watch = Watch(inner, max(1, rounds // 120))
    began = time.perf_counter()
    r = md.run(md.SCAFFOLD(), fed, rounds, eval_every=rounds, transport=watch, progress=False)
    hours = (time.perf_counter() - began) / 3600
    assert len(watch.samples) > 30, f"{rounds} rounds are too few to tell"
    grown, half = slope(watch.samples)
    records = DELIVERY * len(r.ledger) / rounds
    hourly = (grown - records) * rounds / hours / 2**20
    mean = np.mean([size for _, size in watch.samples]) / 2**20
    print(
        f"{on}: {rounds} rounds in {60 * hours:.1f} min, {mean:.0f} MiB; grows by {grown:.0f} ± {half:.0f} bytes "
        f"a round (95 % interval), of which the ledger is {records:.0f}; {hourly:+.1f} MiB "
        f"an hour beside it; bound {BOUND} bytes a round"
    )
    assert grown - records - half <= BOUND, "memory grows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "memory"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=50000)
    parser.add_argument("--on", choices=["local", "processes", "ray"], default="processes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kills(args.count, args.seed) if args.what == "kills" else memory(args.on, args.rounds)


if __name__ == "__main__":
    sys.exit(main())
