"""The script of plain.py at one hospital, by NVFlare's client API; with_nvflare_job.py starts it at four."""

import nvflare.client as flare
import torch
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


if __name__ == "__main__":
    flare.init()
    net = network()
    data = rows(int(flare.get_site_name().removeprefix("site-")) - 1)
    while flare.is_running():
        model = flare.receive()
        net.load_state_dict(model.params)
        train(net, data)
        flare.send(flare.FLModel(params=net.state_dict()))
