"""Golden runs: written before a change that must leave every result as it is, and compared after it.

    python tests/golden/digests.py --write          before it: note every bit; --only FedAvg notes one method's runs
    python tests/golden/digests.py                  after it: compare all
    python tests/golden/digests.py --only FedAvg    compare one method; --quick leaves out the demo's runs

A run is kept as values and as a digest. The values (`Reading`) are in the repository, and compared on every machine, to
`TOLERANCE`: the tests do that. A digest is `Result.digest`: x, buffers, history without wall time, and ledger. It holds
for one processor and version of torch and NumPy, so that digests stay on your machine, in `build/`, and this command
compares them there. `NAMES` finds things whose name has changed since the files were written.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch

import medley as md
from medley.testing import toys

FILE = Path(__file__).parents[2] / "build" / "golden.json"
"""Machine and digests, as --write noted them before a change."""
VALUES = Path(__file__).with_name("values.json")
"""A line for each method and problem: the values of each way to run it, less the ways that have those of ``local``."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Of the values, by the dtype of x: other kernels of torch and MKL changed them by a tenth of it at most."""

DEGENERATE = {"FedNL 2 / softmax stream": 0.2, "FedNL": 0.1, "SHED": 0.1, "MontDec": 0.1}
"""Methods that send eigenvectors. Those of a softmax's equal eigenvalues are the processor's choice, and what a codec
leaves of them differs with it: their values there are compared to these tolerances. (In a stream the
values of FedNL 2 on an Intel and an AMD are .13 of the norm apart.)"""

NAMES = {
    "Cast": ("medley.codecs", "medley.core.wire"),
    "Delta": ("medley.codecs", "medley.core.wire"),
    "Quantise": ("medley.codecs", "medley.core.wire"),
    "ReplyPolicy": ("medley", "medley.core.patience:Patience"),
    "Ring": ("medley.replay", "medley.memory"),
    "generator": ("medley.runtime.streams", "medley.core.streams"),
}
"""The place of a name, then its older places; after a colon its name there."""

ROUNDS, PER_TASK = 3, 4


def find(name: str) -> Any:
    """The thing called ``name`` in this tree. Raises ImportError where no place has it."""
    for place in NAMES[name]:
        module, _, called = place.partition(":")
        try:
            return getattr(importlib.import_module(module), called or name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"{name} is in none of {NAMES[name]}")


def methods() -> dict[str, Any]:
    """Every public method, some with several settings."""
    torch.manual_seed(0)  # TARGET is given networks
    mlp, generator = md.models.mlp, md.models.generator
    made = [
        *(md.AGEM(), md.CFLAG.joint(), md.CFLAG(), md.AGD(momentum=0.5), md.DONE(), md.ECADO(), md.ERring()),
        *(
            md.ACE(),
            md.ACED(max_delay=2),
            md.AFedPD(),
            md.Boost(),
            md.CA2FL(),
            md.FedADMM(),
            md.FedAGEM(),
            md.FedCM(),
            md.FedDC(),
        ),
        *(
            md.FedAdamW(),
            md.FedExLoRA(),
            md.FedGAMMA(),
            md.FedLESAM(),
            md.FedNS(k=3),
            md.FedNew(),
            md.FedSMOO(),
            md.FedSpeed(),
        ),
        *(md.EWC(), md.Fed3R(), md.FedAdagrad(), md.FedAdam(), md.FedAsync(), md.FedAvg(), md.FedAvgM(), md.FedBuff()),
        *(md.FedDecorr(), md.FedDyn(), md.FedNorton(), md.FedNorton(flows="client"), md.FedExP(), md.FedNL()),
        *(md.FedNL(k=8, compress="topk", init="zero"), md.FedNL(mode="pp", k=2), md.FedNL(speculative=True, k=2)),
        *(md.FedNova(), md.FedProx(), md.FedRS(), md.FedTrack(), md.FedYogi(), md.FineTune(), md.GIANT()),
        *(md.GIANT(solver="cg", speculative=True), md.GradientDescent(), md.LBFGS(), md.MontDec(), md.Newton()),
        *(
            md.ICaRL(),
            md.LwF(),
            md.MOON(),
            md.NCCL(),
            md.Ringleader(),
            md.SCAFFOLD(),
            md.SCAFFOLDM(beta=0.3),
            md.SHED(),
            md.SHED(search="armijo"),
            md.SHED.fast(),
        ),
        *(
            md.SHED.fast(pairs=None, rho="auto", lbfgs=0, difference=False, above=True),
            md.SHED.fast(renewal="periodic", period=2, pairs=None, search="auto", lbfgs=0, bits=None),
        ),
        *(md.FedECADO(), md.CFLAG(adaptive="average", L=1.0)),
        *(md.CFLAG.joint(form="svrg", clip=None), md.CFLAG(form="svrg"), md.CFLAG.joint(correct=False)),
        md.CFLAG.joint(correct="head"),
        *(md.APFL(adaptive=True), md.Ditto(), md.FedAvgFT(), md.FedBN(), md.FedPer(), md.FedProto(), md.LocalOnly()),
        *(md.FedRep(head_epochs=2), md.pFedMe(mu=5.0)),
        md.TARGET(mlp(4, 4, (5,)), generator((4,), 3, (8,), -3, 5), 3, rows=6, batch=4, steps=2),
    ]
    out: dict[str, Any] = {}
    for m in made:
        many = sum(n.split(" ")[0] == m.name for n in out)
        out[f"{m.name} {many + 1}" if many else m.name] = m
    return out


