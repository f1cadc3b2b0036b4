"""The frozen inputs of deciding code.

They hold columns instead of lists of objects, so a view of ten thousand workers is cheap. Position i of every column
belongs to ``members[i]``, the i-th worker by rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from uneven.errors import ConfigError


class Observation(NamedTuple):
    """One worker's report on the iterations since its last one; a tuple, because each step makes one."""

    iteration: int  #: the last iteration that it covers
    samples: int  #: samples that the worker trained
    local_s: float  #: seconds of data and compute, without the exchange
    iterations: int = 1  #: number of iterations that samples and times are summed over
    exchange_s: float = 0.0  #: seconds of the exchange
    transfer_s: float = 0.0  #: part of ``exchange_s`` in which its own bytes moved, if known
    cpu: float = float("nan")  #: part of the node's processor time that others use now, 0 … 1; NaN if unknown
    memory: float = float("nan")  #: use of the memory that a larger batch would fill, 0 … 1; NaN if unknown

    @property
    def speed_per_s(self) -> float:
        """The samples per second of this worker's own time, including its side of the exchange.

        LB-BSP's rule for CPU clusters neglects communication (specification §1.5); but a slow worker also moves bytes
        slowly, so they count here. NaN if no time was measured.
        """
        return self.samples / (self.local_s + self.transfer_s) if self.local_s > 0 else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Each worker's least and greatest number of samples per iteration."""

    lower: tuple[int, ...]  #: least samples per iteration, by worker
    upper: tuple[int, ...]  #: greatest samples per iteration, by worker

    def __post_init__(self) -> None:
        # A list must become a tuple: results computed from limits are cached with the limits as key.
        for name in ("lower", "upper"):
            if not isinstance(given := getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(given))

    @classmethod
    def uniform(cls, workers: int, total: int, lower: int = 1, upper: int | None = None) -> "Limits":
        """Return the limits ``lower`` and ``upper`` (by default ``total``) for each of ``workers`` workers."""
        return cls(lower=(lower,) * workers, upper=(total if upper is None else upper,) * workers)

    def check(self, total: int) -> None:
        """Check that a split of ``total`` samples can meet these limits; raise ConfigError if not."""
        for rank, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            if not 0 <= low <= high:
                raise ConfigError(f"limits of rank {rank} go from {low} to {high} samples: give lower <= upper")
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
    """The input of a balancer, between two iterations."""

    iteration: int  #: iterations finished so far
    global_batch: int  #: samples of all workers in the next iteration
    members: tuple[int, ...]  #: ranks, ascending; the other fields are in their order
    shares: tuple[int, ...]  #: the current split
    observed: Sequence[Observation | None]  #: newest accepted report of each; None before the first
    predicted_per_s: tuple[float, ...]  #: samples/s in the next iteration; NaN before the first prediction
    limits: Limits  #: least and greatest shares
    doubts: tuple[float, ...] = ()  #: relative standard errors of the predictions; empty if unknown

    @property
    def ready(self) -> bool:
        """True if every worker's speed is known: it has reported, or was profiled before the start."""
        # A NaN can slip past min(), but not out of a sum.
        return min(self.predicted_per_s, default=1.0) > 0 and not math.isnan(sum(self.predicted_per_s))


class SyncView(NamedTuple):
    """The input of a synchronisation policy before a worker's step; a tuple, because each step makes one.

    The simulator and a real run fill in every field with the same values. So it holds nothing that a worker of a real
    run cannot know, such as the present clocks of the others. For these, a plan returns a ``Wait``.
    """

    rank: int  #: this worker
    clock: int  #: this worker's finished steps
    members: tuple[int, ...]  #: ranks in the run, ascending
    generation: int = 0  #: increases by one at each change of membership
    sites: Mapping[int, str] = MappingProxyType({})  #: location of each rank
    changes: bool = False  #: whether workers may leave and join; a plan then has every exchange with one site, too
