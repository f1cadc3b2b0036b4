"""One sample at a time to the worker that finishes first with it."""

import heapq
import math
from collections.abc import Callable, Sequence

from uneven.policy.core.views import Limits


def earliest(seconds: Sequence[Callable[[int], float]], total: int, limits: Limits) -> tuple[int, ...]:
    """Return the shares for which the last worker finishes as early as possible.

    This is exact for costs that grow with the batch. Where a cost falls, its largest value so far counts. Of workers
    that would finish together, the lower rank takes the sample.

    ``seconds``: samples → seconds, of each worker; ``total``: X; ``limits``: least and greatest share of each worker.
    Raises ConfigError: limits that cannot be met.
    """
    limits.check(total)
    shares = list(limits.lower)
    high = [max(map(cost, range(low + 1))) for cost, low in zip(seconds, limits.lower, strict=True)]

    def next_s(i: int) -> float:
        return max(high[i], seconds[i](shares[i] + 1)) if shares[i] < limits.upper[i] else math.inf

    heap = [(next_s(i), i) for i in range(len(seconds))]
    heapq.heapify(heap)
    for _ in range(total - sum(shares)):
        high[heap[0][1]], i = heap[0]
        shares[i] += 1
        heapq.heapreplace(heap, (next_s(i), i))
    return tuple(shares)
