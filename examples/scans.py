"""Scans of three hospitals, each with axes and a spacing of its own, to a segmentation network: scans.svg."""

from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import torch
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform
from torch import nn

import medley as md
from medley.report.figures import forest

HOSPITALS = {"Bern": ("RAS", 1.0, 0.4), "Basel": ("PIR", 1.0, 0.4), "Chur": ("LPS", 0.8, 0.8)}  # axes, mm, noise


def scan(rng: np.random.Generator, spacing: float) -> np.ndarray:
    """A mask of 32 × 32 mm and five slices: an organ, class 1, and a tumour in it, class 2."""
    x, y, z = np.meshgrid(*[np.arange(spacing / 2, 32, spacing)] * 2, np.arange(5), indexing="ij")
    u, v, a, b = rng.uniform((13, 13, 7, 7), (19, 19, 10, 10))
    mask = (((x - u) / a) ** 2 + ((y - v) / b) ** 2 < 1).astype(np.uint8)
    mask[(x - u - 2) ** 2 + (y - v) ** 2 + 2 * (z - 2) ** 2 < rng.uniform(9, 20)] = 2
    return mask


def save(file: Path, volume: np.ndarray, axes: str, spacing: float) -> None:
    """Write a volume with its axes in another order and direction, as its header then says."""
    image = nibabel.Nifti1Image(volume, np.diag([spacing, spacing, 3.0, 1.0]))
    file.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image.as_reoriented(ornt_transform(io_orientation(image.affine), axcodes2ornt(axes))), file)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 16, 2, 2), nn.ReLU())
        self.out = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.down(X), self.deep(self.down(X))], 1))


rng = np.random.default_rng(0)
for hospital, (axes, spacing, noise) in HOSPITALS.items():
    for name in (f"{hospital} {patient}.nii.gz" for patient in range(20)):
        mask = scan(rng, spacing)
        save(Path("scans", hospital, "masks", name), mask, axes, spacing)
        pixels = (mask + noise * rng.normal(size=mask.shape)).astype(np.float32)
        save(Path("scans", hospital, "images", name), pixels, axes, spacing)
data = md.datasets.scan_folder("scans", spacing=1.0, size=32).split(test=0.4, by="client", together="patient")
pace = md.scenarios.Pace(lr=0.01, batch=10, optimizer=torch.optim.Adam)
fed = md.Federation(md.problems.Network(UNet()), data=data, partition=md.partitions.ByKey("client"), pace=pace)
result = md.run(md.FedAvg(), fed, rounds=10, eval_every=5, progress=False)
outputs = result.model(data.X_test).detach()
rows = {}
for hospital in HOSPITALS:
    of = data.test_keys["client"] == hospital
    part = (outputs[of], data.y_test[of], data.test_keys["patient"][of])
    for name, number in {"organ": 1, "tumour": 2}.items():
        dice = md.metrics.bootstrap(md.metrics.Dice(3, only=number), *part)
        distance = md.metrics.bootstrap(md.metrics.Hausdorff(3, only=number), *part)
        rows[f"{hospital}, {name}"] = {**dice._asdict(), "mm": distance.value}
table = pd.DataFrame.from_dict(rows, "index").rename(columns={"value": "estimate", "low": "lower", "high": "upper"})
Path("scans.svg").write_text(
    forest(table, title="Dice by hospital", null=None, xlabel="Dice, 95 % over patients"), "utf-8"
)
print(table.round(3))
