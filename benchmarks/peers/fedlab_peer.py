"""FedLab: its standalone pipeline with a serial trainer."""

import logging
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from peer import Task, torch_model
from torch.utils.data import DataLoader, TensorDataset

logging.disable(logging.INFO)
torch.set_num_threads(1)
task = Task(sys.argv[1])
job = task.job


class Rows:
    round = 1

    def get_dataloader(self, client, batch):
        return DataLoader(self.now[client], batch_size=batch, shuffle=False)


class Handler(SyncServerHandler):
    def sample_clients(self):
        ids = job.cohort(self.round + 1)
        rows.now = {i: TensorDataset(*map(torch.from_numpy, task.rows(self.round + 1, i))) for i in ids}
        task.begin()
        return ids


class Pipeline(StandalonePipeline):
    def evaluate(self):
        task.end()


rows = Rows()
trainer = SGDSerialClientTrainer(torch_model(job), job.clients, cuda=False)
trainer.setup_dataset(rows)
trainer.setup_optim(1, job.batch, job.lr)
handler = Handler(torch_model(job), task.rounds, job.active / job.clients)
Pipeline(handler, trainer).main()
task.tell("fedlab 1.3.0", [p.detach().numpy() for p in handler.model.parameters()])
