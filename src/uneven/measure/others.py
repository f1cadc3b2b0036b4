"""How much of the processors others take: the sign of a rival that is there before its effect on many iterations is.

Where this process lives in a control group with a quota, competition is about that quota, and the node is the group;
otherwise the node is the machine. Linux only; elsewhere nothing is known.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LEAST_S = 0.05
"""Between two readings: the machine's own count comes in hundredths of a second."""


@dataclass(frozen=True, slots=True)
class Node:
    """What is shared with the others.

    Attributes:
        cores: how many there are at the moment; None where there is no limit, so that something larger is the node.
        used_s: processor seconds that everybody together has used there, this process too.
    """

    cores: Callable[[], float | None]
    used_s: Callable[[], float]


class Others:
    """Part of the node's processor time that others took since the last reading.

    Args:
        nodes: as :func:`find` gives them, from the inside out; the first one with a limit counts.
        own_s: processor seconds that this process has used.
        now_s: the time.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        own_s: Callable[[], float] = time.process_time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes, self._own_s, self._now_s = nodes, own_s, now_s
        self._part = math.nan
        self._node: Node | None = None
        self._last = now_s(), 0.0
        self._choose()

    def sample(self) -> float:
        """0 … 1; NaN where it cannot be known, and until the first two readings are far enough apart."""
        now_s, then_s = self._now_s(), self._last[0]
        if now_s - then_s < _LEAST_S:
            return self._part
        cores = self._choose()
        if self._node is not None and cores is not None:
            taken_s = self._node.used_s() - self._own_s()
            self._part = min(max((taken_s - self._last[1]) / ((now_s - then_s) * cores), 0.0), 1.0)
            self._last = now_s, taken_s
        return self._part

    def _choose(self) -> float | None:
        """The cores of the node; None if there is none, or if it is another one than before."""
        for node in self._nodes:
            cores = node.cores()
            if cores is not None:
                if node is self._node:
                    return cores
                self._node, self._part = node, math.nan
                self._last = self._now_s(), node.used_s() - self._own_s()
                return None
        self._node, self._part = None, math.nan
        return None


def find(own: Path = Path("/proc/self/cgroup"), tree: Path = Path("/sys/fs/cgroup")) -> tuple[Node, ...]:
    """The group that this process is in, whose quota may come and go, and the machine; what there is of them."""
    return tuple(node for node in (_group(own, tree), _machine()) if node is not None)


def _group(own: Path, tree: Path) -> Node | None:
    paths: dict[str, str] = {}
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update((controller, path.lstrip("/")) for controller in controllers.split(","))
    if "cpu" in paths:  # version 1
        limits, usage = tree / "cpu" / paths["cpu"], tree / "cpuacct" / paths.get("cpuacct", "") / "cpuacct.usage"
        same = paths.get("cpuacct") == paths["cpu"]  # a count of another group says nothing about this one
        if same and usage.is_file():
            return Node(lambda: _quota_of_version_1(limits), lambda: int(usage.read_text()) / 1e9)
    elif "" in paths and (tree / paths[""] / "cpu.max").is_file():  # version 2
        group = tree / paths[""]
        return Node(lambda: _quota_of_version_2(group), lambda: _usage_usec(group / "cpu.stat") / 1e6)
    return None


def _quota_of_version_1(group: Path) -> float | None:
    quota, period = _text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota not in ("", "-1") else None


def _quota_of_version_2(group: Path) -> float | None:
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    return int(quota) / int(period) if quota not in ("", "max") else None


def _usage_usec(stat: Path) -> int:
    return next(int(line.split()[1]) for line in stat.read_text().splitlines() if line.startswith("usage_usec"))


def _machine() -> Node | None:
    stat, cores = Path("/proc/stat"), os.cpu_count()
    if cores is None or not stat.is_file():
        return None
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return Node(lambda: cores, lambda: _busy_ticks(stat) / ticks_per_s)


def _busy_ticks(stat: Path) -> int:
    """All but idle and waiting for disks, of all processors; guests are counted in user already."""
    with stat.open() as lines:
        user, nice, system, _, _, irq, softirq, steal = map(int, lines.readline().split()[1:9])
    return user + nice + system + irq + softirq + steal


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
