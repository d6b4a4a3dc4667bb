"""The script of plain.py for four hospitals, by Medley."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import medley as md


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


def loop(module, data, pace, seed):
    train(module, data)


if __name__ == "__main__":
    problem = md.problems.Network(network(), train=loop, start="module")
    fed = md.Federation(problem, clients=[rows(hospital) for hospital in range(4)])
    result = md.run(md.FedAvg(), fed, rounds=3)
    torch.save(result.model.state_dict(), "net.pt")
