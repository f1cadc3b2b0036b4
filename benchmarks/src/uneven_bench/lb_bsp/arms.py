"""The arms of a comparison: each trains its own copy of the model, one block of iterations at a time.

Every arm is timed from outside in the same way: a gradient hook on the last parameters of the backward pass marks the
end of compute, the return of ``backward`` the end of the exchange.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import uneven
from uneven.cli.demo.demo_training import FixedSampler, ReadyMark
from uneven.policy.balance import Balancer
from uneven_bench.workloads.base import TrainingWorkload, stretch

Shares = tuple[int, ...]  # the samples of each rank
_FILLERS, _FILLER_BYTES = 20, 1 << 20  # pieces of memory before a block, and their largest size


def fillers(rng: np.random.Generator) -> list[torch.Tensor]:
    """Return memory with holes of random sizes, to hold during a block, so that activations lie at other addresses.
    Addresses are worth a per cent or two of an arm's time, the same in every round otherwise (Curtsinger and Berger:
    Stabilizer, ASPLOS 2013)."""
    return [torch.empty(size, dtype=torch.uint8) for size in rng.integers(64, _FILLER_BYTES, _FILLERS)][::2]


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds of one block of iterations on one rank."""

    wall_s: float  # from the first iteration's start to the end of all ranks, per iteration
    exposed_s: tuple[float, ...]  # per iteration, from the last gradient to the end of the exchange
    worked_s: float  # processor time of all this worker's threads, per iteration
    samples: float = 1.0  # in an update ÷ X, mean; above 1 if an arm takes more than the global batch


class Arm(ABC):
    """One way to train ``model``; a block is ``block`` iterations of the global batch ``total``, X."""

    def __init__(self, model: nn.Module, work: TrainingWorkload, total: int, block: int) -> None:
        self.model = model
        self.work = work
        self.total = total
        self.iterations = block
        self.blocks = 0
        self.data, self.loading = stretch(work, block * total)
        self.mark = ReadyMark(model)
        self._rng = np.random.default_rng()

    @abstractmethod
    def train(self) -> tuple[float, ...]:
        """Train for one block, and return the unhidden seconds of each iteration's exchange."""

    def block(self) -> Block:
        """Train for one block. All ranks start together; it ends when the last of them has finished."""
        self.data.turn(self.blocks)
        self.blocks += 1
        held = fillers(self._rng)
        dist.barrier()
        started_s, before_s = time.perf_counter(), time.process_time()
        exposed_s = self.train()
        worked_s = time.process_time() - before_s
        dist.barrier()
        took_s = time.perf_counter() - started_s
        del held
        return Block(took_s / self.iterations, exposed_s, worked_s / self.iterations)

    @property
    def settles(self) -> bool:
        """True if its split must be found while it runs."""
        return False

    @property
    def split(self) -> Shares:
        """The samples of each rank, for arms with a split."""
        return ()

    def close(self) -> None:  # noqa: B027 - most arms have nothing to let go of
        """Close the arm's resources."""


class LoopArm(Arm):
    """An arm with a usual PyTorch iteration: batch, loss, backward, step."""

    optimizer: torch.optim.Optimizer

    @abstractmethod
    def batches(self) -> Iterable[Any]:
        """Return this rank's batches of one block."""

    @abstractmethod
    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss for ``backward``, a scalar; x is (samples, …), y (samples,)."""

    def exchanged(self, begun_s: float) -> None:
        """Take note of the exchanged gradients; ``begun_s`` is the start of this iteration's batch."""

    def ended(self) -> None:
        """Take note of the end of the iteration."""

    def train(self) -> tuple[float, ...]:
        exposed_s = []
        begun_s = time.perf_counter()
        for x, y in self.batches():
            loss = self.loss(x, y)
            loss.backward()
            exposed_s.append(time.perf_counter() - self.mark.ready_s)
            self.exchanged(begun_s)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.ended()
            begun_s = time.perf_counter()
        return tuple(exposed_s)


class DDPArm(LoopArm):
    """PyTorch's ``DistributedDataParallel`` on a fixed split, as its users write it today. With unequal shares the loss
    is scaled by n x_i / X before ``backward``, to correct DDP's mean. This is also the oracle's arm: no code of
    uneven's runs in its steps. ``gradient_as_bucket_view`` is on, as in our arm: it saves a copy of the gradients."""

    def __init__(self, model: nn.Module, work: TrainingWorkload, shares: Shares, block: int) -> None:
        super().__init__(model, work, sum(shares), block)
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = work.optimizer(model.parameters())
        self._sampler = FixedSampler(len(self.data), shares, dist.get_rank())
        self._loader = DataLoader(self.data, batch_sampler=self._sampler, **self.loading)
        self.take(shares)

    @property
    def split(self) -> Shares:
        return self._sampler.shares

    def take(self, shares: Shares) -> None:
        """Split by ``shares`` from the next batch on."""
        self._sampler.shares = shares
        self._scale = len(shares) * shares[dist.get_rank()] / sum(shares)

    def batches(self) -> Iterable[Any]:
        return self._loader

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.work.loss(self.ddp, x, y)
        return loss if self._scale == 1.0 else loss * self._scale


class SessionArm(LoopArm):
    """``uneven`` with a balancer, or the name of one."""

    together = False

    def __init__(
        self, model: nn.Module, work: TrainingWorkload, total: int, block: int, *, balance: str | Balancer, folder: Path
    ) -> None:
        super().__init__(model, work, total, block)
        self._balance = balance
        self.session = uneven.Session(balance=balance, run_dir=folder)
        optimizer = work.optimizer(model.parameters())
        self.model, self.optimizer = self.session.setup(model, optimizer, gradient_as_bucket_view=True)
        self._loader = self.session.loader(self.data, global_batch_size=total, together=self.together, **self.loading)

    @property
    def settles(self) -> bool:
        return self._balance != "even"

    @property
    def split(self) -> Shares:
        return self.session.next_shares

    def batches(self) -> Iterable[Any]:
        return self._loader

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.work.loss(self.model, x, y)

    def close(self) -> None:
        self.session.close()


class TogetherArm(SessionArm):
    """A session whose iterations workers finish together."""

    together = True

    def train(self) -> tuple[float, ...]:
        exposed_s = []
        for batch in self.batches():
            for x, y in self.session.microbatches(batch):
                self.loss(x, y).backward()
                through_s = time.perf_counter()
            exposed_s.append(time.perf_counter() - through_s)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return tuple(exposed_s)
