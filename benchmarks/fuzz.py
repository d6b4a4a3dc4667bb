"""Words that nobody meant to send: each is refused with an error of Medley's or is a word, and memory stays flat.

python benchmarks/fuzz.py --count 100000                   # mutations of good messages, seed after seed the same
python benchmarks/fuzz.py --what all --count 100000        # all that comes over Flower, too
pip install -e '.[fuzz]'
python benchmarks/fuzz.py --atheris --count 100000         # guided by coverage of the decoder
"""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import math
import os
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import medley as md
from medley.clients.host import ClientHost
from medley.contract import message, pytree
from medley.contract.algorithm import Algorithm, Client, on_client
from medley.contract.errors import BadData, MedleyError
from medley.contract.message import Message
from medley.contract.messages import Model
from medley.contract.types import Num, Vec
from medley.deploy.node.sums import Sums
from medley.deploy.protocol.agreement import Terms
from medley.deploy.protocol.calls import CallRequest
from medley.deploy.protocol.checked_json import checked, opened, parsed, sealed_error
from medley.deploy.protocol.reports import Census, ClientReport, Known, RowKind, TaskReport
from medley.deploy.protocol.secure_steps import STEPS, form
from medley.deploy.server.evaluation import Asked, Figures
from medley.deploy.server.messenger import Messenger
from medley.deploy.server.sums import RemoteParties
from medley.deploy.server.transport import Flower, FlowerConnection
from medley.recipe.limits import ClientLimits
from medley.secure import tables
from medley.secure.party import Party
from medley.secure.ring import Ring
from medley.wire import framing
from medley.wire.exchange import Exchange
from medley.wire.fold import Fold

D = 4


class Fuzzed(Message):
    x: Vec
    rows: Float[Tensor, "q d"]
    which: Int[Tensor, " q"] | None
    T: Num
    n: int
    yes: bool


def fuzzed(q: int) -> Fuzzed:
    which = torch.arange(q) if q % 2 else None
    return Fuzzed(torch.arange(D, dtype=torch.float64), torch.ones(q, D, dtype=torch.float64), which, 0.5, 3, True)


class Target:
    """Reads words and counts the outcomes.

    Attributes:
        seeds: good words; empty to begin with
        ends: the number of words that were read, and of those that were refused
    """

    seeds: list[bytes]

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()

    def __call__(self, raw: bytes) -> None:
        try:
            self.read(raw)
        except MedleyError as e:
            self.ends["refused" if self.names(str(e)) else "nameless"] += 1
        else:
            self.ends["read"] += 1

    def names(self, text: str) -> bool:
        """True for an error's text that says where the words are from."""
        return "client" in text

    def read(self, raw: bytes) -> None:
        """Read, and check everything that a run relies on. Raises MedleyError for what is refused."""
        raise NotImplementedError


class Messages(Target):
    """The framing of workers, and the check of a message."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = [framing.to_bytes(fuzzed(q).pack()) for q in range(4)]

    def names(self, text: str) -> bool:
        return True

    def read(self, raw: bytes) -> None:
        decoded = Fuzzed.unpack(framing.from_bytes(raw), D, "client 0")
        assert decoded.x.shape == (D,)
        assert all(message.is_finite(v) for v in vars(decoded).values())


class Hellos(Target):
    """A client's account of its data, as `Messenger` and `Census` read it; the other client is honest."""

    limits = ClientLimits(rows=1000, weight=2000.0, classes=10, row=64, tasks=4)

    def __init__(self) -> None:
        super().__init__()
        kind = RowKind([8], "float32"), RowKind([], "int64")
        tasks = [TaskReport(20, 20.0, 5, [0, 1]), TaskReport(0, 0.0, 3, [2])]
        self.other = ClientReport(1, 3, tasks, *kind, None)
        weighed = ClientReport(0, 3, [TaskReport(20, 31.5, 0, [0])] * 2, *kind, RowKind([], "float64"))
        sparse = ClientReport(
            0, None, [TaskReport(7, 7.0, 0, [])], RowKind([3], "float64"), RowKind([], "float64"), None
        )
        first = ClientReport(0, 3, tasks, *kind, None)
        terms = Terms("0.1.0", "FedAvg", "ab", "cd").plain()
        self.seeds = [json.dumps(r.plain() | {"terms": terms}).encode() for r in (first, weighed, sparse)]

    def read(self, raw: bytes) -> None:
        account = parsed("client 0's account", raw)
        checked("client 0's account", account, "client", int, 0)
        Terms.read("client 0's terms", account.pop("terms", None))
        for tolerant in (True, False):
            census = Census.of({0: account, 1: self.other.plain()}, self.limits, tolerant)
            p = census.weights.sum(1) / census.weights.sum()
            assert ((p >= 0) & (p <= 1)).all()
            assert math.isclose(p.sum(), 1)
            assert (census.rows >= 0).all()
            assert (census.rows <= 1000).all()
            assert (census.known.classes or 1) <= 10
            census.reports[0].X.example()


class Evaluations(Target):
    """A client's figures of a model."""

    def __init__(self) -> None:
        super().__init__()
        full = {"tests": [{"test_loss": 0.3, "accuracy": 0.5}, None], "loss": 1.5}
        few = {"tests": [{"test_loss": 12.0}, None], "loss": -0.1}
        self.seeds = [json.dumps(answer).encode() for answer in (full, few)]

    def read(self, raw: bytes) -> None:
        read_figures = Figures.read(0, raw, Asked([True, False]))
        assert read_figures.loss is not None
        assert math.isfinite(read_figures.loss)
        assert all(math.isfinite(v) for figures in read_figures.tests for v in figures.values())


class Errors(Target):
    """An error in the place of an answer."""

    def __init__(self) -> None:
        super().__init__()
        row = BadData("row 3 is empty", client=0, row=3)
        failed = {"client": 0, "round": 2, "method": "train"}
        raised = md.ClientFailed(**failed, traceback="ValueError: no")
        self.seeds = [sealed_error(row), sealed_error(raised), b"={}"]

    def read(self, raw: bytes) -> None:
        opened(raw, "client 0")


class Two(Algorithm[Model]):
    """A method whose reply has every type of field."""

    def start(self, x: Vec) -> Model:
        return Model(x)

    def round(self, s: Model, clients: Any) -> None: ...

    @on_client
    def train(self, me: Client, request: Model) -> Fuzzed:
        return fuzzed(2)


class Replies(Target):
    """A reply to a client method, with buffers, as the Flower transport folds it beside an honest one."""

    def __init__(self) -> None:
        super().__init__()
        problem = md.problems.synthetic_quadratics(clients=2, d=D)
        fed = md.Federation(problem.problem, clients=problem.clients)
        draw = fed.draw(0, "test", None, "cpu", 1)
        self.buffers = torch.zeros(3), torch.zeros(2, dtype=torch.int64)
        p = {0: 0.5, 1: 0.5}
        self.exchange = Exchange(1, 0, "train", ((0, 1),), Model(torch.zeros(D)).pack(), {}, {}, p, None, self.buffers)
        host = ClientHost(Two(), draw.problem, lambda i, t: None)  # type: ignore[arg-type, return-value]
        self.connection = FlowerConnection(host, Flower(Messenger(None), "run"))  # type: ignore[arg-type]
        head = {"buffers": self.buffers, "up": 90, "rows": 12.0, "engines": ["seq"]}
        self.seeds = [b"=" + pytree.to_bytes({"reply": fuzzed(q).pack(), **head}) for q in range(3)]
        self.seeds.append(b"=" + pytree.to_bytes({"reply": fuzzed(1).pack(), **head, "buffers": None}))

    def read(self, raw: bytes) -> None:
        fold = Fold()
        for i, answer in self.connection._read_all(self.exchange, {0: (raw, 900), 1: (self.seeds[0], 900)})[0].items():
            self.connection._take(fold, self.exchange, i, answer)
        assert fold.ids == (0, 1)
        assert all(message.is_finite(v) for packed in fold.replies.values() for v in packed.values())
        assert fold.buffers is not None
        assert fold.buffers[0].shape == (3,)
        assert all(r.up >= 0 and math.isfinite(r.work) for r in fold.receipts)


