"""Data sets: readers of files, published sets, synthetic families. Partitions belong to `medley.scenarios`."""

from . import augment as augment
from . import disk as disk
from . import tokens as tokens
from .dataset import Dataset
from .disk import saved
from .flamby import heart_disease, tcga_brca
from .folders import image_folder
from .hub import hub
from .images import cifar10, cifar100, emnist, fashion_mnist, mnist, tiny_imagenet, tiny_imagenet50
from .leaf import femnist, shakespeare
from .sources import frame as frame
from .sources import lazy as lazy
from .synthetic import gaussian_classes
from .tables import a9a, breast_cancer, csv, diabetes, digits, msd_years, npz, online_news, parquet, svmlight, w8a
from .text import sentiment140, sentiment140_tokens

__all__ = [
    "Dataset", "a9a", "breast_cancer", "cifar10", "cifar100", "csv", "diabetes", "digits", "emnist", "fashion_mnist",
    "femnist", "gaussian_classes", "heart_disease", "hub", "image_folder", "mnist", "msd_years", "npz", "online_news",
    "parquet", "saved", "sentiment140", "sentiment140_tokens", "shakespeare", "svmlight", "tcga_brca", "tiny_imagenet",
    "tiny_imagenet50", "w8a",
]  # fmt: skip
