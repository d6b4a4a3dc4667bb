"""A user's own loss is tried on two rows before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import medley as md
from medley.problems.network.own_loss import check_mean
from support.pairs import quick

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([1.0, -2.0, 3.0, 0.5])
TIMES = Y.exp()


def trained(net: nn.Module, loss: Callable[[Any, Any], Any], y: Tensor = Y) -> float:
    data = md.datasets.Dataset(X, y)
    fed = md.Federation(
        md.problems.Network(net, loss=loss),
        data=data,
        partition=md.partitions.IID(2),
        pace=md.scenarios.Pace(lr=0.05, batch=10, epochs=5),
    )
    result = md.run(md.FedAvg(), fed, 4, progress=False)
    return float(result.summary["loss"] / result.history[0]["loss"])


def squares(z: Tensor, y: Tensor) -> Tensor:
    return ((z - y) ** 2).mean()


@pytest.mark.parametrize(
    "loss",
    [
        squares,
        nn.HuberLoss(),
        lambda z, y: (z - y) ** 2,
        lambda z, y: torch.maximum(0.9 * (y - z), 0.1 * (z - y)).mean(),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_outputs_and_targets_that_would_make_pairs_are_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """[n, 1] − [n] is [n, n], and so is [n] − [n, 1]; the labels begin with equal ones."""
    y = torch.where(torch.arange(40) < 30, Y[0], Y)
    with pytest.raises(md.BadData, match=r"outputs are \[1\] a row and the targets \[\].*outputs.squeeze\(1\)"):
        trained(nn.Linear(4, 1), loss, y)
    with pytest.raises(md.BadData, match=r"outputs are \[\] a row and the targets \[1\].*y.squeeze\(1\)"):
        trained(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), loss, Y[:, None])


def cox(z: Tensor, times: Tensor) -> Tensor:
    """Cox's partial likelihood by its matrix of who is at risk, which is [n, n] on purpose."""
    at_risk = times[:, None] <= times
    return (torch.where(at_risk, z.T, -torch.inf).logsumexp(1) - z[:, 0]).mean()


def ranking(z: Tensor, y: Tensor) -> Tensor:
    """A loss of pairs of rows."""
    z = z.squeeze(1)
    return F.softplus(-(z[:, None] - z) * (y[:, None] - y).sign()).mean()


def moments(z: Tensor, y: Tensor) -> Tensor:
    """A loss of two distributions, which does not ask which target is whose."""
    return (z.mean() - y.mean()) ** 2 + (z.flatten().std() - y.std()) ** 2


OWN_SHAPES = [
    lambda z, y: squares(z[:, 0], y),
    lambda z, y: squares(z.flatten(), y),
    lambda z, y: squares(z, y[:, None]),
    lambda z, y: z.square().mean(),
    moments,
    ranking,
]


@pytest.mark.parametrize("loss", quick(2, OWN_SHAPES))
def test_losses_that_reshape_or_pair_rows_themselves_train(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert trained(nn.Linear(4, 1), loss) < 0.9


def test_a_loss_across_rows_trains_on_targets_of_either_shape() -> None:
    assert trained(nn.Linear(4, 1), cox, TIMES) < 1.0
    assert trained(nn.Linear(4, 1), lambda z, y: squares(z, y), Y[:, None]) < 0.9


OTHER = nn.Linear(4, 1)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda z: z.mean(), "too many positional arguments; it is called with"),
        (lambda z, y: squares(z[:, 0], y).item(), "returned float; return a tensor"),
        (lambda z, y: squares(z[:, 0], y).detach().numpy(), "returned ndarray; return a tensor"),
        (lambda z, y: None, "returned NoneType"),
        (lambda z, y: squares(z[:, 0], y).detach(), "no gradient with respect to the outputs"),
        (lambda z, y: squares(z[:, 0], y) + OTHER.weight.square().sum(), "has trainable parameters of its own"),
    ],
)
def test_what_is_no_loss_is_refused_before_training(loss: Callable[..., Any], said: str) -> None:
    with pytest.raises(md.RecipeError, match=said):
        trained(nn.Linear(4, 1), loss)


def test_a_loss_that_wants_more_than_two_rows_trains() -> None:
    def wide(z: Tensor, y: Tensor) -> Tensor:
        if len(z) < 5:
            raise ValueError("few rows")
        return squares(z[:, 0], y)

    assert trained(nn.Linear(4, 1), wide) < 0.9


def of_five(z: Tensor, y: Tensor) -> Tensor:
    """A loss that wants five rows, and makes pairs of them."""
    assert len(z) >= 5
    return squares(z, y)


