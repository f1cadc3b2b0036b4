"""Arms that take turns, so that a drift of the machine hits all alike."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_memory() -> bool:
    """Let malloc keep what is freed, for everybody in this process; whether that is so.

    By itself glibc gives buffers above 32 MB back to the system at once, and every new one is then paid for page by
    page: the same for all, and more than a kernel's work.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))


def by_turns(arms: Mapping[str, Callable[[], Any]], rounds: int, least_s: float = 0.0) -> dict[str, list[float]]:
    """Seconds of each arm, round by round, after one that warms up. ``least_s``: an arm is repeated within its turn
    until that has taken so long; what counts is the mean."""
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
    """How many times faster ours is: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def middle(theirs: list[float], ours: list[float]) -> tuple[float, float]:
    """The middle half of the rounds' ratios."""
    each = sorted(a / b for a, b in zip(theirs, ours, strict=True))
    return each[len(each) // 4], each[-1 - len(each) // 4]