def places() -> dict[str, dict[str, Any]]:
    """The battery's problems."""
    g = find("generator")(0, "conformance")
    clients = []
    for n in (5, 8, 4, 7, 6):
        y = torch.randint(3, (n,), generator=g)
        clients.append((torch.randn(n, 4, generator=g, dtype=torch.float64) + y[:, None], y))
    q = md.problems.synthetic_quadratics(clients=5, d=6, rows=(6, 10))
    coming = []
    for n in (9, 12, 8, 11, 10):
        y = torch.arange(n) % 4
        coming.append((torch.randn(n, 4, generator=g, dtype=torch.float64) + y[:, None], y))
    softmax, network = md.problems.Softmax(mu=0.1), md.problems.Network(md.models.mlp(4, 3, (5,)))
    wide, replay = md.problems.Network(md.models.mlp(4, 4, (5,))), find("Ring")(4, sample=2)
    past = {"replay": replay, "test": coming[0], "classes": 4, "clients": coming}
    return {
        "quadratics": {"problem": q.problem, "clients": q.clients},
        "softmax": {"problem": softmax, "clients": clients, "classes": 3, "test": clients[0]},
        "network": {"problem": network, "clients": clients, "classes": 3},
        "softmax stream": {"problem": softmax, "stream": md.tasks.Split(2, "class"), **past},
        "network stream": {"problem": wide, "stream": md.tasks.Split(2, "task"), **past},
    }


def normalised() -> torch.nn.Module:
    """A network with a normalisation layer, for methods that treat those apart."""
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))


def federation(place: dict[str, Any], **more: Any) -> md.Federation:
    """Five clients with lr, epochs and devices of their own."""
    pace = md.scenarios.Pace(lr=[0.02, 0.05, 0.1, 0.03, 0.08], epochs=[1, 3, 2, 1, 2], batch=4)
    devices = md.devices.Devices(speed=[100.0, 50.0, 400.0, 100.0, 20.0], up=1e4, down=1e5, latency=0.01)
    return md.Federation(**{"pace": pace, "devices": devices, **place, **more})


def resumed(method: Any, fed: md.Federation, rounds: int) -> md.Result:
    """The result of a run that is stopped after its first round and resumed."""

    def stop(row: Any) -> None:
        if row["round"] == 1:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        md.run(method, fed, rounds, checkpoint=folder, on_round=stop, progress=False, throw=False)
        return md.run(method, fed, rounds, resume=folder, progress=False, throw=False)


