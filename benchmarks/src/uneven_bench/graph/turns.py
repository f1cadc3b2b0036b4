"""Arms that take turns, so that a drift of the machine hits all equally."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_memory() -> bool:
    """Let malloc keep freed memory in this process, and return whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    # By default glibc returns buffers above 32 MB to the system, and each new one costs page faults, more than a
    # kernel's work.
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))


def by_turns(arms: Mapping[str, Callable[[], Any]], rounds: int, least_s: float = 0.0) -> dict[str, list[float]]:
    """Return the seconds of each arm, round by round, after a warm-up. An arm repeats within its turn for ``least_s``,
    and its mean counts."""
    repeats = {}
    for name, arm in arms.items():
        arm()
        began_s = time.perf_counter()
        arm()
        repeats[name] = max(1, int(least_s / max(1e-9, time.perf_counter() - began_s)))
    found: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began_s = time.perf_counter()
            for _ in range(repeats[name]):
                arms[name]()
            found[name].append((time.perf_counter() - began_s) / repeats[name])
    return found


def ratio(theirs: list[float], ours: list[float]) -> float:
    """Return the median speed-up of ours over the rounds."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def middle(theirs: list[float], ours: list[float]) -> tuple[float, float]:
    """Return the middle half of the rounds' ratios."""
    each = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    return each[len(each) // 4], each[-1 - len(each) // 4]