@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1)])
@pytest.mark.shapes
def test_pairs_are_refused_in_any_shape_and_where_two_rows_are_too_few(shape: tuple[int, ...]) -> None:
    net = nn.Sequential(nn.Linear(4, 1), nn.Unflatten(1, shape))
    with pytest.raises(md.BadData, match=r"outputs are \[1, 1.*targets \[\].*outputs.reshape\(y.shape\)"):
        trained(net, squares)
    with pytest.raises(md.BadData, match=r"outputs are \[1\] a row and the targets \[\].*outputs.squeeze\(1\)"):
        trained(nn.Linear(4, 1), of_five)


def test_pairs_of_rows_with_several_outputs_are_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (1, 3)))
    with pytest.raises(md.BadData, match=r"outputs are \[1, 3\] a row and the targets \[3\].*outputs.squeeze\(1\)"):
        trained(net, squares, X[:, :3])
    assert trained(net, lambda z, y: squares(z.squeeze(1), y), X[:, :3]) < 0.9


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(reduction="sum"),
        lambda z, y: F.huber_loss(z, y, reduction="sum") / 7,
        lambda z, y: ((z - y) ** 2).sum(0),
    ],
)
def test_a_loss_that_is_a_sum_over_rows_is_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(md.RecipeError, match=r"is a sum over rows.*return the mean, as reduction='mean' does") as e:
        trained(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), loss)
    assert e.value.key == "loss"


def test_losses_that_grow_with_the_batch_and_are_no_sums_pass() -> None:
    """Each row against all rows of the batch: log 2 of two rows with equal outputs, log 4 of four."""
    contrast = lambda z, y: F.cross_entropy(0 * z @ z.T, torch.arange(len(z)))
    check_mean(contrast, torch.ones(2, 1), Y[:2], contrast(torch.ones(2, 1), Y[:2]))
    nothing = lambda z, y: 0 * z.sum()
    check_mean(nothing, torch.ones(2, 1), Y[:2], torch.tensor(0.0))
    assert trained(nn.Linear(4, 1), cox, TIMES) < 1


def fails(z: Tensor, y: Tensor) -> Tensor:
    raise ValueError("no such loss")


def fails_in_training(z: Tensor, y: Tensor) -> Any:
    """Two rows are tried, 20 evaluated, 10 trained on."""
    return fails(z, y) if len(z) == 10 else squares(z[:, 0], y)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (fails, r"Network\(loss=fails\) failed on outputs \[\d+, 1\] and targets \[\d+\], ValueError: no such loss"),
        (lambda z, y: (z @ y).mean(), r"failed on outputs \[20, 1\] and targets \[20\], RuntimeError"),
        (
            F.binary_cross_entropy_with_logits,
            r"must be the same as input size.*; for equal shapes take outputs.squeeze\(1\) in the loss",
        ),
        (lambda z, y: undefined, r"NameError: name 'undefined' is not defined$"),  # type: ignore[name-defined]  # noqa: F821
        (lambda z, y: squares(z[:, 0], y) if len(z) < 5 else 1.0, "returned float; return a tensor"),
    ],
)
@pytest.mark.shapes
def test_a_loss_that_fails_is_refused_with_both_shapes(loss: Callable[..., Any], said: str) -> None:
    with pytest.raises(md.RecipeError, match=said) as e:
        trained(nn.Linear(4, 1), loss, Y.sigmoid())
    assert e.value.key == "loss"


@pytest.mark.shapes
def test_a_loss_that_fails_in_training_is_its_clients_failure() -> None:
    """So that ReplyPolicy(faulty="drop") goes on without the client."""
    with pytest.raises(md.ClientFailed, match=r"client 0 failed in round 1 .*failed on outputs \[10, 1\]") as e:
        trained(nn.Linear(4, 1), fails_in_training)
    assert "no such loss" in e.value.traceback


def test_an_error_without_words_leaves_the_choice_of_an_engine_to_the_others() -> None:
    def wordless(z: Tensor, y: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(z):
            raise ValueError  # pytest gives an assert words
        return squares(z[:, 0], y)

    assert trained(nn.Linear(4, 1), wordless) < 0.9


@pytest.mark.parametrize("loss", [nn.BCELoss(), nn.HuberLoss(), lambda z, y: F.huber_loss(z, y)])
def test_whole_numbers_for_a_loss_that_takes_floats_are_refused_with_the_remedy(loss: Callable[..., Any]) -> None:
    """Some fail at once, some by their gradient."""
    net = nn.Sequential(nn.Linear(4, 2), nn.Sigmoid())
    y = torch.stack([Y > 0, Y > 1], 1).long()
    with pytest.raises(md.BadData, match=r"takes targets as floats, and they are whole numbers; give y.astype"):
        trained(net, loss, y)
    trained(net, loss, y.float())
