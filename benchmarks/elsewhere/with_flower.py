"""The script of plain.py for four hospitals, by Flower's `fit`."""

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rows(hospital):
    X, y = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(X[hospital::4] / 16).float(), torch.tensor(y[hospital::4]))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(net, data):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for X, y in DataLoader(data, batch_size=32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()


def arrays(net):
    return [value.numpy() for value in net.state_dict().values()]


class Hospital(NumPyClient):
    def __init__(self, hospital):
        self.data = rows(hospital)

    def fit(self, parameters, config):
        net = network()
        net.load_state_dict({k: torch.tensor(v) for k, v in zip(net.state_dict(), parameters, strict=True)})
        train(net, self.data)
        return arrays(net), len(self.data), {}


class Saving(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        net = network()
        values = parameters_to_ndarrays(parameters)
        net.load_state_dict({k: torch.tensor(v) for k, v in zip(net.state_dict(), values, strict=True)})
        torch.save(net.state_dict(), "net.pt")
        return parameters, metrics


def client_fn(context):
    return Hospital(int(context.node_config["partition-id"])).to_client()


def server_fn(context):
    strategy = Saving(
        fraction_evaluate=0.0,
        min_fit_clients=4,
        min_available_clients=4,
        initial_parameters=ndarrays_to_parameters(arrays(network())),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=3))


if __name__ == "__main__":
    run_simulation(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), num_supernodes=4)
