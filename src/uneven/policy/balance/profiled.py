"""The saturation point, memory limit and cost curve of a worker, from a few measured batches.

:mod:`uneven.run.measure.measure_profile` takes the measurements and bounds their time.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.balance._fitting import Points, fit

SATURATED = 1.05  # factor over the smallest batch's time from which a batch takes longer [default, specification]
MARGIN = 0.9  # usable part of the largest batch that succeeded, or of the memory left [default, specification]
_PASSES = 32  # number of passes that get their own points; beyond them the curve is extrapolated
_SPREAD = 0.03  # relative noise of a median that the fit assumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The batches that were tried on one worker; ``ConfigError`` if sizes and times do not match, or without any."""

    sizes: tuple[int, ...]  # samples, ascending, at least one
    seconds: tuple[float, ...]  # of one step at each size, median
    # the size for which memory was, or by the trend would have been, too small; None without one
    failed: int | None = None

    def __post_init__(self) -> None:
        ascending = list(self.sizes) == sorted(set(self.sizes))
        good = len(self.sizes) == len(self.seconds) >= 1 and ascending and self.sizes[0] >= 1
        if not good or not all(0.0 < one < math.inf for one in self.seconds):
            raise ConfigError(
                f"a profile of {list(self.sizes)} samples in {list(self.seconds)} s: give ascending sizes from 1, each "
                f"with a positive time"
            )
        if self.failed is not None and self.failed <= self.sizes[-1]:
            raise ConfigError(
                f"a profile that failed at {self.failed} samples also has {self.sizes[-1]}: profile again"
            )

    @property
    def rising_s(self) -> tuple[float, ...]:
        """Γ at each size, seconds: the least time of the batch and all larger ones."""
        # A batch takes no longer than a larger one; disturbances only add time, most to small batches.
        return tuple(reversed(list(accumulate(reversed(self.seconds), min))))

    @property
    def saturation(self) -> int:
        """x_s: the first size that takes over 5 % longer than the smallest one (specification, §1.8); the largest
        without one.

        Below it fewer samples gain nothing.
        """
        rising_s = self.rising_s
        slower = (x for x, t in zip(self.sizes, rising_s, strict=True) if t > SATURATED * rising_s[0])
        first = next(slower, self.sizes[-1])
        # If already the second size takes longer, saturation begins at or below the smallest one.
        return self.sizes[0] if len(self.sizes) > 1 and first == self.sizes[1] else first

    @property
    def most(self) -> int | None:
        """x_o: nine tenths of the largest size that succeeded, at least 1; None if none failed."""
        return None if self.failed is None else max(1, int(MARGIN * self.sizes[-1]))

    @property
    def cost(self) -> tuple[float, float, float]:
        """(g, a, b) of max(g, a + b x): seconds, seconds, seconds per sample."""
        size, seconds = (np.array([*values, np.inf])[:, None] for values in (self.sizes, self.seconds))
        # An empty slot (size infinity, weight 0), because the fit needs two.
        seconds[-1] = 0.0
        weight = np.where(size < np.inf, 1.0, 0.0)
        curve = fit(Points(size, seconds, weight), np.array([_SPREAD]))
        return float(curve.floor_s[0]), float(curve.overhead_s[0]), float(curve.per_sample_s[0])

    def time_s(self, samples: int) -> float:
        """Return Γ of ``samples``, seconds: linear between the sizes tried, constant below them, extrapolated above."""
        sizes, rising_s = self.sizes, self.rising_s
        if samples <= sizes[-1]:
            return float(np.interp(samples, sizes, rising_s))
        # Beyond the largest size a sample costs at least half of the mean there, as a small noise could give a slope of
        # 0.
        mean_s = rising_s[-1] / sizes[-1]
        last_s = (rising_s[-1] - rising_s[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else mean_s
        return rising_s[-1] + max(last_s, 0.5 * mean_s) * (samples - sizes[-1])


def in_passes(profile: Profile, most: int, total: int) -> Profile:
    """Return the profile of a worker that computes a share, at most ``total``, in equal passes of at most ``most``
    samples."""
    points = {size: profile.time_s(size) for size in profile.sizes if size <= most}
    for passes in range(1, min(_PASSES, -(-total // most)) + 1):
        # Every pass pays its launch, so the curve jumps after each full pass: a point on both sides.
        for samples, number in ((passes * most, passes), (passes * most + 1, passes + 1)):
            if samples <= total:
                points[samples] = number * profile.time_s(-(-samples // number))
    sizes = tuple(sorted(points))
    return Profile(sizes=sizes, seconds=tuple(points[size] for size in sizes))


def next_size(
    sizes: tuple[int, ...], seconds: tuple[float, ...], *, most: int, left_s: float, steps: int, least: int = 1
) -> int | None:
    """Return the next batch to try (``least``, then doubled, then ``most``), or None when finished.

    Args:
        sizes, seconds: tried so far, ascending, and the time of a step at each.
        most, least: largest and smallest batch that the worker may ever get.
        left_s: remaining time of the profile.
        steps: taken at each size.
    """
    if not sizes:
        return least
    if sizes[-1] >= most:
        return None
    size = min(2 * sizes[-1], most)
    # Twice the size takes at most about twice the time; a batch that might not end in time is not started.
    needed_s = steps * seconds[-1] * size / sizes[-1]
    return size if needed_s <= left_s else None


def fits(base_bytes: int, peaks: tuple[tuple[int, int], ...], size: int, limit_bytes: int | None) -> bool:
    """Return whether a batch of ``size`` fits in memory, given (size, peak bytes) of those tried.

    ``base_bytes`` are in use before the first batch; ``limit_bytes`` includes them and is None if unknown.
    """
    if limit_bytes is None or not peaks:
        return True
    x, peak = peaks[-1]
    # Extrapolate from the last two peaks: memory is nearly linear in the batch.
    x_before, peak_before = peaks[-2] if len(peaks) > 1 else (0, base_bytes)
    per_sample = max(0.0, (peak - peak_before) / (x - x_before))
    return peak + per_sample * (size - x) - base_bytes <= MARGIN * (limit_bytes - base_bytes)
