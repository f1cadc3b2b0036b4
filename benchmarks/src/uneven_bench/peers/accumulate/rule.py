"""hivemind-style accumulation: all workers take micro-batches until X samples are in.

After the documentation of hivemind's optimizer: peers accumulate gradients until together they have the target batch,
then average, weighted by samples. Faster workers take more. A micro-batch under way still counts, see
``docs/ideas/rivals.md``.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Accumulated:
    """The result of one round."""

    samples: tuple[int, ...]  # of each worker; together at least X
    ends_s: tuple[float, ...]  # when each stopped
    enough_s: float  # when the X-th sample was in


def accumulate(micro_batch_s: Sequence[float], grain: int, total: int, *, notice_s: float = 0.0) -> Accumulated:
    """One round. ``micro_batch_s``: seconds of a micro-batch on each worker; ``grain``: samples of a micro-batch;
    ``total``: X; ``notice_s``: until a worker can know that the X-th sample is in. Raises ConfigError: no workers, an
    empty micro-batch, or one that takes no time."""
    if grain < 1 or total < 1 or not micro_batch_s or not all(0.0 < s < math.inf for s in micro_batch_s):
        raise ConfigError(
            f"accumulating {total} samples in micro-batches of {grain} that take {list(micro_batch_s)} s: all of these "
            f"must be positive"
        )
    needed = -(-total // grain)
    ends = [(s, rank) for rank, s in enumerate(micro_batch_s)]
    heapq.heapify(ends)
    for _ in range(needed - 1):
        end_s, rank = ends[0]
        heapq.heapreplace(ends, (end_s + micro_batch_s[rank], rank))
    enough_s = ends[0][0]
    known_s = enough_s + notice_s
    # The first end of a micro-batch at which it can be known; rounding must not cost one micro-batch more.
    counts = [max(1, math.ceil(known_s / s - 1e-9)) for s in micro_batch_s]
    return Accumulated(
        samples=tuple(grain * count for count in counts),
        ends_s=tuple(count * s for count, s in zip(counts, micro_batch_s, strict=True)),
        enough_s=enough_s,
    )
