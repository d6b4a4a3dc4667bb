"""Seven methods on the same hundred unequal clients, three seeds each.

The clients hold real handwriting, ten at a time take part, and they differ threefold: in their labels, in their
learning rates (one decade) and in how many epochs they can afford (1 to 10). Six methods train a network. Fed3R solves
for the last layer on 200 random features, and counts each client once, when it first comes. Takes half a minute of CPU
time. Prints a table, writes demo/report.html.
"""

from pathlib import Path

from rich.console import Console

import medley as md


def main() -> None:
    where = {
        "data": md.datasets.digits(),
        "partition": md.partitions.Dirichlet(clients=100, alpha=0.1),
        "pace": md.scenarios.Pace(
            lr=md.distributions.Uniform(0.01, 0.1),
            epochs=md.distributions.Integers(1, 10),
            batch=32,
        ),
        "participation": 0.1,
    }
    methods = [md.FedNorton(), md.FedAvg(), md.FedProx(), md.FedNova(), md.SCAFFOLD(), md.FedDyn()]
    network = md.Federation(md.problems.Network(md.models.mlp(64, 10)), **where)
    board = md.compare(methods, network, rounds=100, seeds=3, base="FedAvg")
    if board.status.ok:
        features = md.Federation(md.problems.Network(md.models.fourier(64, 10, width=200, scale=3.0)), **where)
        closed = md.compare([md.Fed3R()], features, rounds=100, seeds=3)
        board.results += closed.results
        board.status = closed.status
    board.command = "python examples/demo.py"
    console = Console()
    console.print(board)
    if not board.status.ok:
        console.print(board.status)
    if board.results:
        page = board.save(Path("demo") / "report.html").resolve()
        console.print(f"Report: {page.as_uri()}", soft_wrap=True)


if __name__ == "__main__":
    main()
