"""Cost curves Γ(x) of devices that are not straight lines."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from uneven.cluster.pure.describe.spec_checks import POSITIVE, POSITIVE_TIME, TIME, Time, bounded
from uneven.errors import ConfigError
from uneven.policy.core.cost import Affine, Cost
from uneven.policy.core.tables import check


@dataclass(frozen=True, slots=True)
class Saturating:
    """The curve Γ(x) = max(floor, overhead + x · per_sample): below saturation a smaller batch takes the same time.
    From LB-BSP's 2018 poster (specification §1.1, §1.8); its fitted form is ours."""

    floor_s: Time
    overhead_s: Time
    per_sample_s: Time

    def __post_init__(self) -> None:
        check(self, "saturating cost: ")

    def seconds(self, samples: int) -> float:
        return max(self.floor_s, self.overhead_s + self.per_sample_s * samples)


@dataclass(frozen=True, slots=True)
class Measured:
    """A curve through measured points: linear between them and beyond the last two, flat before the first."""

    samples: tuple[int, ...]  # batch sizes, ascending, at least two
    seconds_each: tuple[float, ...]  # local time at each of them, not descending

    def __post_init__(self) -> None:
        if len(self.samples) != len(self.seconds_each) or len(self.samples) < 2:
            raise ConfigError(
                f"a measured cost has {len(self.samples)} batch sizes and {len(self.seconds_each)} times: "
                f"give at least two points of both"
            )
        if self.samples[0] < 0 or any(left >= right for left, right in pairwise(self.samples)):
            raise ConfigError(f"a measured cost has the batch sizes {list(self.samples)}: they must ascend from 0 or 1")
        for x, seconds in zip(self.samples, self.seconds_each, strict=True):
            bounded("a measured cost: samples", max(x, 1), POSITIVE)
            bounded(f"a measured cost of {x} samples: time_s", seconds, POSITIVE_TIME)
        points = list(zip(self.samples, self.seconds_each, strict=True))
        for (x0, y0), (x1, y1) in pairwise(points):
            if y1 < y0:
                raise ConfigError(
                    f"a measured cost falls from {y0} s for {x0} samples to {y1} s for {x1}: a larger batch cannot "
                    f"take less time; take medians of several runs, or leave the point out"
                )

    def seconds(self, samples: int) -> float:
        if samples <= self.samples[0]:
            return self.seconds_each[0]
        right = min(bisect_right(self.samples, samples), len(self.samples) - 1)
        x0, x1 = self.samples[right - 1], self.samples[right]
        y0, y1 = self.seconds_each[right - 1], self.seconds_each[right]
        return y0 + (y1 - y0) * (samples - x0) / (x1 - x0)


def check_cost(cost: Cost) -> None:
    """Check a curve for the simulator. Raises ConfigError for a negative parameter, or if a batch takes no time."""
    if isinstance(cost, Affine):
        bounded("affine cost: overhead_s", cost.overhead_s, TIME)
        bounded("affine cost: per_sample_s", cost.per_sample_s, TIME)
    if not cost.seconds(1) > 0:
        raise ConfigError(f"{cost}: a batch of one sample takes no time; per_sample_s must be positive")
