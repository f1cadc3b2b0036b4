"""What deciding code is shown: frozen, plain, complete. Pure.

Columns rather than lists of objects, so that a view of ten thousand workers is cheap to make and to read.
Position i of every column belongs to ``members[i]``, the i-th worker by rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from uneven.errors import ConfigError


class Observation(NamedTuple):
    """What one worker reported about the iterations since its last report; a tuple, as one is made on every step."""

    iteration: int  # the last iteration that it covers
    samples: int
    local_s: float  # data and compute time, without the exchange
    iterations: int = 1  # that samples and times are sums over
    exchange_s: float = 0.0
    transfer_s: float = 0.0  # part of exchange_s in which its own bytes moved, where the carrier can tell
    cpu: float = float("nan")  # part of the node's processor time that others took just now, 0 … 1; NaN where unknown
    memory: float = float("nan")  # use of the memory that a larger batch would fill, 0 … 1; NaN where unknown

    @property
    def speed_per_s(self) -> float:
        """Samples per second of the time that this worker needs by itself, its side of the exchange included.

        LB-BSP's rule for CPU clusters neglects communication (specification §1.5); but moving bytes is work too,
        and a slow worker is slow at it. NaN where there is nothing to divide.
        """
        return self.samples / (self.local_s + self.transfer_s) if self.local_s > 0 else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Least and greatest number of samples per iteration, for each worker."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):  # a list would do, but what has been reckoned from limits is looked up by them
            if not isinstance(given := getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(given))

    @classmethod
    def uniform(cls, workers: int, total: int, lower: int = 1, upper: int | None = None) -> Limits:
        """The same limits for all; without an upper one, nobody is held back."""
        return cls(lower=(lower,) * workers, upper=(total if upper is None else upper,) * workers)

    def check(self, total: int) -> None:
        """Refuse limits that no split of ``total`` can meet.

        Raises:
            ConfigError: naming the limits, the total and the way out.
        """
        for rank, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            if not 0 <= low <= high:
                raise ConfigError(f"limits of rank {rank} cannot be met: from {low} to {high} samples")
        if sum(self.lower) > total:
            raise ConfigError(
                f"lower limits add up to {sum(self.lower)}, more than the global batch of {total}: "
                f"lower them or use a global batch of at least {sum(self.lower)}"
            )
        if sum(self.upper) < total:
            raise ConfigError(
                f"upper limits add up to {sum(self.upper)}, less than the global batch of {total}: "
                f"raise them or use a global batch of at most {sum(self.upper)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceView:
    """What a balancer sees between two iterations."""

    iteration: int  # iterations finished so far
    global_batch: int
    members: tuple[int, ...]  # ranks, ascending
    shares: tuple[int, ...]  # the split now in force
    observed: Sequence[Observation | None]  # newest believed report of each; None before the first
    predicted_per_s: tuple[float, ...]  # the predictor's word for the next iteration; NaN before the first
    limits: Limits
    doubts: tuple[float, ...] = ()  # relative standard errors of the predictions; empty where nobody can tell

    @property
    def ready(self) -> bool:
        """Whether every worker's speed is known: it has reported, or was profiled before the start."""
        # A NaN can slip past min(), but not out of a sum.
        return min(self.predicted_per_s, default=1.0) > 0 and not math.isnan(sum(self.predicted_per_s))


class SyncView(NamedTuple):
    """What a synchronisation policy sees when a worker is about to take a step; a tuple, as one is made on each.

    The simulator and a real run fill in every field, with the same values. So there is nothing in it that a worker of
    a real run cannot know, such as how far the others are at this moment: a plan says so with a ``Wait``.
    """

    rank: int
    clock: int  # this worker's finished steps
    members: tuple[int, ...]  # ranks that are alive, ascending
    generation: int = 0  # raised by one whenever somebody leaves or joins
    sites: Mapping[int, str] = MappingProxyType({})  # where each rank is
