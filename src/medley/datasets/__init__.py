"""Data sets: readers of files, published sets, synthetic families. Partitions are in `medley.partitions`.

Side: the client's, where the files are. Readers open the files that you name, and never the network.
"""

from ..contract.public import public
from . import augment, disk, tokens
from .dataset import Dataset
from .disk import saved
from .flamby import heart_disease, tcga_brca
from .images import cifar10, cifar100, emnist, fashion_mnist, mnist, tiny_imagenet, tiny_imagenet50
from .ingest.raw import lazy
from .leaf import femnist, shakespeare
from .readers.csv import csv
from .readers.folders import image_folder
from .readers.hub import hub
from .readers.npz import npz
from .readers.parquet import parquet
from .readers.scans import scan_folder
from .readers.sql import sql
from .readers.svmlight import a9a, svmlight, w8a
from .readers.table import frame
from .synthetic import gaussian_classes
from .tables import breast_cancer, diabetes, digits, msd_years, online_news
from .text import sentiment140, sentiment140_tokens

__all__ = [
    "Dataset", "a9a", "augment", "breast_cancer", "cifar10", "cifar100", "csv", "diabetes", "digits", "disk",
    "emnist", "fashion_mnist", "femnist", "frame", "gaussian_classes", "heart_disease", "hub", "image_folder",
    "lazy", "mnist", "msd_years", "npz", "online_news", "parquet", "saved", "scan_folder", "sentiment140",
    "sentiment140_tokens", "shakespeare", "sql", "svmlight", "tcga_brca", "tiny_imagenet", "tiny_imagenet50", "tokens",
    "w8a",
]  # fmt: skip

public(__name__)
