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

_FILLERS, _FILLER_BYTES = 20, 1 << 20
"""Pieces of memory that are taken before a block, and how large they are at most."""


def fillers(rng: np.random.Generator) -> list[torch.Tensor]:
    """Memory with holes of random sizes, to be held while a block is trained, so that its activations lie elsewhere
    than those of the last one.

    Where they lie makes a per cent or two of an arm's time, which is luck, and would be the same luck in every round
    (Curtsinger and Berger: Stabilizer, ASPLOS 2013).
    """
    return [torch.empty(size, dtype=torch.uint8) for size in rng.integers(64, _FILLER_BYTES, _FILLERS)][::2]


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds of one block of iterations on one rank.

    Attributes:
        wall_s: from the first iteration's start to everybody's end, per iteration.
        exposed_s: per iteration, from the last gradient being ready to the end of the exchange.
        worked_s: processor time of all this worker's threads, per iteration.
        samples: that went into an update ÷ X, mean; above 1 for who takes more than the global batch.
    """

    wall_s: float
    exposed_s: tuple[float, ...]
    worked_s: float
    samples: float = 1.0


class Arm(ABC):
    """One way to train ``model``; a block is so many iterations of the global batch.

    Args:
        model: this arm's own.
        work: what it is trained on.
        total: X.
        block: iterations.
    """

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
        """Train for one block; what of each iteration's exchange was not hidden, seconds."""

    def block(self) -> Block:
        """Train for one block. All ranks start together; it ends when the last of them is through."""
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
        """Whether its split has to be found while it runs."""
        return False

    @property
    def split(self) -> tuple[int, ...]:
        """Samples of each rank, of those that have a split."""
        return ()

    def close(self) -> None:  # noqa: B027 - most arms have nothing to let go of
        """Let go of what the arm opened."""


class LoopArm(Arm):
    """An arm whose iterations are those of PyTorch's users: batch, loss, backward, step."""

    optimizer: torch.optim.Optimizer

    @abstractmethod
    def batches(self) -> Iterable[Any]:
        """This rank's batches of one block."""

    @abstractmethod
    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """What ``backward`` is called on."""

    def exchanged(self, begun_s: float) -> None:
        """The gradients are exchanged; ``begun_s`` is when this iteration's batch was asked for."""

    def ended(self) -> None:
        """The iteration is over."""

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
    """PyTorch's own ``DistributedDataParallel`` on a fixed split, as its users write it today.

    With unequal shares the loss is scaled by n x_i / X before ``backward``, which is how the mean that DDP
    takes is made right by hand. This is also the oracle's arm: no code of uneven's runs in its steps.
    ``gradient_as_bucket_view`` is on, as in our arm: it saves a copy of the gradients.
    """

    def __init__(self, model: nn.Module, work: TrainingWorkload, shares: tuple[int, ...], block: int) -> None:
        super().__init__(model, work, sum(shares), block)
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = work.optimizer(model.parameters())
        self._sampler = FixedSampler(len(self.data), shares, dist.get_rank())
        self._loader = DataLoader(self.data, batch_sampler=self._sampler, **self.loading)
        self.take(shares)

    @property
    def split(self) -> tuple[int, ...]:
        return self._sampler.shares

    def take(self, shares: tuple[int, ...]) -> None:
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
        self,
        model: nn.Module,
        work: TrainingWorkload,
        total: int,
        block: int,
        *,
        balance: str | Balancer,
        journal: Path,
    ) -> None:
        super().__init__(model, work, total, block)
        self._balance = balance
        self.session = uneven.Session(balance=balance, journal=journal)
        self.model, self.optimizer = self.session.setup(
            model, work.optimizer(model.parameters()), gradient_as_bucket_view=True
        )
        self._loader = self.session.loader(self.data, batch_size=total, together=self.together, **self.loading)

    @property
    def settles(self) -> bool:
        return self._balance != "even"

    @property
    def split(self) -> tuple[int, ...]:
        return self.session.newest_shares

    def batches(self) -> Iterable[Any]:
        return self._loader

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.work.loss(self.model, x, y)

    def close(self) -> None:
        self.session.close()


class TogetherArm(SessionArm):
    """The same, whose iterations are finished together."""

    together = True

    def train(self) -> tuple[float, ...]:
        exposed_s = []
        for batch in self.batches():
            for x, y in self.session.passes(batch):
                self.loss(x, y).backward()
                through_s = time.perf_counter()
            exposed_s.append(time.perf_counter() - through_s)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return tuple(exposed_s)
