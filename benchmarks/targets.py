"""What should become faster, each beside its limit: an older checkout and this one in turns, and a table of the page.

    python benchmarks/targets.py --before COMMIT [--only NAME ...] [--repeats 7] [--reference COMMIT]
    python benchmarks/targets.py --table      # writes the table of docs/benchmarks.md from benchmarks/targets.json

The source of each commit is checked out into a folder for the time of the measurement; the environment is this one's.
Every figure is from a process of its own on one thread, in user and system CPU seconds, but for `processes`, whose gain
is of wall seconds. A repeat is one figure of each, in turns. Rounds of small models take less time than the machine
takes to change its pace: they are ten times as many turns of a few rounds, in processes that stay. Each finished target
is written at once, into the table of the page, too, and is not measured again for the same commits. ``--reference`` is
the commit whose figure is the limit of the targets that have none of their own: linear8's, of 22 November.
``MEDLEY_DATA`` names the folder of real data, which `plan` needs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from history import commit

HERE = Path(__file__).parent
ROOT = HERE.parent
FILE = HERE / "targets.json"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN = "<!-- targets: begin -->"
END = "<!-- targets: end -->"
REFERENCE_SHARE = 0.9
"""A target whose limit is another checkout's figure should take at most this share of it."""

CASES: dict[str, Callable[[], float]] = {}
"""The targets that are measured within a process, by name."""


class Target(NamedTuple):
    """What is measured, in words and a unit.

    Attributes:
        limit: None where the reference's figure is it
        more: whether more is better
        stays: whether one process gives all figures of a source
    """

    text: str
    unit: str
    limit: float | None
    more: bool = False
    stays: bool = False


TARGETS: dict[str, Target] = {}


def case(
    text: str, unit: str, limit: float | None, more: bool = False, stays: bool = False
) -> Callable[[Callable[[], float]], Any]:
    """Enter the function as the target of its name."""

    def enter(f: Callable[[], float]) -> Callable[[], float]:
        name = f.__name__.rstrip("_").replace("_", "-")
        TARGETS[name] = Target(text, unit, limit, more, stays)
        CASES[name] = f
        return f

    return enter


def cpu() -> float:
    """CPU seconds of this process and of its finished children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@contextmanager
def clocked() -> Iterator[list[float]]:
    """Adds the CPU seconds of the block to the list."""
    seconds: list[float] = []
    began = cpu()
    yield seconds
    seconds.append(cpu() - began)


def command(*words: str, **env: str) -> tuple[float, float]:
    """CPU seconds of `medley` with these words, and the most that it spent without a word on its outputs."""
    began = cpu()
    program = Path(sys.executable).with_name("medley")
    settings = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
    process = subprocess.Popen([program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=settings)
    assert process.stdout is not None
    assert process.stderr is not None
    pipes = [process.stdout.fileno(), process.stderr.fileno()]
    last = silent = spent = 0.0
    while pipes:
        ready = select.select(pipes, [], [], 0.05)[0]
        spent = max(spent, spent_by(process.pid))
        silent = max(silent, spent - last)
        for pipe in ready:
            if os.read(pipe, 1 << 16):
                last = spent
            else:
                pipes.remove(pipe)
    if process.wait():
        raise SystemExit(f"medley {' '.join(words)} failed")
    return cpu() - began, silent


def spent_by(pid: int) -> float:
    """CPU seconds of a running process; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@case("`medley --help`", "CPU s", 0.2)
def help_() -> float:
    return command("--help")[0]


@case("a completion in the shell", "CPU s", 0.15)
def completion() -> float:
    shell = {"_MEDLEY_COMPLETE": "complete_bash", "COMP_WORDS": "medley run --", "COMP_CWORD": "2"}
    return command(**shell)[0]


@case("`medley plan papers/fedecado/table1.toml`", "CPU s", 5.0)
def plan_table1() -> float:
    return command("plan", str(ROOT / "papers/fedecado/table1.toml"))[0]


@case("the same: longest time without a word", "CPU s", 1.0)
def plan_silence() -> float:
    return command("plan", str(ROOT / "papers/fedecado/table1.toml"))[1]


@case("`medley plan papers/fedecado/fashion_cnn.toml`", "CPU s", 5.0)
def plan_cnn() -> float:
    return command("plan", str(ROOT / "papers/fedecado/fashion_cnn.toml"))[0]


