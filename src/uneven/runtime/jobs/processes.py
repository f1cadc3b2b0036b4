"""Functions for other processes of this machine: CPU time, descendants, signals."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterable

import psutil

from uneven.runtime.installed import FOLDER

_LINUX = sys.platform == "linux"


class HeldProcess:
    """A process, possibly another program's; raises ProcessLookupError or PermissionError if it cannot be held."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # With a descriptor, a signal can never reach another process that was given the same id.
        self.descriptor = os.pidfd_open(pid) if _LINUX else -1
        self._psutil = None if _LINUX else psutil.Process(pid)
        self._clock = (~pid << 3) | 2  # Linux: the CPU-time clock of another process, readable by all
        self._schedule = _open_schedule(pid)
        self._batch = False
        self._settles = _LINUX and os.sched_getscheduler(pid) in (os.SCHED_OTHER, os.SCHED_BATCH)
        try:
            self.send(0)
        except OSError:
            self.close()
            raise

    def cpu_s(self) -> float | None:
        """Return the CPU time used by all its threads so far, in seconds; None after its end."""
        try:
            if self._psutil is None:
                self._settle()
                return time.clock_gettime(self._clock)
            times = self._psutil.cpu_times()
            return float(times.user + times.system)
        except (OSError, psutil.NoSuchProcess):
            return None

    def _settle(self) -> None:
        """Make the kernel account for the CPU time that the main thread has used until now."""
        # The clock of another process is updated only at its processor's tick, every 4 or 10 ms. A small share gets
        # much less in a period. Toggling the main thread between the two ordinary scheduling policies, which are nearly
        # equivalent, dequeues and enqueues it, and the kernel updates the clock.
        if self._settles:
            self._batch = not self._batch
            try:
                os.sched_setscheduler(self.pid, os.SCHED_BATCH if self._batch else os.SCHED_OTHER, os.sched_param(0))
            except (PermissionError, ProcessLookupError):
                self._settles = False  # a sandbox forbids it, or it has ended; read the stale clock

    def waited_s(self) -> float:
        """Return the seconds in which its main thread was runnable without a core; 0 if unknown."""
        if self._schedule < 0:
            return 0.0
        try:
            return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9
        except ProcessLookupError:
            return 0.0

    def send(self, number: int) -> None:
        """Send a signal; raise ProcessLookupError after its end, PermissionError if it belongs to another user."""
        if _LINUX:
            signal.pidfd_send_signal(self.descriptor, number)
        else:
            os.kill(self.pid, number)

    def gone(self) -> bool:
        """Return whether it has ended, including zombies."""
        if _LINUX:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            return bool(poll.poll(0))
        try:
            return bool(self._psutil is None or self._psutil.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    def close(self) -> None:
        """Close the descriptors and restore the process's scheduling policy."""
        if self._batch:
            self._settle()
        for descriptor in (self.descriptor, self._schedule):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._schedule = -1


def _open_schedule(pid: int) -> int:
    try:
        return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
    except OSError:
        return -1  # not Linux, a kernel without it, or another user's process


def descendants(pid: int) -> list[int]:
    """Return the children of ``pid``, their children and so on; empty after its end."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def ancestors(pid: int) -> list[int]:
    """Return its parent, its grandparent and so on; empty after its end."""
    try:
        return [parent.pid for parent in psutil.Process(pid).parents()]
    except psutil.NoSuchProcess:
        return []


class Newborns:
    """A finder of new processes on this machine; it queries only those that it has not seen before."""

    def __init__(self) -> None:
        self._seen = set(psutil.pids())

    def parents(self) -> dict[int, int]:
        """Return every new process → its parent."""
        alive = set(psutil.pids())
        new = sorted(alive - self._seen)
        self._seen = alive
        found = {}
        for pid in new:
            try:
                found[pid] = psutil.Process(pid).ppid()
            except psutil.NoSuchProcess:
                continue
        return found


def adopted(parents: dict[int, int], family: Iterable[int]) -> list[int]:
    """Return the processes of ``parents`` (process → parent) that descend from ``family``, parents before children."""
    known = set(family)
    result: list[int] = []
    grown = True
    while grown:
        new = [pid for pid, parent in parents.items() if parent in known and pid not in known]
        known.update(new)
        result += new
        grown = bool(new)
    return result


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def import_path() -> str:
    """Return the ``PYTHONPATH`` with which a child imports this copy of uneven, installed or not."""
    return os.pathsep.join(filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]))
