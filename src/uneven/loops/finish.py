"""Finishing an iteration together where load changes faster than any forecast can follow. Pure.

The balancer divides the global batch X, as ever. Of its share a worker begins with what fits the speeds of the last
iteration; the rest is taken from a counter while the iteration runs, in chunks that grow smaller, by whoever is through
with what it has. Every chunk pays its launch again, so the rest is only as large as the forecasts are wrong: the
spread of the speeds in the first parts against those of the last iteration, smoothed. Where that is less time than a
launch or so there is no rest, and each does its share.

Whoever comes to the counter says how fast it was in its first part. A worker that would need much longer for its chunk
than the others there for all that is left leaves it to them; who is alone there never does, so nothing is left over.

The weights are those of samples really done, x_i / X, so X is exact, each sample is used once, and the gradient is that
of one process. The rule and its numbers are our own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from uneven.core.apportion import proportional
from uneven.core.views import Limits
from uneven.errors import ConfigError

_NEWEST = 0.2
"""Weight of the newest iteration's error."""

_WORTH = 1.5
"""Launches that the spread of the first parts' ends has to be longer than, or nothing is given out later."""

_PAYS = 1.5
"""A chunk takes at least so many times its launch."""

_FIRST_ERROR = 0.3

_REST, _BEGUN, _DEAR = 0.5, 2.0, 5.0
"""With an error of e, 1 - exp(-e/2) of X is in no plan, and of what is planned for it a worker begins with exp(-2 e):
then it knows how fast it is. It begins with all of it where the error is less time than five launches."""

_LEAST_REST, _MOST_REST = 0.05, 0.7
"""Parts of X that are given out later, at least and at most, where any is."""

_LEAST = 4
"""Samples in a chunk, at least, where so many are left."""

_SHRINK = 0.5
"""A chunk is this part of what its worker would do of what is left."""

_PATIENCE = 2.5
"""A worker leaves a chunk to others where it would take it so many times as long as them all that is left."""


_FORGET = 0.95
"""What the passes of an iteration weigh one iteration later, where it is asked what a launch takes."""


