"""LoRA-style adapters on a small transformer that is pre-trained on half of the rows: adapters.svg.

The base is frozen; each client trains rank-2 adapters of two layers, which are shared, and a head of its own.
"""

import numpy as np
from torch import Tensor, nn

import medley as md
from medley.report.figures import Line, lines


class Lora(nn.Module):
    """A frozen linear layer and a trained product of two narrow matrices."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        return self.base(x) + self.up(self.down(x))


class Rows(nn.Module):
    """A transformer that reads the eight lines of a digit as eight words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of ten classes."""
        return self.head(self.mix(self.block(self.embed(x.view(-1, 8, 8))).mean(1)).relu())


data = md.datasets.digits()
half = data.where(lambda X, y: y < 5, "the digits 0 to 4"), data.where(lambda X, y: y >= 5, "the digits 5 to 9")
pace = md.scenarios.Pace(lr=0.05, epochs=2)
central = md.Federation(md.problems.Network(Rows()), data=half[0], partition=md.partitions.IID(1), pace=pace)
net = md.run(md.FedAvg(), central, rounds=10, progress=False).model.requires_grad_(False)
net.embed, net.mix, net.head = Lora(net.embed), Lora(net.mix), nn.Linear(32, 10)
problem = md.problems.Network(net, shared=["*.down.*", "*.up.*"], start="module")
fed = md.Federation(problem, data=half[1], partition=md.partitions.Labels(10, 2), own_test=True, pace=pace)
result = md.run(md.FedAvg(), fed, rounds=20, clients_every=2, progress=False)
print(f"{len(result.x)} of {sum(p.numel() for p in net.parameters())} parameters travel")
personal = [row for row in result.history if "personal_accuracy" in row]
line = Line("own heads", 0, *(np.array([row[k] for row in personal]) for k in ("round", "personal_accuracy")))
with open("adapters.svg", "w", encoding="utf-8") as file:
    file.write(lines([line], title="Adapters", ylabel="accuracy of clients' models", y="percent"))
