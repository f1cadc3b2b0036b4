"""Detection of stopped or hanging workers: those that do not end and do not use the processor. Imports no torch."""

import time

import psutil

from uneven.runtime.jobs.processes import descendants

STOPPED = "was stopped, by SIGSTOP or in a debugger"

_LOOK_EVERY_S = 0.5
_IDLE_BELOW = 0.005  # cores; threads that only wait for a call wake up now and then


class SilenceMeter:
    def __init__(self) -> None:
        # (process, whether its descendants are meant) → (time of the last activity seen, CPU seconds used until then)
        self._marks: dict[tuple[int, bool], tuple[float, float]] = {}
        self._looked_s: dict[int, float] = {}
        self._silent_s: dict[int, float] = {}

    def silent_s(self, pid: int, limit_s: float) -> float:
        """Return for how long it has used less than 0.5 % of a core on average over ``limit_s``, since the first
        call."""
        now_s = time.monotonic()
        # Processes are polled at most twice a second, however often the agent asks.
        if now_s - self._looked_s.get(pid, 0.0) >= _LOOK_EVERY_S:
            self._looked_s[pid] = now_s
            silent_s = self._since_s((pid, False), _cpu_s(pid), now_s, limit_s)
            if silent_s > limit_s / 2 and not stopped(pid):
                # Listing descendants is expensive, so only after half the limit. A working child (a loader, a compiler)
                # counts.
                below_s = self._since_s((pid, True), sum(map(_cpu_s, descendants(pid))), now_s, limit_s)
                silent_s = silent_s if below_s > limit_s / 2 else min(silent_s, below_s)
            self._silent_s[pid] = silent_s
        return self._silent_s[pid]

    def _since_s(self, who: tuple[int, bool], used_s: float, now_s: float, limit_s: float) -> float:
        since_s, before_s = self._marks.get(who, (now_s, -1.0))
        if (
            not before_s <= used_s < before_s + _IDLE_BELOW * limit_s
        ):  # less: a child has ended, and its CPU time with it
            since_s = now_s
            self._marks[who] = now_s, used_s
        return now_s - since_s


def stopped(pid: int) -> bool:
    """Return whether the process is stopped (SIGSTOP or a debugger)."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def in_words(pid: int, silent_s: float) -> str:
    so = f"has used no processor time for {silent_s:.0f} s"
    return f"{STOPPED}, and {so}" if stopped(pid) else f"hangs: it {so}"


def _cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
