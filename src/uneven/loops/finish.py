"""Finishing an iteration together where load changes faster than any forecast can follow. Pure.

Most of the global batch X is divided by what each worker did in the last iteration; the rest is given out while the
iteration runs, in chunks that grow smaller, each to whoever would end first with it. Every chunk pays its launch again,
so the rest is only as large as the forecasts are wrong: the relative spread of the times at which the workers are
through with their first parts, smoothed, up to a half of X. Where that spread is less time than a launch there is no
rest, and the division follows a mean of the last iterations.

The weights are those of samples really done, x_i / X, so X is exact, each sample is used once, and the gradient is that
of one process. The rule and its numbers are our own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from uneven.core.apportion import proportional
from uneven.errors import ConfigError

_NEWEST = 0.2
"""Weight of the newest iteration's error."""

_STEADY = 0.2
"""Weight of the newest iteration's speeds where nothing is given out later."""

_WORTH = 1.5
"""Launches that the spread of the first parts' ends has to be longer than, or nothing is given out later."""

_PAYS = 0.5
"""A chunk takes at least so many times its launch."""

_FIRST_ERROR = 0.3

_LEAST_REST, _MOST_REST = 0.05, 0.5
"""Parts of X that are given out later, at least and at most, where any is."""

_SHRINK = 0.5
"""A chunk is this part of what its worker would do of what is left."""


class FinishTogether:
    """Divides iteration after iteration.

    Args:
        workers: how many.
        total: X.
        launch_s: what each worker pays for a chunk, whatever its size, as a profile says.
        least: samples in a chunk, but for the last one.

    Attributes:
        error: relative spread of the times at which first parts end, smoothed.

    Raises:
        ConfigError: there are fewer samples than workers, or chunks would be empty.
    """

    def __init__(self, workers: int, total: int, launch_s: Sequence[float], least: int = 4) -> None:
        if not (0 < workers <= total and least > 0):
            raise ConfigError(
                f"{total} samples, {workers} workers, chunks of at least {least}: all of these are too few"
            )
        self._total, self._least = total, least
        self._launch_s = tuple(launch_s)
        self._speeds_per_s = [1.0] * workers
        self.error = _FIRST_ERROR
        self._worth = True

    @property
    def rest(self) -> float:
        """Part of X that is given out while the iteration runs."""
        return min(_MOST_REST, max(_LEAST_REST, self.error)) if self._worth else 0.0

    def first_parts(self) -> tuple[int, ...]:
        """What each worker begins with."""
        return proportional(self._speeds_per_s, round(self._total * (1.0 - self.rest)))

    def chunk(self, worker: int, left: int, part: float) -> int:
        """Samples of the next chunk of a worker that does ``part`` of all work now, 0 … 1, of those that are left.

        One takes at least half as long as its launch.
        """
        paying = math.ceil(_PAYS * self._launch_s[worker] * self._speeds_per_s[worker])
        return min(left, max(self._least, paying, math.ceil(left * part * _SHRINK)))

    def ended(self, samples: Sequence[int], local_s: Sequence[float], first_s: Sequence[float]) -> None:
        """An iteration is over.

        Args:
            samples: that each worker did.
            local_s: how long it was busy, its side of the exchange included.
            first_s: how long without chunks.
        """
        weight = 1.0 if self._worth else _STEADY
        for worker, (count, time) in enumerate(zip(samples, local_s, strict=True)):
            self._speeds_per_s[worker] += weight * (count / time - self._speeds_per_s[worker])
        mean_s = statistics.fmean(first_s)
        self.error += _NEWEST * (statistics.pstdev(first_s) / mean_s - self.error)
        self._worth = self.error * mean_s > _WORTH * statistics.fmean(self._launch_s)


def next_worker(free_s: Sequence[float], chunk_s: Sequence[float]) -> int:
    """Who would end first with a chunk of its own.

    Args:
        free_s: when each is through with what it has.
        chunk_s: how long each would take for a chunk of its own.
    """
    return min(range(len(free_s)), key=lambda worker: free_s[worker] + chunk_s[worker])
