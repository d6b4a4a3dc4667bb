"""A run that is killed in the middle and goes on from its folder, to the same bits: resume.svg."""

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import numpy as np

import medley as md
from medley.report.figures import Line, lines

fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10, (32,))),
    data=md.datasets.digits(),
    partition=md.partitions.Dirichlet(clients=20, alpha=0.1),
    pace=md.scenarios.Pace(lr=0.1, epochs=md.distributions.Integers(1, 5)),
    participation=0.3,  # cohorts, batches and paces are drawn by chance
)


def die(row):
    """In round 17, end the process as a power cut would."""
    if row["round"] == 17:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        options = {"rounds": 40, "progress": False}
        first = options | {"checkpoint": place, "checkpoint_every": 5, "on_round": die}
        process = multiprocessing.get_context("fork").Process(target=md.run, args=(md.SCAFFOLD(), fed), kwargs=first)
        process.start()
        process.join()
        resumed = md.run(md.SCAFFOLD(), fed, resume=place, **options)
    uninterrupted = md.run(md.SCAFFOLD(), fed, **options)
    print(f"signal {-process.exitcode}; the same bits: {resumed.digest == uninterrupted.digest}")
    assert resumed.digest == uninterrupted.digest
    t = np.array(uninterrupted["round"])
    accuracies = np.array(uninterrupted["accuracy"])
    again = np.array(resumed["accuracy"])
    curves = [Line("never killed", 0, t, accuracies), Line("killed in round 17", 1, t[:18], again[:18], broken=True)]
    curves.append(Line("resumed from round 15", 2, t[15:], again[15:]))
    with open("resume.svg", "w", encoding="utf-8") as file:
        file.write(lines(curves, title="Killed and resumed", ylabel="accuracy", y="percent"))