def tiny(clients: int) -> Any:
    """As many clients with six rows each, all of which take part."""
    import torch

    import medley as md

    g = torch.Generator().manual_seed(0)
    rows = [(torch.randn(6, 8, generator=g), torch.arange(6) % 3) for _ in range(clients)]
    pace = md.scenarios.Pace(lr=0.05, batch=3)
    return md.Federation(md.problems.Network(md.models.mlp(8, 3, hidden=(4,))), clients=rows, pace=pace)


def announced(clients: int) -> float:
    """A round's announced CPU seconds over a round's measured ones, or its inverse: the larger; a median of five turns.

    On one thread: another one waits for its work on a busy machine, and its waiting counts as CPU seconds.
    """
    import torch

    import medley as md
    from medley.experiments.estimate import estimates

    torch.set_num_threads(1)
    time.perf_counter = time.process_time
    fed = tiny(clients)
    more = max(3, 3000 // clients)
    ratios = []
    for _ in range(5):
        (estimate,) = estimates({"FedAvg": md.FedAvg()}, fed, 20)
        with clocked() as few:
            md.run(md.FedAvg(), fed, 2, eval_every=1000, progress=False)
        with clocked() as many:
            md.run(md.FedAvg(), fed, 2 + more, eval_every=1000, progress=False)
        ratios.append(estimate.seconds / ((many[0] - few[0]) / more))
    ratio = statistics.median(ratios)
    return max(ratio, 1 / ratio)


@case("a round announced by `plan` over a measured one, 100 clients of 6 rows (or its inverse)", "times", 1.5)
def plan_tiny() -> float:
    return announced(100)


@case("a round announced by `plan` over a measured one, 10 clients of 6 rows (or its inverse)", "times", 1.5)
def plan_ten() -> float:
    return announced(10)


@case("a round announced by `plan` over a measured one, 1,000 clients of 6 rows (or its inverse)", "times", 1.5)
def plan_thousand() -> float:
    return announced(1000)


@case("a round announced by `plan` over a measured one, 6,514 clients of 6 rows (or its inverse)", "times", 1.5)
def plan_many() -> float:
    return announced(6514)


def network(kind: str) -> Any:
    """A network of the jobs."""
    from networks import module

    return module(kind)


@case("evaluation of the CNN on 10,000 rows, over a plain loop's forward passes", "times", 1.1)
def evaluation() -> float:
    import torch

    import medley as md

    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    X = torch.randn(10_000, 1, 28, 28, generator=g)
    y = torch.randint(10, (10_000,), generator=g)
    net = network("cnn")
    fed = md.Federation(
        md.problems.Network(network("cnn")), clients=[(X[k::10].clone(), y[k::10].clone()) for k in range(10)]
    )
    draw = fed.draw(0)
    evaluator = draw.evaluator({}, False, False)
    x = draw.problem.initial(torch.Generator().manual_seed(0))

    def plain() -> None:
        with torch.inference_mode():
            for at in range(0, len(X), 500):
                torch.nn.functional.cross_entropy(net(X[at : at + 500]), y[at : at + 500])

    plain()
    evaluator.evaluate(x, None, 1)
    ratios = []
    for _ in range(3):
        with clocked() as a:
            plain()
        with clocked() as b:
            evaluator.evaluate(x, None, 1)
        ratios.append(b[0] / a[0])
    return statistics.median(ratios)


@cache
def rounds_of(model: str, active: int) -> Any:
    """The rounds of a job by the engine `fused`; the first are done."""
    import torch
    from job import Job
    from rounds import ByMedley

    torch.set_num_threads(1)
    way = ByMedley(Job.of(model, active), "fused")
    way(5)
    return way


def fused(model: str, active: int) -> float:
    """CPU milliseconds of a round of a job by the engine `fused`: the mean of a few, but the first."""
    rounds = 12 if active < 100 else 6 if active < 1000 else 3
    return 1e3 * statistics.mean(c for c, _ in rounds_of(model, active)(rounds)[0][1:])


@case("a round of `linear8`, 10 clients", "CPU ms", None, stays=True)
def linear8_10() -> float:
    return fused("linear8", 10)


@case("a round of `linear8`, 100 clients", "CPU ms", None, stays=True)
def linear8_100() -> float:
    return fused("linear8", 100)


@case("a round of `linear8`, 1,000 clients", "CPU ms", None, stays=True)
def linear8_1000() -> float:
    return fused("linear8", 1000)


@case("a round of `mlp`, 10 clients", "CPU ms", None, stays=True)
def mlp_10() -> float:
    return fused("mlp", 10)


class Everyone:
    """All clients take part; looks at the clock whenever they are drawn, which is when a round begins."""

    def __init__(self) -> None:
        self.began: list[float] = []

    def draw(self, round: int, sizes: Any, seed: int) -> Any:
        import numpy as np

        self.began.append(cpu())
        return np.arange(len(sizes))


def wide(d: int, clients: int, steps: int = 1, batch: int = 1) -> Any:
    """So many steps a round, on one row a client or on mini-batches, and a network of d parameters or a few more."""
    import torch

    import medley as md

    width = d // 1000
    net = torch.nn.Sequential(torch.nn.Linear(990, width), torch.nn.Linear(width, 10))
    n = batch * steps if batch > 1 else 1
    rows = [(torch.randn(n, 990), torch.arange(i, i + n) % 10) for i in range(clients)]
    pace = md.scenarios.Pace(lr=0.01, steps=steps, batch=batch)
    problem = md.problems.Network(net, start="module")
    return md.Federation(problem, clients=rows, classes=10, pace=pace, participation=Everyone())


def seconds_of_a_round(method: Any, fed: Any, rounds: int = 4) -> float:
    """CPU seconds of a round, the first and the evaluations apart."""
    import medley as md

    fed.participation.began.clear()
    md.run(method, fed, rounds + 1, eval_every=1000, eval_rows=1, progress=False, throw=False)
    began = fed.participation.began
    return statistics.median(b - a for a, b in itertools.pairwise(began[1:]))


@case("FedNorton's round of 10 clients with one step, 11 million parameters, over FedAvg's", "times", 1.3)
def norton_round() -> float:
    import torch

    import medley as md

    torch.set_num_threads(1)
    fed = wide(11_000_000, 10)
    return seconds_of_a_round(md.FedNorton(), fed) / seconds_of_a_round(md.FedAvg(), fed)


@case("the same with ten steps", "times", 1.05)
def norton_ten() -> float:
    import torch

    import medley as md

    torch.set_num_threads(1)
    fed = wide(11_000_000, 10, steps=10)
    return seconds_of_a_round(md.FedNorton(), fed, 2) / seconds_of_a_round(md.FedAvg(), fed, 2)


@case("the same with ten steps, each on a mini-batch of 32 rows", "times", 1.05)
def norton_batches() -> float:
    import torch

    import medley as md

    torch.set_num_threads(1)
    fed = wide(11_000_000, 10, steps=10, batch=32)
    return seconds_of_a_round(md.FedNorton(), fed, 2) / seconds_of_a_round(md.FedAvg(), fed, 2)


@case("FedNorton's round of 1,000 clients with one step, 1.1 million parameters (10 GB), over FedAvg's", "times", 1.3)
def norton_many() -> float:
    import torch

    import medley as md

    torch.set_num_threads(1)
    fed = wide(1_100_000, 1000)
    return seconds_of_a_round(md.FedNorton(), fed, 2) / seconds_of_a_round(md.FedAvg(), fed, 2)


def vectors(method: Any, clients: int, d: int = 1_000_000) -> float:
    """Vectors of d numbers at the peak of three rounds, beyond what the process had before."""
    import gc

    import torch

    import medley as md
    from medley.runtime import memory

    torch.set_num_threads(1)
    fed = wide(d, clients)
    md.run(md.FedAvg(), fed, 1, eval_rows=1, progress=False)
    gc.collect()
    memory.restart()
    before = memory.peak()
    md.run(method, fed, 4, eval_every=1000, eval_rows=1, progress=False, throw=False)
    return (memory.peak() - before) / (4 * d)


@case("FedNorton's memory for one further client, 1 million parameters", "d", 3.0)
def norton_client() -> float:
    import medley as md

    return (vectors(md.FedNorton(), 40) - vectors(md.FedNorton(), 10)) / 30


@case("FedNorton's memory besides, from 10 and 40 clients", "d", 12.0)
def norton_base() -> float:
    import medley as md

    ten = vectors(md.FedNorton(), 10)
    return ten - 10 * (vectors(md.FedNorton(), 40) - ten) / 30


@cache
def frames() -> dict[str, Any]:
    """Six sites of 1,000 rows."""
    import numpy as np
    import pandas as pd

    g = np.random.default_rng(0)
    sites = {}
    for k in range(6):
        table = pd.DataFrame(g.normal(size=(1000, 4)), columns=list("abcd"))
        table["s"] = g.choice(["u", "v", "w"], 1000)
        table["died"] = (g.random(1000) < 1 / (1 + np.exp(-(table["a"] - 0.5 * table["b"] + 0.3)))).astype(int)
        sites[f"site{k}"] = table
    return sites


def study() -> Any:
    """The call that fits a logistic regression to these rows."""
    import medley as md

    sites = frames()
    return lambda: md.statistics.Study(sites).glm("died ~ a + b + c + d + C(s)", "binomial")


@cache
def further_frames() -> dict[str, Any]:
    """The same rows with more columns: a number with gaps, a count, and months until an event or the end."""
    import numpy as np

    g = np.random.default_rng(1)
    sites = {}
    for name, table in frames().items():
        mean = np.exp(-0.3 * table["a"])
        gaps = np.where(g.random(1000) < 0.2, np.nan, table["b"] + g.normal(size=1000))
        months = np.round(10 * g.exponential(mean) + 0.1, 1)
        sites[name] = table.assign(gaps=gaps, count=g.poisson(mean), months=months, event=1 * (g.random(1000) < 0.6))
    return sites


ANALYSES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "linear": ("a linear regression", lambda s: s.glm("c ~ a + b + d + C(s)")),
    "poisson": ("a Poisson regression", lambda s: s.glm("count ~ a + b + C(s)", "poisson")),
    "cox": ("Cox's model", lambda s: s.cox("months ~ a + b + C(s)", "event")),
    "kaplan-meier": ("survival curves of three groups", lambda s: s.kaplan_meier("months", "event", 0.5, 30.0, "s")),
    "mixed": ("a mixed model", lambda s: s.mixed("c ~ a + b + (1 | site)")),
    "describe": ("a table of three groups", lambda s: s.describe(["a", "b", "died"], "s")),
    "quantiles": ("quantiles of three columns", lambda s: s.describe(["a", "b", "c"])),
    "impute": ("two imputations", lambda s: s.impute(["gaps", "b"], m=2, iterations=2, seed=1).glm("gaps ~ b")),
}
"""Other analyses of these rows, in words."""


