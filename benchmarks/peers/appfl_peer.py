"""APPFL: its virtual-time simulation (`appfl.vsim`), synchronous, with all replies of a round."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from appfl.agent.sim_client import SimClientAgent
from appfl.agent.sim_server import SimServerAgent
from appfl.vsim import ClientProfile, SyncSimDriver
from omegaconf import OmegaConf
from peer import Task, torch_model

torch.set_num_threads(1)
task = Task(sys.argv[1])
job = task.job
logs = tempfile.mkdtemp()
now = [1]


class Rows(torch.utils.data.Dataset):
    """A client's rows in the order of the round; those of a second pass follow the first's."""

    def __init__(self, client):
        self.client = client
        self.round = 0

    def __len__(self):
        return task.orders.shape[2]

    def __getitem__(self, i):
        if self.round != now[0]:
            self.round, (self.X, self.y) = now[0], map(torch.from_numpy, task.rows(now[0], self.client))
        return self.X[i], self.y[i]


class Driver(SyncSimDriver):
    def _select_participants(self):
        now[0] = self._round + 1
        return [str(i) for i in job.cohort(now[0])]

    def _run_round(self):
        task.begin()
        done = super()._run_round()
        task.end()
        return done


train = {
    "trainer": "VanillaTrainer", "mode": "epoch", "num_local_epochs": 1, "optim": "SGD", "optim_args": {"lr": job.lr},
    "train_batch_size": job.batch, "train_data_shuffle": False, "loss_fn": "CrossEntropyLoss", "do_validation": False,
    "device": "cpu", "logging_output_dirname": logs, "logging_output_filename": "client", "optimize_memory": False,
}  # fmt: skip
model = Path(logs) / "net.py"
model.write_text(
    "from networks import module\n\n\ndef net(name):\n    return module(name)\n\n\n"
    "def accuracy(y, z):\n    return (z.argmax(1) == y).mean()\n"
)
train |= {"metric_path": str(model), "metric_name": "accuracy"}
models = {"model_path": str(model), "model_name": "net", "model_kwargs": {"name": job.model}}
server = SimServerAgent(
    OmegaConf.create(
        {
            "client_configs": {"model_configs": models, "train_configs": train},
            "server_configs": {
                "device": "cpu", "num_clients": job.clients, "num_global_epochs": task.rounds * job.active,
                "scheduler": "SyncScheduler", "scheduler_kwargs": {"num_clients": job.clients},
                "aggregator": "FedAvgAggregator",
                "aggregator_kwargs": {"client_weights_mode": "equal", "optimize_memory": False},
                "logging_output_dirname": logs, "logging_output_filename": "server", "optimize_memory": False,
            },
        }
    )
)  # fmt: skip
server.model.load_state_dict(torch_model(job).state_dict())
clients = [
    SimClientAgent(
        OmegaConf.create({"model_configs": models, "train_configs": train, "optimize_memory": False}), str(i), Rows(i)
    )
    for i in range(job.clients)
]
profiles = {c.get_id(): ClientProfile() for c in clients}
Driver(server, clients, profiles, job.active, server.logger, target_rounds=task.rounds).run()
state = server.get_parameters(serial_run=True)
task.tell(f"appfl {version('appfl')}", [state[name] for name, _ in server.model.named_parameters()])
