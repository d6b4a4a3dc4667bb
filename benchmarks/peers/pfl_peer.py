"""pfl-research: its simulated backend in one process."""

import itertools
import os
import sys

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from importlib.metadata import version

import torch
from peer import Task, torch_model
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

torch.set_num_threads(1)
task = Task(sys.argv[1])
job = task.job
net = torch_model(task.job)
loss = torch.nn.CrossEntropyLoss()
net.loss = lambda x, y, eval=False: loss(net(x), y)
net.metrics = lambda x, y, eval=True: {}
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
# A round's clients are asked for in order, so a user is a pair of round and client.
order = itertools.chain.from_iterable([(t, i) for i in job.cohort(t)] for t in range(1, task.rounds + 1))
order = itertools.chain(order, itertools.repeat((task.rounds, 0)))
rows = {(t, i): tuple(map(torch.from_numpy, task.rows(t, i))) for t in range(1, task.rounds + 1) for i in job.cohort(t)}
rows[task.rounds, 0] = tuple(map(torch.from_numpy, task.rows(task.rounds, 0)))
data = FederatedDataset(lambda user: Dataset(raw_data=list(rows[user]), user_id=str(user)), lambda: next(order))


class Clock(TrainingProcessCallback):
    def on_train_begin(self, *, model):
        task.begin()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        task.end()
        task.begin()
        return False, Metrics()


FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=task.rounds, evaluation_frequency=10**9, train_cohort_size=job.active, val_cohort_size=0
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[Clock()],
    send_metrics_to_platform=False,
)
task.tell(f"pfl {version('pfl')}", [p.detach().numpy() for p in net.parameters()])
