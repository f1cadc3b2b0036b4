"""The time in which one thread picks, packs and writes ten million entries, of which 1 % is significant."""

import statistics
import time

import numpy as np

from uneven.policy.select import Accumulator, Significant, pack

ENTRIES, PART, THRESHOLD = 10_000_000, 0.01, 0.01


def median(repeats: int) -> float:
    """Return the milliseconds of a repeat; its write copies the message's bytes into a buffer."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(ENTRIES).astype(np.float32)
    values[values == 0] = 1
    small = 0.5 * THRESHOLD * np.abs(values)
    large = rng.random(ENTRIES) < PART
    found, select = [], Significant(THRESHOLD)
    for _ in range(repeats + 1):
        sums = Accumulator(np.where(large, 4 * small, small).astype(np.float32))
        buffer = bytearray(8 * int(large.sum()) + 4096)
        started_s = time.perf_counter()
        message = pack(sums.take(select, values), clock=1)
        buffer[: len(message)] = message
        found.append(1e3 * (time.perf_counter() - started_s))
    return statistics.median(found[1:])
