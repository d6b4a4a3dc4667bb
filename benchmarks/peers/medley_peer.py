"""Medley: `md.run`, as anybody calls it."""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from peer import Task
from rounds import ByMedley

torch.set_num_threads(1)
task = Task(sys.argv[1])
seconds, parameters = ByMedley(task.job, "auto")(task.rounds - 1)  # and the last one, uncharged
task.cpu, task.wall = (list(column) for column in zip(*seconds, strict=True))
task.tell("medley", parameters)
