"""The processor time that other processes take: it shows a competitor before many iterations do.

If this process is in a control group with a quota, processes compete for that quota, and the node is the group;
otherwise the node is the machine. Linux only; on other systems nothing is known.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from uneven.run.measure import control_group
from uneven.run.measure.control_group import KernelFile

LEAST_S = 0.1  # between two readings: the machine's own count has a resolution of 0.01 s

_LIMITS_EVERY_S = 1.0  # between two checks of the node's size


@dataclass(frozen=True, slots=True)
class SharedNode:
    """The resource that processes share."""

    # returns the current number; None without a limit, so that the enclosing node counts
    cores: Callable[[], float | None]
    used_s: Callable[[], float]  # returns the processor seconds of all processes there, including this one


class Others:
    """The fraction of the node's processor time that others took since the last reading."""

    def __init__(
        self,
        nodes: Sequence[SharedNode],  # from `find`, innermost first; the first one with a limit counts
        own_s: Callable[[], float] = time.process_time,  # returns the processor seconds of this process
        now_s: Callable[[], float] = time.monotonic,  # returns the time
    ) -> None:
        self._nodes = nodes
        self._own_s = own_s
        self._now_s = now_s
        self._part = math.nan
        self._node: SharedNode | None = None
        self._cores = math.nan
        self._last = now_s(), 0.0
        self._looked_s = -math.inf
        self._choose(now_s())

    def sample(self, least_s: float = LEAST_S) -> float:
        """Return the fraction, 0 … 1, read at most every ``least_s`` seconds; NaN if unknown, and before two
        readings."""
        now_s, then_s = self._now_s(), self._last[0]
        if now_s - then_s < least_s or self._choose(now_s) or self._node is None:
            return self._part
        taken_s = self._node.used_s() - self._own_s()
        self._part = min(max((taken_s - self._last[1]) / ((now_s - then_s) * self._cores), 0.0), 1.0)
        self._last = now_s, taken_s
        return self._part

    def _choose(self, now_s: float) -> bool:
        """Check at intervals which node counts; return whether it is a new one, to be read for the first time."""
        if now_s - self._looked_s < _LIMITS_EVERY_S:
            return False
        self._looked_s, before, self._node = now_s, self._node, None
        for node in self._nodes:
            cores = node.cores()
            if cores is not None:
                self._node, self._cores = node, cores
                break
        if self._node is before:
            return False
        self._part = math.nan
        self._last = now_s, self._node.used_s() - self._own_s() if self._node is not None else 0.0
        return True


def find(own: Path = Path("/proc/self/cgroup"), tree: Path = Path("/sys/fs/cgroup")) -> tuple[SharedNode, ...]:
    """Return the control group of this process, whose quota may change, and the machine, as far as they exist."""
    group = control_group.find(own, tree)
    nodes = [SharedNode(group.cores, group.used_s)] if group is not None and group.accounts else []
    return (*nodes, *_machine())


def _machine() -> list[SharedNode]:
    path, cores = Path("/proc/stat"), os.cpu_count()
    if cores is None or not path.is_file():
        return []
    stat, ticks_per_s = KernelFile(path), os.sysconf("SC_CLK_TCK")
    return [SharedNode(lambda: cores, lambda: _busy_ticks(stat.text()) / ticks_per_s)]


def _busy_ticks(stat: str) -> int:
    """Return the ticks of all processors without idle and I/O wait; user time includes guests already."""
    user, nice, system, _, _, irq, softirq, steal = map(int, stat[: stat.index("\n")].split()[1:9])
    return user + nice + system + irq + softirq + steal
