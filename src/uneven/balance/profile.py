"""From a few measured batches to a saturation point, a memory limit and a cost curve. Pure.

What is measured, and where the bound on its time comes from, is :mod:`uneven.run.measure.profile`'s affair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from uneven.balance._fitting import Points, fit
from uneven.errors import ConfigError

SATURATED = 1.05
"""A batch takes longer than a single sample when it takes so many times as long. [default] of the specification."""

MARGIN = 0.9
"""Part of the largest batch that did not fail, or of the memory that is left, that is counted on. [default] too."""

_PASSES = 32
"""Up to so many passes each one is reckoned with; beyond them time goes on as before."""

_SPREAD = 0.03  # relative noise of a median that the fit reckons with


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Batches that were tried on one worker.

    Attributes:
        sizes: samples, ascending, at least one.
        seconds: of one step at each size, median.
        failed: the size at which the memory did not suffice, or would not have by what the others took; None if it
            always did.

    Raises:
        ConfigError: no sizes, or sizes and times that do not fit together.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    failed: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is no profile."""
        ascending = list(self.sizes) == sorted(set(self.sizes))
        good = len(self.sizes) == len(self.seconds) >= 1 and ascending and self.sizes[0] >= 1
        if not good or not all(0.0 < one < math.inf for one in self.seconds):
            raise ConfigError(
                f"a profile of {list(self.sizes)} samples in {list(self.seconds)} s: give ascending sizes from 1, each "
                f"with a positive time"
            )
        if self.failed is not None and self.failed <= self.sizes[-1]:
            raise ConfigError(f"a profile cannot fail at {self.failed} samples and hold {self.sizes[-1]}")

    @property
    def rising_s(self) -> tuple[float, ...]:
        """Γ at each size, seconds: a batch takes no longer than a larger one, so the least time of it and of those.

        What disturbs a measurement makes it longer, and a small batch is disturbed most.
        """
        return tuple(reversed(list(accumulate(reversed(self.seconds), min))))

    @property
    def saturation(self) -> int:
        """x_s: the first size that takes over 5 % longer than the smallest one; that one if it is the second tried.

        Below it fewer samples gain nothing (specification, §1.8). The largest size tried if none takes longer.
        """
        rising_s = self.rising_s
        slower = (x for x, t in zip(self.sizes, rising_s, strict=True) if t > SATURATED * rising_s[0])
        first = next(slower, self.sizes[-1])
        return self.sizes[0] if len(self.sizes) > 1 and first == self.sizes[1] else first

    @property
    def most(self) -> int | None:
        """x_o: nine tenths of the largest size that did not fail, at least 1; None if none failed."""
        return None if self.failed is None else max(1, int(MARGIN * self.sizes[-1]))

    @property
    def cost(self) -> tuple[float, float, float]:
        """(g, a, b) of max(g, a + b x): seconds, seconds, seconds per sample."""
        size, seconds = (np.array([*values, np.inf])[:, None] for values in (self.sizes, self.seconds))
        seconds[-1] = 0.0
        weight = np.where(size < np.inf, 1.0, 0.0)
        curve = fit(Points(size, seconds, np.zeros(size.shape), weight), np.array([_SPREAD]))
        return float(curve.floor_s[0]), float(curve.overhead_s[0]), float(curve.per_sample_s[0])

    def time_s(self, samples: int) -> float:
        """Γ of a batch of ``samples``, seconds: straight between the sizes that were tried, and on beyond them.

        Below the smallest one it takes as long as that. Beyond the largest a sample costs at least half of what the
        mean sample cost there; after one size alone, all of it.
        """
        sizes, rising_s = self.sizes, self.rising_s
        if samples <= sizes[-1]:
            return float(np.interp(samples, sizes, rising_s))
        mean_s = rising_s[-1] / sizes[-1]
        last_s = (rising_s[-1] - rising_s[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else mean_s
        return rising_s[-1] + max(last_s, 0.5 * mean_s) * (samples - sizes[-1])


def in_passes(profile: Profile, most: int, total: int) -> Profile:
    """The same worker where a share is computed in equal passes of at most ``most`` samples: each pays its launch.

    Args:
        total: samples that it may be given at most.
    """
    points = {size: profile.time_s(size) for size in profile.sizes if size <= most}
    for passes in range(1, min(_PASSES, -(-total // most)) + 1):
        for samples, number in ((passes * most, passes), (passes * most + 1, passes + 1)):
            if samples <= total:
                points[samples] = number * profile.time_s(-(-samples // number))
    sizes = tuple(sorted(points))
    return Profile(sizes=sizes, seconds=tuple(points[size] for size in sizes))


def next_size(
    sizes: tuple[int, ...], seconds: tuple[float, ...], *, most: int, left_s: float, steps: int, least: int = 1
) -> int | None:
    """The next batch to try: ``least``, then twice as many each time, then ``most``; None when it is enough.

    A batch of twice the size takes at most about twice as long, so one that might not end within the time that is
    left is not begun.

    Args:
        sizes: tried so far, ascending.
        seconds: of a step at each.
        most: largest batch that the worker may ever get.
        left_s: of the time for the profile.
        steps: that are taken at each size.
        least: smallest batch that the worker may ever get.
    """
    if not sizes:
        return least
    if sizes[-1] >= most:
        return None
    size = min(2 * sizes[-1], most)
    needed_s = steps * seconds[-1] * size / sizes[-1]
    return size if needed_s <= left_s else None


def fits(base_bytes: int, peaks: tuple[tuple[int, int], ...], size: int, limit_bytes: int | None) -> bool:
    """Whether a batch of ``size`` can be tried without asking for more memory than there is.

    Args:
        base_bytes: in use before the first batch.
        peaks: (size, most bytes in use while it was computed) of those tried.
        size: the next one.
        limit_bytes: that may be in use, what is in use before the first batch with it; None where nobody knows.
    """
    if limit_bytes is None or not peaks:
        return True
    x, peak = peaks[-1]
    x_before, peak_before = peaks[-2] if len(peaks) > 1 else (0, base_bytes)
    per_sample = max(0.0, (peak - peak_before) / (x - x_before))
    return peak + per_sample * (size - x) - base_bytes <= MARGIN * (limit_bytes - base_bytes)
