"""Compute rates from profiles, and how many to measure.

The paper runs every member on 1 … M_t devices for at most 48 batches; the last 20 give the rate (section 6.1).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from uneven.errors import ConfigError

MOST_BATCHES = 48  # of a profile (section 6.1)

LAST_BATCHES = 20  # of a profile, which give the rate; earlier ones warm up (section 6.1)


def rate_per_s(batch_s: Sequence[float], batch: int, *, median: bool = False) -> float:
    """Return the samples/s over the last 20 batches of a profile.

    `batch_s` are the seconds of at most 48 batches, `batch` the samples of each, summed over the member's devices.
    `median` uses the median batch instead of all 20 (ours, for CPU slots). Raises `ConfigError` for times that are not
    positive.
    """
    if not 1 <= len(batch_s) <= MOST_BATCHES:
        raise ConfigError(f"a profile has 1 … {MOST_BATCHES} batches, not {len(batch_s)}")
    last = batch_s[-LAST_BATCHES:]
    # With the median, a single batch that the operating system interrupted does not lower the rate.
    took_s = len(last) * statistics.median(last) if median else math.fsum(last)
    if not (batch > 0 and min(last) >= 0.0 and 0.0 < took_s < math.inf):
        raise ConfigError(f"{len(last)} batches of {batch} samples in {took_s} s have no rate")
    return len(last) * batch / took_s


def most_profiled(alone_per_s: Mapping[str, float], per_node: int, devices: int) -> int:
    """Return M_t, the largest number of devices on which members are profiled (section 6.1).

    M_a = ⌈max r(1) / min r(1)⌉ is what the slowest would need to match the fastest if it scaled linearly; M_b = 2 · G
    spans two nodes; M_t = max(M_a, M_b), here at most M, which the paper expects to be larger. `per_node` is G,
    `devices` is M. Raises `ConfigError` if there are no members or devices, or a rate is not positive.
    """
    if not alone_per_s or not all(0.0 < rate < math.inf for rate in alone_per_s.values()):
        raise ConfigError("rates on one device must be positive, of at least one member")
    if per_node < 1 or devices < 1:
        raise ConfigError(f"{devices} devices, {per_node} on a node: give at least one of each")
    reach = math.ceil(max(alone_per_s.values()) / min(alone_per_s.values()))
    return min(devices, max(reach, 2 * per_node))
