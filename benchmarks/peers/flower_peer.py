"""Flower: its simulation on Ray with two workers. CPU seconds are the whole tree of processes'."""

import os
import sys
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = HERE

import flwr
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, HERE)
client_app = ClientApp()
server_app = ServerApp()
state = {}
path = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""


def tree_cpu():
    """Seconds of this process and of all that descend from it, as Ray's workers do."""
    parents = {}
    ticks = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(pid)], ticks[int(pid)] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = [os.getpid()]
    for pid in ours:
        ours += [child for child, parent in parents.items() if parent == pid]
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


@client_app.query()
def who(message, context):
    number = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"m": number}), reply_to=message)


@client_app.train()
def train(message, context):
    import torch
    from peer import Task, torch_model

    config = message.content["config"]
    if not state:
        torch.set_num_threads(1)
        state["task"] = Task(config["path"])
        state["model"] = torch_model(state["task"].job)
    task = state["task"]
    model = state["model"]
    loss = torch.nn.CrossEntropyLoss()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=task.job.lr)
    rows = task.rows(config["server-round"], int(context.node_config["partition-id"]))
    X, y = map(torch.from_numpy, rows)
    for at in range(0, len(X), task.job.batch):
        optimizer.zero_grad()
        loss(model(X[at : at + task.job.batch]), y[at : at + task.job.batch]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(X)})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        self.task.begin(tree_cpu())
        ids = [self.nodes[i] for i in self.task.job.cohort(server_round)]
        config = ConfigRecord({**config, "server-round": server_round})
        return self._construct_messages(RecordDict({"arrays": arrays, "config": config}), ids, "train")

    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        self.task.end(tree_cpu())
        return out


@server_app.main()
def main(grid, context):
    from peer import Task, torch_model

    task = Task(path)
    while len(list(grid.get_node_ids())) < task.job.clients:
        time.sleep(0.2)
    ask = lambda i: Message(RecordDict({"c": ConfigRecord({"a": 1})}), dst_node_id=i, message_type="query")
    replies = grid.send_and_receive([ask(i) for i in grid.get_node_ids()])
    strategy = Timed(fraction_evaluate=0.0)
    strategy.task = task
    strategy.nodes = {int(r.content["m"]["client"]): r.metadata.src_node_id for r in replies}
    start = ArrayRecord(torch_model(task.job).state_dict())
    config = ConfigRecord({"path": path})
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=task.rounds, train_config=config)
    task.tell(f"flwr {flwr.__version__}, simulation", result.arrays.to_numpy_ndarrays())


if __name__ == "__main__":
    from peer import Task

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=Task(path).job.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "log_to_driver": False, "logging_level": "error"},
        },
    )
