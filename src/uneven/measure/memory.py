"""How much memory may this process fill? A CUDA device's, a control group's, the machine's."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import torch

_UNLIMITED = 1 << 60
"""Control groups of version 1 write a number near 2⁶³ where there is no limit."""


def limit_bytes(device: torch.device) -> int | None:
    """What may be in use by this process on the device, all told; None where nobody can tell.

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


def group_room_bytes(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """What is left in the tightest control group that this process is in; None without one that limits memory.

    Groups hold groups, so every one on the way up counts, of version 2 (``memory.max``) and of version 1
    (``memory.limit_in_bytes``).

    Args:
        root: where the groups are mounted.
        own: tells which this process is in: lines of ``number:controllers:path``.
    """
    if not own.is_file():
        return None
    rooms = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            rooms += _rooms(root, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            rooms += _rooms(root / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return min(rooms, default=None)


def _rooms(root: Path, path: str, most: str, used: str) -> list[int]:
    """Limit less use of a group and of all above it, where both can be read."""
    parts = [part for part in path.split("/") if part]
    found = []
    for depth in range(len(parts) + 1):
        folder = root.joinpath(*parts[:depth])
        limit, use = _number(folder / most), _number(folder / used)
        if limit is not None and use is not None and limit < _UNLIMITED:
            found.append(max(0, limit - use))
    return found


def _number(file: Path) -> int | None:
    """What the file holds; None if it is not there, or says "max"."""
    try:
        text = file.read_text().strip()
    except OSError:  # a container shows its own group as the root; groups of others cannot be read
        return None
    return int(text) if text.isdigit() else None
