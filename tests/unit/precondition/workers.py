"""Replicas of one model on workers that are threads, with a part on each."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from uneven import Callback
from uneven.run.lines import Lines
from uneven.testing.callbacks import CallbackWorker, together

__all__ = ["CallbackWorker", "X", "batch", "net", "train", "vector"]

X = 12


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def batch(number: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(number)
    return torch.randn(X, 5, generator=make, dtype=torch.float64), torch.randint(0, 3, (X,), generator=make)


def train(
    size: int,
    build: Callable[[], nn.Module],
    make: Callable[[], Callback],
    use: Callable[[CallbackWorker], Any],
    *,
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> list[Any]:
    """What ``use`` returns on each of ``size`` workers."""
    lock = Lock()

    def one(lines: Lines) -> Any:
        with lock:
            torch.manual_seed(1)
            model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
        return use(CallbackWorker(lines, model, optimizer, make()))

    return together(size, one)


def vector(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])
