"""What the tests of sessions train: data, a small model, and one process on the union batch to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from uneven.policy.balance import Balancer
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView
from uneven.policy.samples.order import epoch_order
from uneven.run.measure.meter import HostClock

N, X = 50, 12  # four full iterations and a last part of 2


class Moving(Balancer):
    """Another very unequal split after every report."""

    def split(self, view: BalanceView) -> Split:
        weights = [1.0 + (7 * view.iteration + 3 * rank) % 11 for rank in view.members]
        return Split(proportional(weights, view.global_batch, view.limits))


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(N, 5, generator=generator).to(dtype)
    return x, torch.randint(0, 3, (N,), generator=generator)


@contextmanager
def own_time() -> Iterator[Callable[[float], None]]:
    """Stop the clock of this worker's meter; it moves when the test calls what this gives, by so many seconds.

    A machine on which other tests run gives no two steps the same time.
    """
    now_s = 0.0

    def spend(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    marks = {"mark": lambda clock: (now_s, now_s), "glance": lambda clock: (now_s, math.nan)}
    with patch.multiple(HostClock, **marks):
        yield spend


class Numbered(TensorDataset):
    """Samples that know their index."""

    def __init__(self) -> None:
        super().__init__(*tensors(), torch.arange(N))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Numbered())


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(epochs: int, dtype: torch.dtype = torch.float32) -> Any:
    """The union batches of every iteration, as one process sees them."""
    x, y = tensors(dtype)
    for epoch in range(epochs):
        for part in torch.from_numpy(epoch_order(length=N, seed=0, epoch=epoch)).split(X):
            yield x[part], y[part]


def reference(epochs: int, model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    optimizer = sgd(model)
    for x, y in batches(epochs, dtype):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_same(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-5) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def everybodys(values: list[Any]) -> list[Any]:
    table: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(table, values)
    return [value for row in table for value in row]