class Requests(Target):
    """A server's request, and its values for every client, as a node reads them."""

    def __init__(self) -> None:
        super().__init__()
        exchange = Exchange(1, 0, "train", ((0,),), {}, {}, {0: (1, 0)}, {0: 0.5}, None)
        limits = asdict(Known(3, [[0, 1], [2]]))
        self.common = pytree.to_bytes({"common": Model(torch.zeros(D)).pack(), "buffers": None})
        self.seeds = [pytree.to_bytes({"exchange": exchange, "run": "7", "known": limits})]

    def names(self, text: str) -> bool:
        return True

    def read(self, raw: bytes) -> None:
        request = CallRequest.read({"common": self.common, "own": raw})
        assert "/" not in request.run
        Known.read(request.values)


class Sealed(Target):
    """A client's answers to the steps of a secure sum, as the server reads them; the other client is honest."""

    def __init__(self) -> None:
        super().__init__()
        problem = md.problems.synthetic_quadratics(clients=2, d=D)
        draw = md.Federation(problem.problem, clients=problem.clients).draw(0, "test", None, "cpu", 1)
        exchange = Exchange(1, 0, "train", ((0, 1),), Model(torch.zeros(D)).pack(), {}, {}, {0: 0.5, 1: 0.5}, None)
        host = ClientHost(md.FedAvg(), draw.problem, lambda i, t: None)  # type: ignore[arg-type, return-value]
        self.post = Answers(None)
        ring = Ring(32, 100.0, {0: 0.5, 1: 0.5})
        nothing = lambda i: b""
        self.parties = RemoteParties(host, self.post, "run", exchange, ring, b"", nothing)
        how = {"fields": form({"delta": torch.zeros(D, dtype=torch.float64)}), "rows": 12.0, "engines": ["seq"]}
        vector = pytree.to_bytes({"masked": torch.arange(D, dtype=torch.int32), **how})
        answers = (
            Party(0, b"s").keys,
            tables.packed({1: bytes(48)}),
            vector,
            tables.packed({0: bytes(16), 1: bytes(range(16))}),
        )
        self.seeds = [bytes([step]) + b"=" + raw for step, raw in enumerate(answers)]  # the step, and its answer

    def read(self, raw: bytes) -> None:
        p = self.parties
        self.post.answer = raw[1:]
        p.fold = Fold()
        steps = (
            lambda: all(len(k) == 64 for k in p.keys([0]).values()),
            lambda: all(s.keys() == {1} for s in p.shares({0: {1: bytes(64)}}, {}).values()),
            lambda: all(v.dtype == "uint32" for _, v in p.masked({0: {}})),
            lambda: all(o.seeds.keys() == {0, 1} for o in p.opening({0: ((0, 1), ())}).values()),
        )
        assert steps[raw[0] % 4 if raw else 0]()
        assert all(r.up >= 0 and math.isfinite(r.work) for r in p.fold.receipts)


class Answers(Messenger):
    """A post whose clients have one answer to everything."""

    answer = b""

    def send(self, kind: str, letters: Any) -> dict[int, tuple[bytes, int]]:
        return {i: (self.answer, len(self.answer) + 200) for i in letters}


