"""The counters of some samplers in one process, for tests of workers that stream at their own pace."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from crew import loader_of
from torch.utils.data import TensorDataset

from uneven.policy.samples.paced import PacedSampler
from uneven.policy.samples.supply import Interval, SamplesWanted
from uneven.run.samples.loader import BalancedLoader


class Known:
    """An answer that is here at once."""

    took_s = 0.0

    def __init__(self, value: Interval | None) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self) -> Interval | None:
        return self._value


class Counters:
    """The counters of some samplers in one process; at a meeting it knows what all of them hold."""

    ahead = True

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        self.asked: list[tuple[int, int]] = []
        self.meeting = True
        self.lives = 0
        self.samplers: list[PacedSampler] = []

    @property
    def least(self) -> int | None:
        return min(one.epoch for one in self.samplers) if self.meeting else None

    def take(self, epoch: int, wanted: SamplesWanted) -> Known:
        self.asked.append((epoch, wanted.samples))
        self.counts[self.lives, epoch] += wanted.samples
        return Known(wanted.fresh(self.counts[self.lives, epoch] - wanted.samples))

    def reached(self, epoch: int) -> int:
        return self.counts[self.lives, epoch]

    def restart(self) -> None:
        self.lives += 1

    def known(self, epoch: int) -> tuple[int, list[Interval]] | None:
        held = [run for one in self.samplers for run in one.undone(epoch)]
        return (self.counts[self.lives, epoch], held) if self.meeting else None


def loaders(length: int, shares: tuple[int, ...], counters: Counters, **options: Any) -> list[BalancedLoader]:
    data = TensorDataset(torch.arange(length))
    found = [
        loader_of(
            dataset=data, batch_size=sum(shares), rank=rank, workers=len(shares), seed=3,
            split_for=lambda iteration: shares, counter=counters, **options,
        )
        for rank in range(len(shares))
    ]  # fmt: skip
    counters.samplers = [one.paced for one in found if one.paced is not None]
    return found
