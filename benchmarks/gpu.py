"""FedAvg on a GPU: the same numbers as on the CPU, the time of a round by engine, and the GPU's memory.

    python benchmarks/gpu.py                      the table of docs/benchmarks.md, 100 clients, on "cuda"
    python benchmarks/gpu.py --write              the same, written into that page; on a GPU only
    python benchmarks/gpu.py --small --device cpu the same way through, at a small size

Each way runs in turn on the same clients: the loop that one would write by hand (state_dict, an optimizer a client, a
mean), the engine `seq`, and `fused` and `stacked` where they take the network. A round's seconds are wall seconds
between two waits for the device, the median over `--repeats` rounds after one that is not counted. `apart` is
max |x − x_cpu|/max |x_cpu| after two rounds in float64, x_cpu by `seq` on the CPU; above 1e-10 the script ends with an
error.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import medley as md
from medley.contract.errors import RecipeError

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

BEGIN = "<!-- gpu: begin -->"
END = "<!-- gpu: end -->"

LR = 0.05
BATCH = 20
APART = 1e-10

Clients = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Job:
    """A network, and the shape of its rows; rows of token ids where ``ids`` is their number."""

    name: str
    network: Callable[[], nn.Module]
    row: tuple[int, ...]
    classes: int = 10
    ids: int = 0

    def clients(self, count: int, rows: int) -> Clients:
        """Made-up rows, the same for every way."""
        g = torch.Generator().manual_seed(0)
        draw = lambda: (
            torch.randint(1, self.ids, (rows, *self.row), generator=g)
            if self.ids
            else torch.randn(rows, *self.row, generator=g)
        )
        return [(draw(), torch.randint(self.classes, (rows,), generator=g)) for _ in range(count)]

    def federation(self, clients: Clients) -> md.Federation:
        """The clients, one pass of plain SGD a round."""
        pace = md.scenarios.Pace(lr=LR, batch=BATCH)
        problem = md.problems.Network(self.network(), start="module")
        return md.Federation(problem, clients=clients, classes=self.classes, pace=pace)


def jobs(small: bool) -> list[Job]:
    """The CNN, the ResNet and the LSTM, or narrow ones."""
    m = md.models
    if small:
        return [
            Job("CNN", lambda: m.cnn((1, 12, 12)), (1, 12, 12)),
            Job("ResNet", lambda: m.resnet((3, 8, 8), 10, (1, 1), 8), (3, 8, 8)),
            Job("LSTM", lambda: m.lstm(50, 2, 8, 8), (12,), 2, 50),
        ]
    return [
        Job("CNN", lambda: m.cnn((1, 28, 28)), (1, 28, 28)),
        Job("ResNet-18", m.resnet18, (3, 32, 32)),
        Job("LSTM", lambda: m.lstm(10_000, 2), (64,), 2, 10_000),
    ]


def wait(device: str) -> None:
    """Until the device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


Clock = Callable[[], float]


def by_hand(job: Job, clients: Clients, device: str, rounds: int, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of each round of the loop that one would write."""
    torch.manual_seed(0)
    model = job.network().to(device)
    data = [(X.to(device), y.to(device)) for X, y in clients]
    seconds = []
    for _ in range(rounds):
        wait(device)
        began = clock()
        total = None
        start = copy.deepcopy(model.state_dict())
        for X, y in data:
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), LR)
            for rows in torch.split(torch.randperm(len(y)).to(device), BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(X[rows]), y[rows]).backward()
                optimizer.step()
            mine = {k: v.detach().clone() / len(data) for k, v in model.state_dict().items()}
            total = mine if total is None else {k: v + mine[k] for k, v in total.items()}
        assert total is not None
        model.load_state_dict(total)
        wait(device)
        seconds.append(clock() - began)
    return seconds


def by_engine(
    fed: md.Federation, engine: str, device: str, rounds: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Seconds of each round of a run, its evaluations left out. Raises RecipeError for a job that is not its own."""
    stamps: list[float] = []

    class Clocked(md.FedAvg):
        def round(self, s: object, clients: object) -> None:
            wait(device)
            began = clock()
            super().round(s, clients)  # type: ignore[arg-type]
            wait(device)
            stamps.append(clock() - began)

    md.run(Clocked(), fed, rounds, progress=False, engine=engine, device=device, eval_every=rounds)
    return stamps


def difference(fed: md.Federation, engine: str, device: str) -> float:
    """max |x − x_cpu|/max |x_cpu| after two rounds in float64."""
    settings = {"progress": False, "dtype": torch.float64, "eval_every": 2}
    on_device = md.run(md.FedAvg(), fed, 2, engine=engine, device=device, **settings).x
    on_cpu = md.run(md.FedAvg(), fed, 2, engine="seq", device="cpu", **settings).x
    return float((on_device - on_cpu).abs().max() / on_cpu.abs().max())


def measured(job: Job, device: str, clients: int, rows: int, repeats: int) -> list[str]:
    """The job's lines of the table."""
    data = job.clients(clients, rows)
    lines = []
    loop = 0.0
    few = job.federation(data[:4])
    for way in ("loop by hand", "seq", "fused", "stacked"):
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        try:
            off = "" if way == "loop by hand" else f"{difference(few, way, device):.1e}"
            if way == "loop by hand":
                times = by_hand(job, data, device, repeats + 1)[1:]
            else:
                times = by_engine(job.federation(data), way, device, repeats + 1)[1:]
        except RecipeError as e:
            lines.append(f"| {job.name} | {way} | refused: {str(e).split(': ', 1)[-1].split(';')[0]} | | | |")
            continue
        middle = statistics.median(times)
        loop = loop or middle
        peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.startswith("cuda") else float("nan")
        memory = "" if peak != peak else f"{peak:.0f}"
        spread = f"{1e3 * middle:.1f} ({1e3 * min(times):.1f}-{1e3 * max(times):.1f})"
        lines.append(f"| {job.name} | {way} | {spread} | {loop / middle:.2f} | {memory} | {off} |")
        if off and float(off) > APART:
            raise SystemExit(f"{job.name}, {way}: {off} apart from the CPU in float64, at most {APART} is rounding")
    return lines


def table(lines: list[str], about: str) -> str:
    """The table as the page has it."""
    head = "| job | way | ms a round | times as fast as the loop | MiB on the GPU | apart |"
    return "\n".join([about, "", head, "|---|---|---|---|---|---|", *lines])


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda")
    p.add_argument("--small", action="store_true", help="narrow networks, 6 clients with 40 rows")
    p.add_argument("--clients", type=int)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    a = p.parse_args(argv)
    gpu = a.device.startswith("cuda")
    if gpu and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; --small --device cpu goes the same way through on the CPU")
    if a.write and (not gpu or a.small):
        sys.exit("--write: the page's table is of a GPU at full size; leave --small out, and --device cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    clients = a.clients or (6 if a.small else 100)
    rows = 40 if a.small else 100
    name = torch.cuda.get_device_name(a.device) if gpu else "the CPU"
    about = f"{clients} clients with {rows} rows, torch {torch.__version__}, {name}, {a.repeats} rounds:"
    lines = [line for job in jobs(a.small) for line in measured(job, a.device, clients, rows, a.repeats)]
    text = table(lines, about)
    print(text)
    if a.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
