"""Random federations run in several ways that must agree.

python benchmarks/differential.py --count 2000 --save benchmarks/sound.json
python benchmarks/differential.py --minutes 2         # a failure is shrunk and printed

A federation is a `Case`: data, layout, model, pace, participation, devices, codec, reply policy, faults. It runs

- in one process, from plain arrays: the reference
- from the same numbers in another layout: the same bits
- in worker processes: the same bits
- stopped after a round, or killed with SIGKILL, and resumed: the same bits
- on the reference engine, and from sparse rows: x within 1e-8 (1 + ‖x‖) in float64, without a codec or faults, whose
  rounding is discrete

An error is compared like a result: each way must raise the same one, and it must be one of Medley's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import medley as md
from medley.codecs import Cast, Delta, Quantise, TopK
from medley.contract.errors import MedleyError
from medley.contract.needs import Need, needs_of
from medley.recipe import methods
from medley.storage.environment import environment
from medley.storage.run_folder import holds_run
from medley.transports import InProcess, Lossy, Processes

VALUES = ("LeastSquares", "Values")
NAMES = [name for name in methods() if name != "TARGET"]  # it has no defaults
MAPPED = ("mapped", "mapped columns first", "mapped big-endian", "mapped every second", "lazy")
"""Rows and targets of a file. Engines train such rows one client after the other, so the reference does as well."""
MEMORY = ("columns first", "reversed", "every second", "tensor", "lists", "big-endian", "read-only", "float32")
LAYOUTS = (*MEMORY, "sparse", *MAPPED, *["mapped targets"] * 3)


@dataclass(frozen=True)
class Case:
    """A federation and a run, as numbers and words; its repr is the repro."""

    seed: int
    method: str
    problem: str
    dtype: str
    sizes: tuple[int, ...]
    d: int
    classes: int
    layout: str
    weighted: bool
    dealt: str
    stream: bool
    pace: tuple[tuple[str, Any], ...]
    participation: Any
    devices: bool
    codec: str
    policy: tuple[tuple[str, Any], ...]
    faults: tuple[tuple[str, float], ...]
    rounds: int
    eval_every: int
    stop: int
    workers: int

    def rows(self, i: int, layout: str) -> tuple[Any, ...]:
        """Client i's rows; all layouts have the same numbers, which float32 holds."""
        rng = np.random.default_rng([self.seed % 1000, i])
        n = self.sizes[i]
        X = rng.normal(size=(n, self.d)).astype(np.float32).astype(np.float64)
        y: Any = rng.integers(0, self.classes if self.problem != "Logistic" else 2, n)
        if self.problem == "LeastSquares":
            y = X @ np.arange(1.0, self.d + 1) + y
        if self.problem == "Values":
            y = X[:, [0] * self.classes] + np.arange(self.classes)
        w = (rng.integers(1, 5, n) / 4,) if self.weighted else ()
        return (laid_out(X, layout), mapped(y, layout), *w)

    def family(self) -> Any:
        """The problem."""
        if self.problem == "Network":
            return md.problems.Network(md.models.mlp(self.d, self.classes, (3,)))
        if self.problem == "Values":
            return md.problems.Network(md.models.mlp(self.d, self.classes, (3,)), loss="mse")
        return getattr(md.problems, self.problem)(mu=1e-2)

    def federation(self, layout: str = "plain") -> md.Federation:
        """The federation, from rows in this layout."""
        rest: dict[str, Any] = {
            "pace": md.scenarios.Pace(**{k: LAWS.get(v, v) if isinstance(v, str) else v for k, v in self.pace}),
            "participation": self.participation
            if isinstance(self.participation, float)
            else md.participation.Bernoulli(0.6),
        }
        if self.devices:
            rest["devices"] = md.devices.Devices(speed=md.distributions.LogUniform(10.0, 1000.0))
        if self.stream:
            rest["stream"] = md.tasks.Split(tasks=2, mode="class")
            rest["replay"] = md.replay.Ring(capacity=4, sample=2)
        if self.dealt == "clients":
            more = {} if self.problem in VALUES else {"classes": self.classes if self.problem != "Logistic" else 2}
            parts = [self.rows(i, layout) for i in range(len(self.sizes))]
            return md.Federation(self.family(), clients=parts, **more, **rest)
        plain = [self.rows(i, "plain") for i in range(len(self.sizes))]
        X, y = (np.concatenate([r[k] for r in plain]) for k in (0, 1))
        w = torch.tensor(np.concatenate([r[2] for r in plain])) if self.weighted else None
        squares = self.problem in VALUES
        classes = None if squares else self.classes if self.problem != "Logistic" else 2
        form = layout if layout in ("tensor", "columns first", "mapped targets", *MAPPED) else "plain"
        rows = laid_out(X, form)
        targets = mapped(y, form)
        data = md.datasets.Dataset(rows, targets, rows[:4], targets[:4], classes=classes, weights=w)
        clients = max(1, min(len(self.sizes), len(y) // 3))
        kind = md.partitions.IID(clients)
        if self.dealt == "dirichlet" and classes:
            kind = md.partitions.Dirichlet(clients, alpha=1.0)
        return md.Federation(self.family(), data=data, partition=kind, **rest)

    def method_(self) -> Any:
        """The method, with defaults; a tuned lr for every second seed."""
        method = methods()[self.method]()
        return md.Tuned(method, 0.5) if self.seed % 2 else method

    def options(self) -> dict[str, Any]:
        """Options of the run."""
        transport = InProcess() if not self.faults else Lossy(**dict(self.faults))
        policy = md.ReplyPolicy(**dict(self.policy)) if self.policy else None
        out = {"seed": self.seed, "dtype": self.dtype, "codec": CODECS[self.codec], "reply_policy": policy}
        return out | {"transport": transport, "eval_every": self.eval_every, "throw": False, "progress": False}

    def run(self, layout: str = "plain", **options: Any) -> md.Result:
        """The run."""
        return md.run(self.method_(), self.federation(layout), self.rounds, **(self.options() | options))


LAWS: dict[str, Any] = {
    "Uniform": md.distributions.Uniform(0.02, 0.2),
    "Integers": md.distributions.Integers(1, 4),
    "step_decay": md.scenarios.step_decay(every=1, factor=0.5),
    "cosine": md.scenarios.cosine(rounds=3),
}
CODECS: dict[str, Any] = {
    "none": None,
    "Cast": Cast("bfloat16"),
    "Quantise": Quantise(4, rounding="stochastic"),
    "TopK": TopK(0.5),
    "Delta": Delta(Quantise(8)),
}


def laid_out(X: np.ndarray, layout: str) -> Any:
    """The rows X in another layout."""
    match layout:
        case "columns first":
            return np.asfortranarray(X)
        case "reversed":
            return X[::-1].copy()[::-1]
        case "every second":
            return np.repeat(X, 2, 0)[::2]
        case "tensor":
            return torch.tensor(X)
        case "lists":
            return X.tolist()
        case "big-endian":
            return X.astype(">f8")
        case "read-only":
            X.setflags(write=False)
            return X
        case "sparse":
            return scipy.sparse.csr_array(X)
        case "float32":
            return X.astype(np.float32)
    return X if layout == "mapped targets" else mapped(X, layout)


def mapped(X: np.ndarray, layout: str) -> Any:
    """The rows or targets X, mapped from a file that is gone from its folder, where the layout is such."""
    if not layout.startswith(("mapped", "lazy")):
        return X
    every = 2 if layout.endswith("second") else 1
    X = np.repeat(X, every, 0)
    X = X.astype(X.dtype.newbyteorder(">")) if layout.endswith("big-endian") else X
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, np.asfortranarray(X) if layout.endswith("first") else X)
        file.flush()
        rows = np.load(file.name, mmap_mode="r")[::every]
    return md.datasets.lazy(rows) if layout == "lazy" else rows


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases of all kinds; combinations that a run refuses are among them."""
    pick = lambda *words: draw(st.sampled_from(words))
    some = lambda p: draw(st.integers(0, 99)) < 100 * p
    pace: dict[str, Any] = {"lr": pick(0.05, 0.1, "Uniform"), "batch": pick(2, 3, None)}
    pace |= pick({}, {"epochs": 2}, {"epochs": "Integers"}, {"steps": 3}, {"steps": "Integers"})
    pace |= pick(
        {}, {}, {"momentum": 0.5}, {"weight_decay": 0.01}, {"clip": 1.0}, {"optimizer": "adam"}, {"redraw": True}
    )
    pace |= pick({}, {}, {}, {"schedule": "step_decay"}, {"schedule": "cosine"})
    policy = pick(*[()] * 4, (("replies", 0.5),), (("replies", 2), ("faulty", "drop")), (("deadline", 0.05),))
    faults: tuple[tuple[str, float], ...] = ()
    if some(0.25):
        faults = (
            pick(("loss", 0.3), ("corrupt", 0.3), ("duplicate", 0.5), ("late", 0.4), ("crash", 0.3), ("nan", 0.3)),
        )
        policy = pick(policy, (("retries", 1), ("faulty", "drop")), (("faulty", "drop"),))
    rounds = draw(st.integers(1, 4))
    method = draw(st.sampled_from(NAMES))
    # Most cases have what the method needs; the others are refused.
    needs = needs_of(methods()[method]().requires()) if some(0.95) else frozenset()
    stream = needs & {Need.STREAM, Need.REPLAY}
    convex = needs & {Need.CONVEX, Need.FACTOR, Need.QUADRATIC, Need.WEIGHTS}
    values = [] if stream or Need.CLASSES in needs else ["Values"]
    problems = ["Softmax", "Softmax", "Logistic", *([] if needs & {Need.STREAM, Need.CLASSES} else ["LeastSquares"])]
    problems = ["LeastSquares"] if Need.QUADRATIC in needs else problems + ["Network", *values] * (not convex)
    problem = draw(st.sampled_from(["Network", *values] if needs & {Need.NETWORK, Need.NOISE} else problems))
    return Case(
        seed=draw(st.integers(0, 10**6)),
        method=method,
        problem=problem,
        dtype=pick("float64", "float64", "float32"),
        sizes=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))),
        d=draw(st.integers(1, 4)),
        classes=draw(st.integers(2, 4)),
        layout=draw(st.sampled_from(LAYOUTS)),
        weighted=problem not in ("Network", "Values") and some(0.2),
        dealt=pick("clients", "clients", "iid", "dirichlet"),
        stream=bool(stream) or (problem not in VALUES and some(0.1)),
        pace=tuple(pace.items()),
        participation=1.0 if Need.EVERYONE in needs else pick(1.0, 1.0, 0.5, "Bernoulli"),
        devices=some(0.3),
        codec=pick("none", "none", "none", *CODECS),
        policy=policy,
        faults=faults,
        rounds=rounds,
        eval_every=draw(st.integers(1, 2)),
        stop=draw(st.integers(1, rounds)),
        workers=pick(0, 0, 1, 2),
    )


def outcome(make: Callable[[], md.Result]) -> tuple[str, md.Result | None]:
    """The digest and the status of a run with the run, or the error that it raised."""
    try:
        r = make()
    except MedleyError as e:
        return f"{type(e).__name__}: {str(e).partition('--- traceback')[0]}", None
    return f"{r.digest} {r.status}", r


def stopped_after(case: Case, folder: Path) -> None:
    """The run up to the row of round ``stop``, where Ctrl-C ends it."""

    def stop(row: dict[str, float]) -> None:
        if row["round"] >= case.stop:
            raise KeyboardInterrupt

    case.run(checkpoint=folder, checkpoint_every=2, on_round=stop)


def killed_after(case: Case, folder: Path) -> None:
    """The same, in a process that kills itself there."""

    def work() -> None:
        def die(row: dict[str, float]) -> None:
            if row["round"] >= case.stop:
                os.kill(os.getpid(), signal.SIGKILL)

        with contextlib.suppress(MedleyError):
            case.run(checkpoint=folder, checkpoint_every=2, on_round=die)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), f"it ended by itself with {child.exitcode}"


def check(case: Case, counts: Counter[str]) -> None:
    """Raise AssertionError where two ways of the run differ, and any error that is none of Medley's."""
    want, reference = outcome(case.run)
    counts["refused" if reference is None else reference.status.outcome] += 1
    sparse = case.layout == "sparse"
    if not (sparse and (case.problem in ("Network", "Values") or case.dealt != "clients")):
        how = {"engine": "seq"} if case.layout in MAPPED else {}
        plain = outcome(lambda: case.run(**how))[0] if how else want
        other, r = outcome(lambda: case.run(case.layout, **how))
        if sparse and other.startswith("Unsupported: sparse rows are for"):
            counts["sparse refused"] += 1
        elif sparse and r is not None and reference is not None:
            if case.codec == "none" and not case.faults:
                near(r, reference, "sparse rows")
        else:
            assert other == plain, f"layout {case.layout}: {other}, and plain {plain}"
        counts["layout"] += 1
    if case.workers:
        inner = Processes(case.workers)
        transport = Lossy(**dict(case.faults), inner=inner) if case.faults else inner
        other, _ = outcome(lambda: case.run(transport=transport))
        assert other == want, f"{case.workers} processes: {other}, and in one {want}"
        counts["processes"] += 1
    if reference is not None:
        for how in (stopped_after, killed_after):
            with tempfile.TemporaryDirectory(prefix="medley-differential-") as place:
                folder = Path(place) / "run"
                how(case, folder)
                again: dict[str, Any] = {"resume" if holds_run(folder) else "checkpoint": folder}
                other, _ = outcome(lambda: case.run(**again, checkpoint_every=2))  # noqa: B023 (called at once)
                assert other == want, f"{how.__name__} round {case.stop}: {other}, and whole {want}"
                assert md.Result.load(folder).digest == reference.digest
            counts[how.__name__.partition("_")[0]] += 1
        if case.dtype == "float64" and case.codec == "none" and not case.faults:
            other, r = outcome(lambda: case.run(engine="seq"))
            if r is not None:
                near(r, reference, "engine seq")
                counts["engine"] += 1


def near(r: md.Result, reference: md.Result, what: str) -> None:
    """Raise AssertionError unless x of both is the same but for rounding."""
    assert r.status.outcome == reference.status.outcome, f"{what}: {r.status}, and {reference.status}"
    tolerance = 1e-8 if r.x.dtype == torch.float64 else 1e-3
    off = float((r.x - reference.x).norm() / (1 + reference.x.norm())) if r.status.ok else 0.0
    assert off <= tolerance, f"{what}: x is off by {off:.2g}"


def federations(count: int, minutes: float, first: int) -> dict[str, Any]:
    """Check ``count`` cases, or as many as ``minutes`` allow. Raises where one fails, with the smallest that does."""
    counts: Counter[str] = Counter()
    tried = Counter[str]()
    began = time.monotonic()
    number = first
    done = 0
    while done < count and time.monotonic() - began < 60 * minutes:
        size = min(25, count - done)

        @seed(number)
        @settings(
            max_examples=size,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
            print_blob=True,
        )
        @given(cases())
        def batch(case: Case) -> None:
            tried[case.method] += 1
            check(case, counts)

        batch()
        number = number + 1
        done = done + size
        print(f"{done} federations, none wrong", file=sys.stderr, flush=True)
    return {"federations": sum(tried.values()), "seeds": [first, number - 1], **counts, "methods": len(tried)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--minutes", type=float, default=10**9)
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds; each draws 25 federations")
    parser.add_argument("--save", type=Path, help="put the counts into this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.CRITICAL)
    began = time.monotonic()
    outcome = federations(args.count, args.minutes, args.seed)
    report("federations", outcome | {"failures": 0}, began, args.save)


def report(what: str, result: dict[str, Any], began: float, file: Path | None) -> None:
    """Print the counts, with time and versions, and put them into a file of several such."""
    versions = {name: v for name, v in environment().items() if name in ("medley", "torch", "python", "machine")}
    result |= {"minutes": round((time.monotonic() - began) / 60, 1), **versions}
    print(json.dumps(result))
    if file is not None:
        old = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**old, what: result}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