def policy() -> dict[str, Any]:
    """Waits for four replies of five; others arrive late or never."""
    kind = find("ReplyPolicy")
    return {"patience" if kind.__name__ == "Patience" else "reply_policy": kind(replies=4, retries=1, faulty="drop")}


def variants(method: Any, place: dict[str, Any]) -> dict[str, Callable[[], md.Result]]:
    """Ways to run it."""
    rounds = PER_TASK if "stream" in place else ROUNDS
    run = lambda **options: md.run(method, federation(place), rounds, progress=False, throw=False, **options)
    return {
        "local": run,
        "two workers": lambda: run(transport=md.transports.Processes(2)),
        "float16": lambda: run(codec=find("Cast")("float16")),
        "uplink": lambda: run(codec=find("Delta")(find("Quantise")(6, "stochastic"))),
        "policy": lambda: run(**policy()),
        "seq": lambda: run(engine="seq"),
        "resumed": lambda: resumed(method, federation(place), rounds),
    }


def demo() -> Iterator[tuple[str, Callable[[], md.Result]]]:
    """The runs of examples/demo.py."""
    pace = md.scenarios.Pace(lr=md.distributions.Uniform(0.01, 0.1), epochs=md.distributions.Integers(1, 10), batch=32)
    partition = md.partitions.Dirichlet(clients=100, alpha=0.1)
    network = md.problems.Network(md.models.mlp(64, 10))
    fed = md.Federation(network, data=md.datasets.digits(), partition=partition, pace=pace, participation=0.1)
    for m in (md.FedNorton(), md.FedAvg(), md.FedProx(), md.FedNova(), md.SCAFFOLD(), md.FedDyn()):
        for seed in range(3):
            yield f"demo / {m.name} / {seed}", lambda m=m, seed=seed: md.run(m, fed, 100, seed=seed, progress=False)


def runs(only: str = "", quick: bool = False) -> Iterator[tuple[str, Callable[[], md.Result]]]:
    """(name, run) of everything; ``only`` methods whose name begins so."""
    for name, method in methods().items():
        if name.startswith(only):
            for where, place in places().items():
                if name == "FedBN" and "network" in where:
                    place = {**place, "problem": md.problems.Network(normalised())}
                if name == "FedExLoRA" and "network" in where:
                    layers = toys.Adapted(4, 5, 2), torch.nn.ReLU(), toys.Adapted(5, 4, 2)
                    place = {**place, "problem": md.problems.Network(torch.nn.Sequential(*layers))}
                if name == "Boost":
                    loss = "squared" if where == "quadratics" else "softmax"
                    place = {**place, "problem": md.problems.Trees(loss, trees=10, depth=2)}
                for how, run in variants(method, place).items():
                    yield f"{name} / {where} / {how}", run
    if not quick:
        yield from (pair for pair in demo() if pair[0].split(" / ")[1].startswith(only))


class Reading(NamedTuple):
    """What is kept of a run; all but ``word`` is empty where the method is refused.

    Attributes:
        word: the digest, or the class of the error
        values: the norm of x, three fixed projections of it, the norm of the buffers, and the last loss
        counts: exchanges, and bytes down and up
        tolerance: of the values
    """

    word: str
    values: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    tolerance: float = 0.0

    def kept(self) -> Any:
        """As it stands in the file of values."""
        return [*self.values, *self.counts] if self.values else self.word

    def agrees(self, kept: Any) -> bool:
        """Whether it is the run of that entry: values to the tolerance, counts equal."""
        if not self.values or not isinstance(kept, list):
            return bool(self.kept() == kept)
        size = len(self.values)
        scale = max(1.0, abs(self.values[0]))
        near = [
            math.isclose(a, b, rel_tol=self.tolerance, abs_tol=self.tolerance * scale) or (a != a and b != b)
            for a, b in zip(self.values, kept, strict=False)
        ]
        return all(near) and [*self.counts] == kept[size:]