def enter_analysis(name: str, text: str, call: Callable[[Any], object]) -> None:
    """Enter one of these as a target without a limit: other work should not make it slower."""

    def analysis() -> float:
        import medley as md

        rules = md.statistics.Rules(exact=name == "impute")  # sites that round impute nothing
        run = lambda: call(md.statistics.Study(further_frames(), rules=rules))
        run()
        with clocked() as seconds:
            run()
        return 1e3 * seconds[0]

    analysis.__name__ = f"study-{name}"
    case(f"{text}, the same sites", "CPU ms", None, stays=True)(analysis)


@case("a logistic regression over six sites of 1,000 rows", "CPU ms", 25.0)
def glm() -> float:
    import torch

    torch.set_num_threads(1)
    fit = study()
    fit()
    times = []
    for _ in range(15):
        with clocked() as seconds:
            fit()
        times += seconds
    return 1e3 * statistics.median(times)


@case("the first call of the same, pandas and torch imported", "CPU s", 0.2)
def glm_first() -> float:
    import pandas  # noqa: F401
    import torch

    torch.set_num_threads(1)
    fit = study()
    with clocked() as seconds:
        fit()
    return seconds[0]


for key, (text, call) in ANALYSES.items():
    enter_analysis(key, text, call)


@case("`Processes(2)` on the CNN with 100 clients, over one process", "times as fast, wall", 1.8, more=True)
def processes() -> float:
    import torch
    from job import Job
    from rounds import ByMedley

    import medley as md

    torch.set_num_threads(1)
    job = Job.of("cnn", 100)
    wall = lambda way: statistics.median(w for _, w in way(3)[0])
    return wall(ByMedley(job, "auto")) / wall(ByMedley(job, "auto", transport=md.transports.Processes(2)))