class Steps(Target):
    """A server's requests for the steps of a secure sum, as a node reads them: the words, and the table of each."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        about = {"run": "7", "session": "7 1 0 train ab cd", "cohort": 3}
        keys = {j: Party(j, b"s").keys for j in (1, 2)}
        self.seeds = [json.dumps(about).encode(), tables.packed(keys)]

    def names(self, text: str) -> bool:
        return True

    def read(self, raw: bytes) -> None:
        node = Sums(0, self.folder, md.SecureSum())
        host: Any = lambda request: None
        shutil.rmtree(self.folder / "7", ignore_errors=True)
        if raw[:1] == b"{":
            node.answer(STEPS[0], {"about": raw}, host)
        else:
            node.answer(STEPS[0], {"about": self.seeds[0]}, host)
            node.answer(STEPS[1], {"about": self.seeds[0], "roster": raw}, host)


TARGETS = {
    "message": Messages,
    "hello": Hellos,
    "evaluation": Evaluations,
    "error": Errors,
    "reply": Replies,
    "request": Requests,
    "sealed": Sealed,
    "step": Steps,
}

NUMBERS = (b"-1000", b"NaN", b"1e30", b"-Infinity", b"1e999", b"1000000000000000", b"2000000", b"null", b'""', b"[]")


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    raw = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(raw) + 1)
        match rng.randint(0, 6):
            case 0:
                raw[at : at + 1] = rng.randbytes(1)
            case 1:
                del raw[at : at + rng.randint(1, 8)]
            case 2:
                raw[at:at] = rng.randbytes(rng.randint(1, 4))
            case 3:
                raw[at : at + 1] = rng.choice(b'0123456789-[]{},"\n').to_bytes(1, "little")
            case 4:
                raw = raw[:at] + bytearray(rng.choice(seeds))[at:]
            case _:  # a whole value of JSON in the place of another
                begin = next((k for k in range(at, len(raw)) if raw[k] in b":[,"), len(raw))
                end = next((k for k in range(begin + 1, len(raw)) if raw[k] in b",]}"), len(raw))
                raw[begin + 1 : end] = rng.choice(NUMBERS)
    return bytes(raw)


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(what: str, count: int, seed: int) -> str:
    """Read ``count`` mutations. Returns the outcomes in words."""
    target = TARGETS[what]()
    rng = random.Random(seed)
    for good in () if what == "error" else target.seeds[: 1 if what == "hello" else None]:
        target.read(good)
    for _ in range(min(1000, count)):
        target(mutated(rng, target.seeds))
    target.ends.clear()
    before = peak()
    for _ in range(count):
        modules = len(sys.modules)
        at = peak()
        target(mutated(rng, target.seeds))
        before += (peak() - at) * (len(sys.modules) > modules)  # scipy.stats takes 50 MiB, once
    assert not target.ends["nameless"], f"{what}: errors that do not name the client"
    assert min(target.ends["read"], target.ends["refused"]) > count // 100, f"{what}: {target.ends}"
    assert peak() - before < 50, f"{what}: memory grows"
    return f"{what}: {count} words: {dict(target.ends)}; peak memory grew {peak() - before:.1f} MiB"


def guided(count: int, seed: int) -> None:
    """Messages guided by coverage of the decoder."""
    import atheris

    for f in (framing.from_bytes, Message.check.__func__):
        atheris.instrument_func(f)
    target = Messages()
    before = peak()

    def one(raw: bytes) -> None:  # a sound prefix every other time: headers are hard to guess
        base = target.seeds[raw[0] % len(target.seeds)] if raw else b""
        target(raw[1:] if not raw or raw[0] & 128 else base[: raw[0] * len(base) // 128] + raw[1:])
        if sum(target.ends.values()) == count:  # libFuzzer leaves without a word
            print(f"{count} messages: {dict(target.ends)}; peak memory grew {peak() - before:.1f} MiB")

    atheris.Setup([sys.argv[0], f"-runs={count}", f"-seed={seed + 1}", "-verbosity=0"], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", choices=[*TARGETS, "all"], default="message")
    parser.add_argument("--atheris", action="store_true")
    args = parser.parse_args()
    if args.atheris:
        guided(args.count, args.seed)
        return
    logging.getLogger("medley").setLevel(logging.ERROR)  # a warning for each client that is left out
    for what in TARGETS if args.what == "all" else [args.what]:
        print(fuzz(what, args.count, args.seed), flush=True)


if __name__ == "__main__":
    main()
