"""Synthetic data, which needs no file."""

from __future__ import annotations

import torch

from ..contract import RecipeError, checked
from ..runtime import streams
from .dataset import Dataset


@checked("datasets")
def gaussian_classes(
    n: int = 60_000,
    features: int = 784,
    classes: int = 10,
    seed: int = 0,
    test: int = 10_000,
    separation: float | int = 4.0,
) -> Dataset:
    """Unit Gaussians around one random centre per class, with uniform and independent labels.

    The best classifier of two classes whose centres lie s apart errs with probability Φ(-s/2).

    Args:
        n: Training rows; default 60,000.
        features: Length of a row; default 784.
        classes: Number of classes; default 10.
        seed: The seed of the random stream (seed, "gaussian_classes"); default 0.
        test: Test rows; default 10,000. 0 for no test set.
        separation: Distance of two centres in standard deviations, root mean square; default 4.

    Raises RecipeError if a size is below 1, or ``test`` below 0.
    """
    if min(n, features, classes) < 1 or test < 0:
        raise RecipeError(f"datasets.gaussian_classes(n={n}, features={features}, classes={classes}, test={test}).")
    g = streams.generator(seed, "gaussian_classes")
    centres = torch.randn(classes, features, generator=g) * (separation / (2 * features) ** 0.5)
    y = torch.randint(classes, (n + test,), generator=g)
    X = torch.randn(n + test, features, generator=g).add_(centres[y])
    test_set = (X[n:], y[n:]) if test else (None, None)
    return Dataset(X[:n], y[:n], test_set[0], test_set[1], classes, name="gaussian_classes")
