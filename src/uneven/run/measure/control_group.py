"""The control group of this process: its quota of processor time, what it has used, and its throttling. Linux only."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class KernelFile:
    """A small kernel file that stays open, because opening it costs more than reading it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def text(self) -> str:
        """Return its first lines now. Raises OSError: the kernel has removed what it describes."""
        return os.pread(self._descriptor, 4096, 0).decode()

    def numbers(self) -> dict[str, int]:
        """Return a file of names and numbers, one pair a line."""
        return {name: int(value) for name, value in (line.split() for line in self.text().splitlines())}

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)  # at the end of the program `os` may be gone


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The group with the limits of this process."""

    number: int  # identifies it on its machine
    limits: tuple[KernelFile, ...]  # quota and period in microseconds, in one file or two
    usage: KernelFile | None  # of version 1; None if another group keeps the accounts, or in version 2
    stat: KernelFile

    def cores(self) -> float | None:
        """Return the processors that the quota allows now; None without a quota."""
        quota, period = " ".join(file.text() for file in self.limits).split()
        return int(quota) / int(period) if quota not in ("-1", "max") else None

    @property
    def accounts(self) -> bool:
        """Whether :meth:`used_s` is known."""
        return self.usage is not None or "usage_usec" in self.stat.numbers()

    def used_s(self) -> float:
        """Return the processor seconds of all its processes so far."""
        if self.usage is not None:
            return int(self.usage.text()) / 1e9
        return self.stat.numbers()["usage_usec"] / 1e6

    def throttled_s(self) -> float:
        """Return the seconds for which the quota has stopped its processes, added up over the processors."""
        rows = self.stat.numbers()
        return rows["throttled_time"] / 1e9 if "throttled_time" in rows else rows.get("throttled_usec", 0) / 1e6


def find(own: Path = Path("/proc/self/cgroup"), tree: Path = Path("/sys/fs/cgroup")) -> ControlGroup | None:
    """Return the control group of this process; None if it has no processor controller.

    Args:
        own: the list of this process's groups.
        tree: the folder in which the kernel shows all groups.
    """
    paths: dict[str, str] = {}
    for line in own.read_text().splitlines() if own.is_file() else []:
        _, controllers, path = line.split(":", 2)
        paths.update((controller, path.lstrip("/")) for controller in controllers.split(","))
    if "cpu" in paths:  # version 1
        group, accounts = tree / "cpu" / paths["cpu"], tree / "cpuacct" / paths.get("cpuacct", "")
        names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        # A count of another group says nothing about this one.
        counted = paths.get("cpuacct") == paths["cpu"] and (accounts / "cpuacct.usage").is_file()
        usage = KernelFile(accounts / "cpuacct.usage") if counted else None
    elif "" in paths:  # version 2
        group, names, usage = tree / paths[""], ["cpu.max"], None
    else:
        return None
    if not all((group / name).is_file() for name in [*names, "cpu.stat"]):
        return None
    limits = tuple(KernelFile(group / name) for name in names)
    return ControlGroup(group.stat().st_ino, limits, usage, KernelFile(group / "cpu.stat"))