def reading(run: Callable[[], md.Result]) -> Reading:
    """What the run gives."""
    try:
        result = run()
    except md.MedleyError as e:
        return Reading(type(e).__name__)
    x = result.x.double()
    values = [float(x.norm())]
    for k in (1, 2, 3):
        along = torch.cos(k * torch.arange(1, len(x) + 1, dtype=torch.float64))
        values.append(float(x @ along / along.norm()))
    values.append(math.fsum(float(t.double().norm()) for t in result.buffers or ()))
    values.append(result.history[-1].get("loss", math.nan))
    rounded = tuple(float(f"{value:.9g}") for value in values)
    sent = result.ledger
    return Reading(result.digest, rounded, (sent.exchanges, sent.down, sent.up), TOLERANCE[result.x.dtype])


def machine() -> dict[str, str]:
    """Processor and versions of libraries, on which the bits depend too."""
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in _cpuinfo()[:40])}
    # Two processors of one name may have other instructions, and then libraries choose other kernels.
    flags = hashlib.blake2b(" ".join(sorted(about.get("flags", "").split())).encode(), digest_size=4).hexdigest()
    cpu = f"{about.get('model name', platform.processor())}, model {about.get('model', '?')}, flags {flags}"
    return {"processor": cpu, "torch": torch.__version__, "numpy": numpy.__version__}


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def noted() -> dict[str, str]:
    """The digests that were noted on this machine, by the names of runs; none if they are another's."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"machine": None}
    return kept["digests"] if kept["machine"] == machine() else {}


def compare(
    found: Iterable[tuple[str, Callable[[], md.Result]]], digests: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A sentence for each run whose values are not those in the file, or whose bits are not those in ``digests``."""
    values = json.loads(VALUES.read_text())
    for name, run in found:
        now, old = reading(run), entry(values, name)
        if " / softmax" in name and (known := [t for start, t in DEGENERATE.items() if name.startswith(start)]):
            now = now._replace(tolerance=known[0])
        if not now.agrees(old):
            yield f"{name}: {now.kept()} where values.json has {old}"
        elif (digests or {}).get(name, now.word) != now.word:
            yield f"{name}: values as in values.json, and other bits than were noted"


def entry(values: dict[str, dict[str, Any]], name: str) -> Any:
    """What the file of values has for a run; None where it has nothing."""
    line, way = name.rsplit(" / ", 1)
    found = values.get(line, {})
    return found.get(way, found.get("local"))


def write(only: str) -> int:
    """Write both files, or the runs of one method into them; the number of runs."""
    now = {name: reading(run) for name, run in runs(only)}
    digests = (noted() if only else {}) | {name: r.word for name, r in now.items()}
    values: dict[str, dict[str, Any]] = {}
    for name, r in now.items():
        line, way = name.rsplit(" / ", 1)
        if way == "local" or r.kept() != values.setdefault(line, {}).get("local"):
            values.setdefault(line, {})[way] = r.kept()
    if only:
        lines = json.loads(VALUES.read_text()) | values
        values = {line: lines[line] for line in dict.fromkeys(name.rsplit(" / ", 1)[0] for name, _ in runs())}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps({"machine": machine(), "digests": digests}, indent=0) + "\n")
    VALUES.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in values.items()) + "\n}\n")
    return len(now)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    if not any(True for _ in runs(args.only, args.quick)):
        parser.error(f"--only {args.only}: no method of that name is in methods()")
    if args.write:
        print(f"{write(args.only)} runs in {time.perf_counter() - began:.0f} s")
        return 0
    if not noted():
        print("no digests of this machine are noted: only values are compared. Note them before a change, by --write")
    other = 0
    for sentence in compare(runs(args.only, args.quick), noted()):
        print(sentence, flush=True)
        other += 1
    print(f"{other} differ; {time.perf_counter() - began:.0f} s")
    return bool(other)


if __name__ == "__main__":
    sys.exit(main())
