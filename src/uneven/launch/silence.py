"""Workers that neither end nor use the processor: stopped, or waiting for what never comes. Imports no torch."""

from __future__ import annotations

import time

import psutil

STOPPED = "was stopped, by SIGSTOP or in a debugger"

_LOOK_EVERY_S = 0.5
_IDLE_BELOW = 0.005  # cores; threads that only wait for a call wake up now and then


class Pulse:
    """How long processes, each with its descendants, have not used the processor."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[float, float]] = {}  # process → when it was last seen at work, what it had used
        self._looked_s: dict[int, float] = {}
        self._silent_s: dict[int, float] = {}

    def silent_s(self, pid: int, limit_s: float) -> float:
        """For how long it has used less than half a percent of a core, reckoned over ``limit_s``.

        Looks twice a second at most. One that was never asked for counts from now on.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s.get(pid, 0.0) < _LOOK_EVERY_S:
            return self._silent_s[pid]
        self._looked_s[pid] = now_s
        used_s = sum(_cpu_s(one) for one in _family(pid)[: 1 if stopped(pid) else None])
        since_s, before_s = self._marks.get(pid, (now_s, -1.0))
        if not before_s <= used_s < before_s + _IDLE_BELOW * limit_s:  # a descendant that ends takes its time along
            since_s = now_s
            self._marks[pid] = now_s, used_s
        self._silent_s[pid] = now_s - since_s
        return self._silent_s[pid]


def stopped(pid: int) -> bool:
    """Whether somebody has stopped it."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def in_words(pid: int, silent_s: float) -> str:
    """What is known of a worker that has been silent so long."""
    so = f"has used no processor time for {silent_s:.0f} s"
    return f"{STOPPED}, and {so}" if stopped(pid) else f"hangs: it {so}"


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
