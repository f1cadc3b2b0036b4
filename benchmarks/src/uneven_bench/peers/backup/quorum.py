"""Redundant execution: the first n − b gradients of a version make the update, the late are dropped.

After Chen et al., "Revisiting distributed synchronous SGD" (arXiv 1604.00981, 2016). Same machines for everybody who is
compared: N = n − b gradients of X / N samples each (specification of LB-BSP, §2).

Open in the description, and our reading: a late worker is not interrupted; it finishes what it has in hand, hears that
it was dropped, and goes on with the newest version.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from uneven.errors import ConfigError


def samples_each(total: int, workers: int, spares: int) -> int:
    """X / (n − b), rounded up.

    Raises:
        ConfigError: nobody would be waited for.
    """
    if not 0 <= spares < workers:
        raise ConfigError(f"backup: {spares} spares of {workers} workers: at least one worker must be waited for")
    return -(-total // (workers - spares))


@dataclass(frozen=True, slots=True)
class GradientVerdict:
    """What becomes of a gradient.

    Attributes:
        counts: whether it is part of an update.
        complete: whose gradients make the update that it completes; empty if it completes none.
    """

    counts: bool
    complete: tuple[int, ...] = ()


class Quorum:
    """Counts what has arrived of the present version.

    Args:
        workers: n.
        spares: b.

    Attributes:
        version: of the parameters; also the updates made so far.
        dropped: gradients of each rank that came too late.

    Raises:
        ConfigError: nobody would be waited for.
    """

    def __init__(self, workers: int, spares: int) -> None:
        samples_each(1, workers, spares)
        self.wanted = workers - spares
        self.version = 0
        self.dropped = [0] * workers
        self._arrived: list[int] = []

    def arrive(self, rank: int, version: int) -> GradientVerdict:
        """A gradient has come.

        Raises:
            ConfigError: of a version that does not exist yet, or for the second time.
        """
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
    """A whole run.

    Attributes:
        ends_s: when each version was complete.
        counted_s: compute time of each worker that went into an update.
        waited_s: time of each worker between a gradient that counted and the update.
        dropped: gradients of each rank that came too late.
    """

    ends_s: tuple[float, ...]
    counted_s: tuple[float, ...]
    waited_s: tuple[float, ...]
    dropped: tuple[int, ...]


def play(workers: int, spares: int, versions: int, seconds: Callable[[int, int], float]) -> Redundant:
    """A run in virtual time.

    Args:
        versions: updates to make.
        seconds: of (version, rank): how long a worker needs from having the parameters to its gradient's arrival.

    Raises:
        ConfigError: nobody would be waited for.
    """
    quorum = Quorum(workers, spares)
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