class Child:
    """A process that gives a figure of this source for each line that it reads."""

    def __init__(self, source: Path, name: str) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # a package that is installed has bytecode
        command = [sys.executable, __file__, "--child", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def figure(self) -> float:
        """The next figure."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith(FIGURE):
                return float(line.removeprefix(FIGURE))
        raise SystemExit(f"{' '.join(map(str, self.process.args))} failed")

    def end(self) -> None:
        """End the process."""
        self.process.communicate()


FIGURE = "figure "


def serve(name: str) -> None:
    """Print a figure for each line of the standard input."""
    for _ in sys.stdin:
        print(f"{FIGURE}{CASES[name]()}", flush=True)


def turn(checkouts: dict[str, Path], name: str, times: int = 1) -> Iterator[dict[str, float]]:
    """As many turns of one figure of each source, each source in one process."""
    children = {who: Child(source, name) for who, source in checkouts.items()}
    try:
        for _ in range(times):
            yield {who: child.figure() for who, child in children.items()}
    finally:
        for child in children.values():
            child.end()


@contextmanager
def sources(commits: dict[str, str]) -> Iterator[dict[str, Path]]:
    """The source of each commit, compiled, in a worktree until the end of the block; this checkout's as "after"."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with TemporaryDirectory() as folder:
        try:
            for who, commit in commits.items():
                subprocess.run([*git, "add", "-q", "--detach", f"{folder}/{who}", commit], check=True)
            out = {who: Path(folder, who, "src") for who in commits} | {"after": ROOT / "src"}
            for who in commits:  # an earlier version has another name in the index of packages
                about = out[who] / "medley-0.dist-info"
                about.mkdir()
                (about / "METADATA").write_text("Metadata-Version: 2.1\nName: medley\nVersion: 0\n", encoding="utf-8")
            for source in out.values():
                subprocess.run([sys.executable, "-m", "compileall", "-q", source], check=True)
            yield out
        finally:
            for who in commits:
                subprocess.run([*git, "remove", "--force", f"{folder}/{who}"], check=False)


def measured(name: str, checkouts: dict[str, Path], repeats: int) -> dict[str, Any]:
    """Figures of each checkout, in turns: median, least and most."""
    begin = os.getloadavg()[0]
    if TARGETS[name].stays:
        repeats *= 10
        turns = [*turn(checkouts, name, repeats)]
    else:
        turns = [figures for _ in range(repeats) for figures in turn(checkouts, name)]
    out: dict[str, Any] = {}
    for who in checkouts:
        values = [turn[who] for turn in turns]
        out[who] = [float(f"{v:.4g}") for v in (statistics.median(values), min(values), max(values))]
    out["ratio"] = float(f"{statistics.median(t['before'] / t['after'] for t in turns):.3g}")
    return {**out, "repeats": repeats, "load": [round(begin, 1), round(os.getloadavg()[0], 1)]}


def written(three: list[float]) -> str:
    """Median, least and most."""
    middle, least, most = (f"{v:.3g}" for v in three)
    return f"{middle} ({least}-{most})"


def table(results: dict[str, Any]) -> str:
    """The rows of the page, in the order of the script."""
    lines = ["| what | before | after | limit | before / after | load |", "|---|---|---|---|---|---|"]
    for name, target in TARGETS.items():
        if name not in results:
            continue
        row = results[name]
        limit = REFERENCE_SHARE * row["reference"][0] if target.limit is None and "reference" in row else target.limit
        reached = limit is not None and (row["after"][0] >= limit if target.more else row["after"][0] <= limit)
        bound = "" if limit is None else f"{limit:.3g}{'' if reached else ', not reached'}"
        low, high = row["load"]
        lines.append(
            f"| {target.text}, {target.unit} | {written(row['before'])} | {written(row['after'])} | {bound} | "
            f"{row['ratio']:.3g} | {low:.1f} to {high:.1f} |"
        )
    return "\n".join(lines)


def page(text: str, rows: str) -> str:
    """The page with these rows between its two marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{rows}\n\n{END}{rest.split(END)[1]}"


def saved() -> dict[str, Any]:
    """The figures so far."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT")
    parser.add_argument("--reference", metavar="COMMIT")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--table", action="store_true", help="write docs/benchmarks.md and measure nothing")
    parser.add_argument("--child", choices=TARGETS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(args.child)
        return
    if args.before is None and not args.table:
        raise SystemExit("--before: give a commit to compare with, or --table")
    commits = {} if args.table else {"before": args.before} | ({"reference": args.reference} if args.reference else {})
    of = [*commits.values(), commit()]  # of the tree as it was: the figures below are written into it
    with sources(commits) as checkouts:
        for name in [] if args.table else args.only:
            ways = {
                who: source for who, source in checkouts.items() if who != "reference" or TARGETS[name].limit is None
            }
            before = saved().get(name, {})
            if before.get("of") == of and before["repeats"] >= args.repeats:
                continue
            row = measured(name, ways, args.repeats) | {"of": of}
            FILE.write_text(json.dumps(saved() | {name: row}, indent=1) + "\n", encoding="utf-8")
            print(name, json.dumps(row), flush=True)
            write_table()
    write_table()


def write_table() -> None:
    """Write the figures so far into the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), table(saved())), encoding="utf-8")


if __name__ == "__main__":
    main()
