"""The rule to finish an iteration together if load changes faster than any forecast can follow.

The balancer divides the global batch X as usual. A worker starts with the part of its share that fits the last
iteration's speeds. It takes the rest from a counter during the iteration, in shrinking chunks, whenever it is
free. Each chunk costs another launch, so the rest is only as large as the forecast error. This is the smoothed
spread of the speeds in the first parts relative to the last iteration. If that is less than about a launch there is no
rest.

A worker that would need much longer for its chunk than the others for all that is left leaves it to them. The weights
are those of samples really done, x_i / X. So X is exact, each sample is used once, and the gradient is that of one
process. The rule and its numbers are our own.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from uneven.errors import ConfigError
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import Limits

_NEWEST = 0.2  # EMA weight of the newest iteration's error
_WORTH = 1.5  # there is a rest only if the spread of the first parts' ends exceeds this many launches
_PAYS = 1.5  # a chunk takes at least this many times its launch
_FIRST_ERROR = 0.3

# With an error of e, 1 - exp(-e/2) of X is not planned, and a worker starts with exp(-2 e) of its planned samples, to
# measure its speed. It starts with all of them if the error costs less time than five launches.
_REST, _BEGUN, _DEAR = 0.5, 2.0, 5.0

_LEAST_REST, _MOST_REST = 0.05, 0.7  # bounds of the rest, as parts of X, if there is one
_LEAST = 4  # fewest samples in a chunk, if that many are left
_SHRINK = 0.5  # a chunk is this part of the samples left that its worker would do
_PATIENCE = 2.5  # a worker leaves a chunk that would take it this many times as long as the others need for the rest
_FORGET = 0.95  # decay per iteration of a pass's weight in the fit of launch times


class LaunchFit:
    """A worker's fixed time per pass, by least squares over its passes.

    ``seconds`` is that time at the newest iteration's speed; 0 before passes of several sizes were seen.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sums = [0.0] * 5  # of 1, x, x², t, x t, with x in samples and t relative to a mean sample's time

    def add(self, sizes: Sequence[int], took_s: Sequence[float]) -> None:
        """Add one iteration's passes: their samples, and their times."""
        # Times relative to a mean sample of their iteration, so that load, which slows all passes of an iteration, does
        # not look like an effect of their sizes.
        each_s = sum(took_s) / sum(sizes)
        self._sums = [_FORGET * one for one in self._sums]
        for size, time_s in zip(sizes, took_s, strict=True):
            for place, term in enumerate((1.0, size, size * size, time_s / each_s, size * time_s / each_s)):
                self._sums[place] += term
        one, x, xx, t, xt = self._sums
        spread = one * xx - x * x
        if spread > 1e-6 * xx:
            slope = (one * xt - x * t) / spread
            most = min(sizes) * slope  # a launch cannot take longer than the smallest pass
            self.seconds = each_s * min(max(0.0, (t - slope * x) / one), max(0.0, most))


class FinishTogether:
    """Divides each iteration of ``total`` samples, identically on all workers that receive the same numbers.

    Attributes:
        error: of the forecasts: the root of the smoothed variance, over workers, of the logarithm of the first part's
            speed relative to the iteration before.
        launch_s: each worker's fixed time for a chunk.
    """

    def __init__(self, workers: int, total: int, lower: int = 1) -> None:
        if not (0 < workers * lower <= total):
            raise ConfigError(
                f"{total} samples for {workers} workers, at least {lower} each: raise batch_size, or lower min_batch"
            )
        self._lower = lower
        self.launch_s = [0.0] * workers
        self._speeds_per_s = [1.0] * workers
        self.error = _FIRST_ERROR
        self._worth = True
        self._planned = self._firsts = (0,) * workers

    @property
    def rest(self) -> float:
        """The part of X that is dispatched during the iteration."""
        return min(_MOST_REST, max(_LEAST_REST, 1.0 - math.exp(-_REST * self.error))) if self._worth else 0.0

    def first_parts(self, shares: Sequence[int]) -> tuple[int, ...]:
        """Return the samples that each worker starts with, at least ``lower``; all of its ``shares`` if there is no
        rest."""
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
        late_s = self.error * planned / self._speeds_per_s[worker]
        part = math.exp(-_BEGUN * self.error) if late_s > _DEAR * self.launch_s[worker] else 1.0
        return max(self._lower, round(part * planned))

    def chunk(self, worker: int, done: int, left: int, here: Mapping[int, float]) -> int:
        """Return the samples of a worker's next chunk, given its ``done`` ones; 0 if it leaves the rest to others.

        ``here`` has the speeds, in samples a second, of the workers that have finished their first parts, including
        this one; 0 for those that have left. The last worker never leaves a rest.
        """
        if left == 0:
            return 0
        speeds, now_per_s = [here.get(one, speed) for one, speed in enumerate(self._speeds_per_s)], here[worker]
        launches_s = [
            self.launch_s[one] * self._speeds_per_s[one] / speed if speed else 0.0 for one, speed in enumerate(speeds)
        ]
        paying = math.ceil(_PAYS * launches_s[worker] * now_per_s)
        shrunk = math.ceil(left * _SHRINK * now_per_s / sum(speeds))
        fits = math.floor(self._planned[worker] * min(1.0, now_per_s / self._speeds_per_s[worker]))
        fair = math.floor(left * now_per_s / sum(speeds))
        size = max(_LEAST, self._lower, paying, shrunk, min(fits - done, fair))
        size = left if left - size < self._lower else size  # a last pass below `lower` would not be allowed
        if not any(speed for one, speed in here.items() if one != worker):
            return size
        others = [one for one, speed in enumerate(speeds) if speed and one != worker]
        others_s = left / sum(speeds[one] for one in others) + statistics.fmean(launches_s[one] for one in others)
        return size if launches_s[worker] + size / now_per_s <= _PATIENCE * others_s else 0

    def ended(self, samples: Sequence[int], busy_s: Sequence[float], first_s: Sequence[float]) -> None:
        """Learn from an iteration: each worker's samples, its time for them, and its time without chunks."""
        now_per_s = [count / time for count, time in zip(self._firsts, first_s, strict=True)]
        off = [math.log(now / then) for now, then in zip(now_per_s, self._speeds_per_s, strict=True)]
        self.error = math.sqrt(self.error**2 + _NEWEST * (statistics.pvariance(off) - self.error**2))
        self._speeds_per_s = [count / time for count, time in zip(samples, busy_s, strict=True)]
        self._worth = self.error * statistics.fmean(first_s) > _WORTH * statistics.fmean(self.launch_s)
