"""Compute how many preprocessors a flotilla needs."""

import math

from uneven.errors import ConfigError

HEADROOM = 0.2  # share above the average need, for occasional slow chunks. Ours.


def preprocessors_needed(need_per_s: float, each_per_s: float, *, most: int) -> int:
    """Return the smallest number of preprocessors that keeps up with the shared stream.

    FLEET takes the smallest number whose throughput meets the trainers' (§4, B.3). With one stream for all members,
    that is the rate of the flotilla, not the sum over its members. `need_per_s` is that rate if data are always
    available; infinite starts all. `each_per_s` is a preprocessor's rate; NaN before the first chunk, when one
    preprocessor is enough. Raises `ConfigError` if ``most`` is below one.
    """
    if most < 1:
        raise ConfigError(f"at most {most} preprocessors: give at least one")
    if not math.isfinite(need_per_s):
        return most
    if not each_per_s > 0.0:
        return 1
    return max(1, min(most, math.ceil((1.0 + HEADROOM) * need_per_s / each_per_s)))