class LaunchFit:
    """What a pass of a worker takes whatever its size, by least squares over its passes.

    Times are taken in those of a mean sample of their iteration, so that load, which makes all of them longer alike,
    does not tell small passes from large ones.

    Attributes:
        seconds: of a launch, at the speed of the newest iteration; 0 before passes of several sizes were seen.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sums = [0.0] * 5  # of 1, x, x², t, x t

    def add(self, sizes: Sequence[int], took_s: Sequence[float]) -> None:
        """The passes of one iteration: samples, and how long."""
        each_s = sum(took_s) / sum(sizes)
        self._sums = [_FORGET * one for one in self._sums]
        for size, time_s in zip(sizes, took_s, strict=True):
            for place, term in enumerate((1.0, size, size * size, time_s / each_s, size * time_s / each_s)):
                self._sums[place] += term
        one, x, xx, t, xt = self._sums
        spread = one * xx - x * x
        if spread > 1e-6 * xx:
            slope = (one * xt - x * t) / spread
            most = min(sizes) * slope  # a launch is not taken to be more than the least pass
            self.seconds = each_s * min(max(0.0, (t - slope * x) / one), max(0.0, most))


class FinishTogether:
    """Divides iteration after iteration, alike on all workers that hear the same numbers.

    Args:
        workers: how many.
        total: X.
        lower: least samples of a pass.

    Attributes:
        error: of the forecasts: spread over the workers of the logarithm of the speed in the first part over that of
            the iteration before, the root of its smoothed square.
        launch_s: what each worker pays for a chunk, whatever its size.

    Raises:
        ConfigError: there are fewer samples than workers, or chunks would be empty.
    """

    def __init__(self, workers: int, total: int, lower: int = 1) -> None:
        if not (0 < workers * lower <= total):
            raise ConfigError(f"{total} samples, {workers} workers, passes of at least {lower}: all are too few")
        self._lower = lower
        self.launch_s = [0.0] * workers
        self._speeds_per_s = [1.0] * workers
        self.error = _FIRST_ERROR
        self._worth = True
        self._planned = self._firsts = (0,) * workers

    @property
    def rest(self) -> float:
        """Part of X that is given out while the iteration runs."""
        return min(_MOST_REST, max(_LEAST_REST, 1.0 - math.exp(-_REST * self.error))) if self._worth else 0.0

    def first_parts(self, shares: Sequence[int]) -> tuple[int, ...]:
        """What each worker begins with, at least a sample of its share; the whole of it where nothing is given out.

        Args:
            shares: samples of each worker, as the balancer says.
        """
        if not self._worth or len(shares) == 1:
            self._planned = self._firsts = tuple(shares)
            return self._firsts
        workers = len(shares)
        first = max(workers * self._lower, round(sum(shares) * (1.0 - self.rest)))
        least = Limits(lower=(self._lower,) * workers, upper=(first,) * workers)
        self._planned = proportional(self._speeds_per_s, first, least)
        begun = (self._begun(worker, planned) for worker, planned in enumerate(self._planned))
        self._firsts = tuple(map(min, shares, begun))
        return self._firsts

    def _begun(self, worker: int, planned: int) -> int:
        """How much of what is planned for a worker it begins with: all of it where the error is not worth a launch."""
        late_s = self.error * planned / self._speeds_per_s[worker]
        part = math.exp(-_BEGUN * self.error) if late_s > _DEAR * self.launch_s[worker] else 1.0
        return max(self._lower, round(part * planned))

    def chunk(self, worker: int, done: int, left: int, here: Mapping[int, float]) -> int:
        """Samples of the next chunk of a worker, of those that are left; 0 where it leaves them to others, or none is.

        Args:
            done: its samples in this iteration so far.
            here: samples a second in their first parts of those who are through with these, this worker among them; 0
                of those who have left. Who is alone leaves nothing to others.
        """
        if left == 0:
            return 0
        speeds, now_per_s = [here.get(one, speed) for one, speed in enumerate(self._speeds_per_s)], here[worker]
        launches_s = [self.launch_s[one] * self._speeds_per_s[one] / speed if speed else 0.0
                      for one, speed in enumerate(speeds)]  # fmt: skip
        paying = math.ceil(_PAYS * launches_s[worker] * now_per_s)
        shrunk = math.ceil(left * _SHRINK * now_per_s / sum(speeds))
        fits = math.floor(self._planned[worker] * min(1.0, now_per_s / self._speeds_per_s[worker]))
        fair = math.floor(left * now_per_s / sum(speeds))
        size = max(_LEAST, self._lower, paying, shrunk, min(fits - done, fair))
        size = left if left - size < self._lower else size
        if not any(speed for one, speed in here.items() if one != worker):
            return size
        others = [one for one, speed in enumerate(speeds) if speed and one != worker]
        others_s = left / sum(speeds[one] for one in others) + statistics.fmean(launches_s[one] for one in others)
        return size if launches_s[worker] + size / now_per_s <= _PATIENCE * others_s else 0

    def ended(self, samples: Sequence[int], busy_s: Sequence[float], first_s: Sequence[float]) -> None:
        """An iteration is over.

        Args:
            samples: that each worker did.
            busy_s: how long it took for them.
            first_s: how long without chunks.
        """
        now_per_s = [count / time for count, time in zip(self._firsts, first_s, strict=True)]
        off = [math.log(now / then) for now, then in zip(now_per_s, self._speeds_per_s, strict=True)]
        self.error = math.sqrt(self.error**2 + _NEWEST * (statistics.pvariance(off) - self.error**2))
        self._speeds_per_s = [count / time for count, time in zip(samples, busy_s, strict=True)]
        self._worth = self.error * statistics.fmean(first_s) > _WORTH * statistics.fmean(self.launch_s)
