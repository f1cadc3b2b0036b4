"""What the tests on a GPU train, in a session and in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.policy.balance import Balancer
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView
from uneven.policy.samples.order import epoch_order

X = 24
SAMPLES = 98  # four full iterations and a rest of 2
FEATURES, CLASSES = 6, 3

Make = Callable[[nn.Module], torch.optim.Optimizer]


class Moving(Balancer):
    """Another very unequal split after every report."""

    def split(self, view: BalanceView) -> Split:
        weights = [1.0 + (7 * view.iteration + 3 * rank) % 11 for rank in view.members]
        return Split(proportional(weights, view.global_batch, view.limits))


def dataset(dtype: torch.dtype = torch.float64) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=dtype)
    return TensorDataset(x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator))


def mlp(
    device: torch.device | str, dtype: torch.dtype = torch.float64, norm: type[nn.Module] | None = None
) -> nn.Module:
    torch.manual_seed(1)
    between = [] if norm is None else [norm(8)]
    return nn.Sequential(nn.Linear(FEATURES, 8), *between, nn.Tanh(), nn.Linear(8, CLASSES)).to(device, dtype)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def global_batches(epochs: int, dtype: torch.dtype = torch.float64) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What all workers of a session together train on, in its order."""
    x, y = dataset(dtype).tensors
    for epoch in range(epochs):
        for part in torch.from_numpy(epoch_order(length=SAMPLES, seed=0, epoch=epoch)).split(X):
            yield x[part], y[part]


def alone(model: nn.Module, make: Make, epochs: int) -> nn.Module:
    """One process, plain PyTorch, the same samples in the same order."""
    optimizer, first = make(model), next(model.parameters())
    for x, y in global_batches(epochs, first.dtype):
        F.cross_entropy(model(x.to(first.device)), y.to(first.device)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def together(
    model: nn.Module, make: Make, epochs: int, most: int | None = None, device: str = "", **session: Any
) -> set[tuple[int, ...]]:
    """Train ``model`` in a session, on ``device`` or where it is; every split that was used."""
    splits, first = set(), next(model.parameters())
    dtype, place = first.dtype, device or first.device
    with uneven.Session(**{"balance": Moving(), **session}) as opened:
        trained, optimizer = opened.setup(model, make(model))
        loader = opened.loader(dataset(dtype), batch_size=X)
        batches = itertools.chain.from_iterable(loader for _ in range(epochs))
        for x, y in itertools.islice(batches, most):
            F.cross_entropy(trained(x.to(place)), y.to(place)).backward()
            optimizer.step()
            optimizer.zero_grad()
            splits.add(opened.shares)
    return splits


def assert_same(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(
            a.detach().cpu(), b.detach().cpu(), rtol=tolerance, atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip
