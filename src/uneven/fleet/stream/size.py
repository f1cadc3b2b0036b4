"""How many preprocessors a flotilla needs. Pure."""

from __future__ import annotations

import math

from uneven.errors import ConfigError

HEADROOM = 0.2
"""More than what is needed on average, against waiting for the odd slow chunk. Ours."""


def preprocessors_needed(need_per_s: float, each_per_s: float, *, most: int, headroom: float = HEADROOM) -> int:
    """The smallest number of preprocessors that keeps up with the shared stream.

    FLEET takes the smallest number whose throughput meets what the trainers take (§4, B.3). With one stream for
    everybody, that is the pace of the flotilla and not the sum of what its members take.

    Args:
        need_per_s: samples/s at which the flotilla goes when data never lack; infinite asks for all.
        each_per_s: samples/s of one preprocessor; not a number before one has made anything, and then one is enough to
            find out.
        most: the largest number allowed.
        headroom: added to the need, as a share of it.

    Raises:
        ConfigError: ``most`` below one.
    """
    if most < 1:
        raise ConfigError(f"at most {most} preprocessors: at least one must be allowed")
    if not math.isfinite(need_per_s):
        return most
    if not each_per_s > 0.0:
        return 1
    return max(1, min(most, math.ceil((1.0 + headroom) * need_per_s / each_per_s)))
