"""What every arm of ``uneven bench sync`` does: a model of its own is trained step by step, for so long or so often."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from uneven.cluster.emulate.pure.names import INTERFACE
from uneven.runtime.world import discover
from uneven_bench.lb_bsp.arms import fillers

RATE, MOMENTUM = 0.02, 0.9

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class TrainingStretch:
    """What one worker did in a stretch of training.

    Attributes:
        seconds: by its own clock, until it had taken its last step.
        sent_bytes: that left its interface until all were through.
    """

    seconds: float
    steps: int
    samples: int
    sent_bytes: int

    @classmethod
    def of(cls, turns: Sequence[TrainingStretch]) -> TrainingStretch:
        """Several stretches, taken for one."""
        columns = zip(*map(astuple, turns), strict=True)
        return cls(*(sum(column) for column in columns))


class SyncArm(ABC):
    """One way to train ``model``.

    Attributes:
        own_pace: whether nobody waits for anybody, so that each worker may stop when it likes.
        every: steps after which what is exchanged begins anew.
    """

    own_pace = False
    every = 1

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.net: nn.Module = model  # what is called in a step
        self.batches: Batches
        self._hand: tuple[torch.Tensor, torch.Tensor] | None = None
        self._rng = np.random.default_rng()

    def _step(self) -> int:
        """On the batch in hand; how many samples it took."""
        assert self._hand is not None
        x, y = self._hand
        F.cross_entropy(self.net(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return len(y)

    def _fetch(self) -> None:
        """Ask for the next batch, before which what is due after a step is done."""
        self._hand = next(self.batches)

    def train(self, *, seconds: float, steps: int, through: bool = False) -> TrainingStretch:
        """A stretch of training: for so long at one's own pace, else for so many steps. All begin together.

        Args:
            through: go on until nothing is exchanged any more, and leave the loop then: what comes until the next
                stretch is another arm's, and must not pay for this one's exchange, nor be taken for a step of it.
        """
        held = fillers(self._rng)
        dist.barrier()
        if self._hand is None:
            self._fetch()
        sent, taken, samples, going_on = sent_bytes(), 0, 0, True
        started_s = time.perf_counter()
        while going_on:
            samples += self._step()
            taken += 1
            self._hand = None
            going_on = self._goes_on(started_s + seconds, steps - taken) or (through and self.exchanging())
            if going_on or not through:
                self._fetch()
        took_s = time.perf_counter() - started_s
        if through:
            self.leave()
        dist.barrier()
        del held
        return TrainingStretch(took_s, taken, samples, sent_bytes() - sent)

    def _goes_on(self, until_s: float, missing: int) -> bool:
        return time.perf_counter() < until_s if self.own_pace else missing > 0

    def exchanging(self) -> bool:
        """Whether something is exchanged beside the training."""
        return False

    def leave(self) -> None:  # noqa: B027 - of most arms' loops nobody takes the time
        """Leave the loop, where that makes a difference."""

    @abstractmethod
    def counted(self) -> AbstractContextManager[Any]:
        """Inside, ``model`` is the one to evaluate. Every worker enters it."""

    def close(self) -> None:  # noqa: B027 - most arms have nothing to let go of
        """Let go of what the arm opened."""


def own_address() -> str:
    """The address of this worker, as the others see it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect((discover().meeting, 1))  # which sends nothing
        return str(line.getsockname()[0])


def sent_bytes() -> int:
    """Bytes that have left this node's interface; 0 where it has no interface of its own."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])
    return 0
