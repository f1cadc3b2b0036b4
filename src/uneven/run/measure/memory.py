"""How much memory may this process fill? A CUDA device's, a control group's, the machine's."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import psutil
import torch

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_UNLIMITED = 1 << 60
"""Control groups of version 1 write a number near 2⁶³ where there is no limit."""


def limit_bytes(device: torch.device) -> int | None:
    """What may be in use by this process on the device in all; None where it is unknown.

    On CUDA: what it holds now plus what is free. On the host: the least of its control groups' limits, less what
    others in the group use, and what it holds now plus what the machine has left.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device)
    if device.type != "cpu":
        return None
    used = psutil.Process().memory_info().rss
    here = used + psutil.virtual_memory().available
    group = group_room_bytes()
    return here if group is None else min(here, used + group)


def use(device: torch.device) -> float:
    """Part in use, 0 … 1, of the memory that a larger batch would fill; NaN where nobody can tell.

    On CUDA: what others hold of the device, and the most that this process had in use. On the host: the machine's, or
    that of the tightest control group, whichever is fuller.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        return float(max(0, others) + torch.cuda.max_memory_allocated(device)) / total
    if device.type != "cpu":
        return math.nan
    return max(psutil.virtual_memory().percent / 100, group_use())


def used_bytes(device: torch.device) -> int:
    """What this process has in use on the device now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss


def forget_peak(device: torch.device) -> None:
    """Let :func:`peak_bytes` begin anew, where that can be done."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """The most that this process has had in use: since :func:`forget_peak` on CUDA, since it began on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def group_room_bytes(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """What is left in the tightest control group that this process is in; None without one that limits memory.

    Groups hold groups, so every one on the way up counts, of version 2 (``memory.max``) and of version 1
    (``memory.limit_in_bytes``). Pages of files that the kernel calls inactive, and can drop at once, are no use.

    Args:
        root: where the groups are mounted.
        own: tells which this process is in: lines of ``number:controllers:path``.
    """
    return min((max(0, limit - used) for limit, used in _groups(root, own)), default=None)


def group_use(root: Path = _ROOT, own: Path = _OWN) -> float:
    """Part in use, 0 … 1, of the fullest control group that limits this process's memory; 0 without one."""
    return max((used / limit for limit, used in _groups(root, own) if limit), default=0.0)


def _groups(root: Path, own: Path) -> list[tuple[int, int]]:
    """Limit and use of every control group that limits this process's memory."""
    if not own.is_file():
        return []
    found = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _limits(root, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            found += _limits(root / "memory", path, names)
    return found


def _limits(root: Path, path: str, names: tuple[str, str, str]) -> list[tuple[int, int]]:
    """Limit and use of a group and of all above it, where both can be read."""
    most, used, droppable = names
    parts = [part for part in path.split("/") if part]
    found = []
    for depth in range(len(parts) + 1):
        folder = root.joinpath(*parts[:depth])
        limit, use = _number(folder / most), _number(folder / used)
        if limit is not None and use is not None and limit < _UNLIMITED:
            found.append((limit, max(0, use - _entry(folder / "memory.stat", droppable))))
    return found


def _entry(file: Path, name: str) -> int:
    """A line ``name number`` of the file; 0 if there is none."""
    try:
        rows = (line.split() for line in file.read_text().splitlines())
        return next((int(row[1]) for row in rows if row[0] == name), 0)
    except OSError:
        return 0


def _number(file: Path) -> int | None:
    """What the file holds; None if it is not there, or says "max"."""
    try:
        text = file.read_text().strip()
    except OSError:  # a container shows its own group as the root; groups of others cannot be read
        return None
    return int(text) if text.isdigit() else None
