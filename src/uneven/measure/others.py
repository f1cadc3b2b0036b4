"""How much of the processors others take: the sign of a rival that is there before its effect on many iterations is.

Where this process lives in a control group with a quota, competition is about that quota, and the node is the group;
otherwise the node is the machine. Linux only; elsewhere nothing is known.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LEAST_S = 0.05
"""Between two readings: the machine's own count comes in hundredths of a second."""


@dataclass(frozen=True, slots=True)
class Node:
    """What is shared with the others.

    Attributes:
        cores: how many there are.
        used_s: processor seconds that everybody together has used there, this process too.
    """

    cores: float
    used_s: Callable[[], float]


class Others:
    """Part of the node's processor time that others took since the last reading.

    Args:
        node: as :func:`find` gives it; None where nothing can be known.
        own_s: processor seconds that this process has used.
        now_s: the time.
    """

    def __init__(
        self,
        node: Node | None,
        own_s: Callable[[], float] = time.process_time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._own_s, self._now_s = node, own_s, now_s
        self._part = math.nan
        self._last = self._read()

    def sample(self) -> float:
        """0 … 1; NaN where it cannot be known, and until the first two readings are far enough apart."""
        if self._node is None or self._now_s() - self._last[0] < _LEAST_S:
            return self._part
        before, self._last = self._last, self._read()
        passed_s, taken_s = self._last[0] - before[0], self._last[1] - before[1]
        self._part = min(max(taken_s / (passed_s * self._node.cores), 0.0), 1.0)
        return self._part

    def _read(self) -> tuple[float, float]:
        """The time, and what the others have used until then."""
        used_s = self._node.used_s() if self._node is not None else math.nan
        return self._now_s(), used_s - self._own_s()


def find(own: Path = Path("/proc/self/cgroup"), tree: Path = Path("/sys/fs/cgroup")) -> Node | None:
    """The group with a quota that this process is in, else the machine, else None."""
    return _group(own, tree) or _machine()


def _group(own: Path, tree: Path) -> Node | None:
    paths: dict[str, str] = {}
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update((controller, path.lstrip("/")) for controller in controllers.split(","))
    if "cpu" in paths:  # version 1
        limits, usage = tree / "cpu" / paths["cpu"], tree / "cpuacct" / paths.get("cpuacct", "") / "cpuacct.usage"
        quota, period = _text(limits / "cpu.cfs_quota_us"), _text(limits / "cpu.cfs_period_us")
        same = paths.get("cpuacct") == paths["cpu"]  # a count of another group says nothing about this one
        if quota.strip() not in ("", "-1") and same and usage.is_file():
            return Node(int(quota) / int(period), lambda: int(usage.read_text()) / 1e9)
    elif "" in paths:  # version 2
        group = tree / paths[""]
        quota, _, period = _text(group / "cpu.max").strip().partition(" ")
        if quota not in ("", "max"):
            return Node(int(quota) / int(period), lambda: _usage_usec(group / "cpu.stat") / 1e6)
    return None


def _usage_usec(stat: Path) -> int:
    return next(int(line.split()[1]) for line in stat.read_text().splitlines() if line.startswith("usage_usec"))


def _machine() -> Node | None:
    stat, cores = Path("/proc/stat"), os.cpu_count()
    if cores is None or not stat.is_file():
        return None
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return Node(cores, lambda: _busy_ticks(stat) / ticks_per_s)


def _busy_ticks(stat: Path) -> int:
    """All but idle and waiting for disks, of all processors; guests are counted in user already."""
    with stat.open() as lines:
        user, nice, system, _, _, irq, softirq, steal = map(int, lines.readline().split()[1:9])
    return user + nice + system + irq + softirq + steal


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
