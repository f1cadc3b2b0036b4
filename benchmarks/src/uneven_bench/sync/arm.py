"""The base of the arms of ``uneven bench sync``: a model is trained for a time or for a number of steps."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from uneven.cluster.emulate.pure.names import INTERFACE
from uneven_bench.lb_bsp.arms import fillers

RATE, MOMENTUM = 0.02, 0.9

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class TrainingStretch:
    """One worker's stretch of training."""

    seconds: float  # by its own clock, to its last step
    steps: int
    samples: int
    sent_bytes: int  # through its interface, until all workers had finished

    @classmethod
    def of(cls, turns: "Sequence[TrainingStretch]") -> "TrainingStretch":
        """Return several stretches as one."""
        columns = zip(*map(astuple, turns), strict=True)
        return cls(*(sum(column) for column in columns))


class SyncArm:
    """One way to train ``model``. ``own_pace``: no worker waits, so each may stop at any time; ``every``: period of the
    exchanges in steps."""

    own_pace = False
    every = 1

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.net: nn.Module = model  # the model of a step
        self.batches: Batches
        self._hand: tuple[torch.Tensor, torch.Tensor] | None = None
        self._rng = np.random.default_rng()

    def _step(self) -> int:
        """Take a step on the current batch, and return the number of its samples."""
        assert self._hand is not None
        x, y = self._hand
        F.cross_entropy(self.net(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return len(y)

    def _fetch(self) -> None:
        """Fetch the next batch, after the work that is due after a step."""
        self._hand = next(self.batches)

    def train(self, *, seconds: float, steps: int, through: bool = False) -> TrainingStretch:
        """Train for ``seconds`` at own pace, else for ``steps`` steps. All begin together. ``through``: continue to the
        end of all exchanges, and leave the loop then, so that the next arm neither pays for an exchange nor counts as a
        step."""
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
        """Return whether an exchange runs in the background."""
        return False

    def leave(self) -> None:
        """Leave the loop, if that makes a difference."""

    def counted(self) -> AbstractContextManager[Any]:
        """Make ``model`` the one to evaluate, inside; most arms' replicas are equal, or rank 0's counts. Every worker
        enters it."""
        return nullcontext()

    def close(self) -> None:
        """Close the arm."""


def sent_bytes() -> int:
    """Return the bytes that have left this node's interface; 0 if it has no separate interface."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])
    return 0
