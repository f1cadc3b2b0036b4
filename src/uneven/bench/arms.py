"""The arms of a comparison: each trains its own copy of the model, one block of iterations at a time.

Every arm is timed in the same way, from outside: a gradient hook on the parameters that come last in the
backward pass marks the end of compute, the return of ``backward`` marks the end of the exchange.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

import uneven
from uneven.bench.workload import loss_of
from uneven.data.order import epoch_order


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds of one block of iterations on one rank.

    Attributes:
        wall_s: from the first iteration's start to everybody's end, per iteration.
        exposed_s: per iteration, from the last gradient being ready to the end of the exchange.
    """

    wall_s: float
    exposed_s: tuple[float, ...]


class ReadyMark:
    """Notes when the last gradient of a backward pass is ready: that of the layer nearest to the input."""

    def __init__(self, model: nn.Module) -> None:
        self.ready_s = 0.0
        self.worked_s = 0.0  # processor time of this process at that moment
        layer = next(layer for layer in model.modules() if list(layer.parameters(recurse=False)))
        for parameter in layer.parameters(recurse=False):
            parameter.register_post_accumulate_grad_hook(self._mark)

    def _mark(self, _: torch.Tensor) -> None:
        self.ready_s, self.worked_s = time.perf_counter(), time.process_time()


class Arm(ABC):
    """One way to train ``model`` on ``dataset`` with a global batch; a block is one epoch of it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.blocks = 0
        self._mark = ReadyMark(model)

    @abstractmethod
    def batches(self) -> Iterable[Any]:
        """This rank's batches of one epoch."""

    @abstractmethod
    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """What ``backward`` is called on."""

    def block(self) -> Block:
        """Train one epoch. All ranks start together; the block ends when the last of them is through."""
        self.blocks += 1
        exposed = []
        dist.barrier()
        started_s = time.perf_counter()
        for x, y in self.batches():
            loss = self.loss(x, y)
            loss.backward()
            exposed.append(time.perf_counter() - self._mark.ready_s)
            self.optimizer.step()
            self.optimizer.zero_grad()
        dist.barrier()
        return Block((time.perf_counter() - started_s) / len(exposed), tuple(exposed))

    optimizer: torch.optim.Optimizer

    @property
    def settles(self) -> bool:
        """Whether its split has to be found while it runs."""
        return False

    def close(self) -> None:  # noqa: B027 - most arms have nothing to let go of
        """Let go of what the arm opened."""


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The same for every arm."""
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


class FixedSampler(Sampler[list[int]]):
    """This rank's slice of each global batch under a split that it is given; the order is uneven's own."""

    def __init__(self, length: int, shares: tuple[int, ...], rank: int) -> None:
        self.shares = shares
        self._length, self._rank, self._epoch = length, rank, 0

    def __iter__(self) -> Any:
        order = epoch_order(length=self._length, seed=0, epoch=self._epoch)
        self._epoch += 1
        offset, total = sum(self.shares[: self._rank]), sum(self.shares)
        for start in range(0, self._length, total):
            yield order[start + offset : start + offset + self.shares[self._rank]].tolist()


class DDPArm(Arm):
    """PyTorch's own ``DistributedDataParallel`` on a fixed split, as its users write it today.

    With unequal shares the loss is scaled by n x_i / X before ``backward``, which is how the mean that DDP
    takes is made right by hand. This is also the oracle's arm: no code of uneven's runs in its steps.
    ``gradient_as_bucket_view`` is on, as it is in our carrier: it saves a copy, and DDP shall have it too.
    """

    def __init__(self, model: nn.Module, dataset: Dataset[Any], shares: tuple[int, ...]) -> None:
        super().__init__(model)
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = make_optimizer(model)
        self._sampler = FixedSampler(len(dataset), shares, dist.get_rank())  # type: ignore[arg-type]
        self._loader = DataLoader(dataset, batch_sampler=self._sampler)
        self.take(shares)

    @property
    def shares(self) -> tuple[int, ...]:
        """The split."""
        return self._sampler.shares

    def take(self, shares: tuple[int, ...]) -> None:
        """Split by ``shares`` from the next block on."""
        self._sampler.shares = shares
        self._scale = len(shares) * shares[dist.get_rank()] / sum(shares)

    def batches(self) -> Iterable[Any]:
        return self._loader

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.ddp, x, y)
        return loss if self._scale == 1.0 else loss * self._scale


class SessionArm(Arm):
    """``uneven`` with a balancer."""

    def __init__(self, model: nn.Module, dataset: Dataset[Any], batch_size: int, balance: str, journal: Path) -> None:
        super().__init__(model)
        self._balance = balance
        self.session = uneven.Session(balance=balance, journal=journal)
        self.model, self.optimizer = self.session.setup(model, make_optimizer(model))
        self._loader = self.session.loader(dataset, batch_size=batch_size)

    @property
    def settles(self) -> bool:
        return self._balance != "even"

    def batches(self) -> Iterable[Any]:
        return self._loader

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(self.model, x, y)

    def close(self) -> None:
        self.session.close()
