"""Redundant execution: the first n − b gradients of a version make the update, late ones are dropped.

After Chen et al., "Revisiting distributed synchronous SGD" (arXiv 1604.00981, 2016). All methods use the same machines:
N = n − b gradients of X / N samples each (specification of LB-BSP, §2). A late worker is not interrupted, see
``docs/ideas/rivals.md``.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from uneven.errors import ConfigError


def samples_each(total: int, workers: int, spares: int) -> int:
    """Return X / (n − b), rounded up. Raises ConfigError: no gradient would count."""
    if not 0 <= spares < workers:
        raise ConfigError(f"backup: {spares} spares of {workers} workers: at least one worker must be waited for")
    return -(-total // (workers - spares))


@dataclass(frozen=True, slots=True)
class GradientVerdict:
    """The fate of a gradient."""

    counts: bool  # it is part of an update
    complete: tuple[int, ...] = ()  # ranks of the update that it completes; empty if it completes none


class GradientQuorum:
    """A counter of the gradients of the present version. Raises ConfigError: no gradient would count. ``workers``: n;
    ``spares``: b. ``version``: of the parameters; also the updates made so far; ``dropped``: late gradients of each
    rank."""

    def __init__(self, workers: int, spares: int) -> None:
        samples_each(1, workers, spares)
        self.wanted = workers - spares
        self.version = 0
        self.dropped = [0] * workers
        self._arrived: list[int] = []

    def arrive(self, rank: int, version: int) -> GradientVerdict:
        """Count a gradient. Raises ConfigError: its version does not exist yet, or it came before."""
        if version > self.version or (version == self.version and rank in self._arrived):
            raise ConfigError(f"backup: rank {rank} sends version {version} while version {self.version} is at work")
        if version < self.version:
            self.dropped[rank] += 1
            return GradientVerdict(counts=False)
        self._arrived.append(rank)
        if len(self._arrived) < self.wanted:
            return GradientVerdict(counts=True)
        complete, self._arrived = tuple(self._arrived), []
        self.version += 1
        return GradientVerdict(counts=True, complete=complete)


@dataclass(frozen=True, slots=True)
class Redundant:
    """A whole run."""

    ends_s: tuple[float, ...]  # when each version was complete
    counted_s: tuple[float, ...]  # compute time of each worker that went into an update
    waited_s: tuple[float, ...]  # time of each worker between a gradient that counted and the update
    dropped: tuple[int, ...]  # late gradients of each rank


def play(workers: int, spares: int, versions: int, seconds: Callable[[int, int], float]) -> Redundant:
    """Play a run in virtual time, of ``versions`` updates. ``seconds``: (version, rank) → time from the parameters to
    the gradient's arrival. Raises ConfigError: no gradient would count."""
    quorum = GradientQuorum(workers, spares)
    counted_s, waited_s, came_s = [0.0] * workers, [0.0] * workers, [0.0] * workers
    hand = [(seconds(0, rank), rank, 0, seconds(0, rank)) for rank in range(workers)]  # end, rank, version, duration
    heapq.heapify(hand)
    ends_s: list[float] = []
    while quorum.version < versions:
        now_s, rank, version, took_s = heapq.heappop(hand)
        verdict = quorum.arrive(rank, version)
        if verdict.counts:
            counted_s[rank] += took_s
            came_s[rank] = now_s
        if verdict.complete:
            ends_s.append(now_s)
            for waiting in verdict.complete:
                waited_s[waiting] += now_s - came_s[waiting]
        for free in verdict.complete if verdict.counts else (rank,):
            next_s = seconds(min(quorum.version, versions - 1), free)
            heapq.heappush(hand, (now_s + next_s, free, quorum.version, next_s))
    if not math.isfinite(ends_s[-1]):
        raise ConfigError(f"backup: version {len(ends_s)} never ends: every worker must need a finite time")
    return Redundant(tuple(ends_s), tuple(counted_s), tuple(waited_s), tuple(quorum.dropped))
