"""The memory that this process may fill: of a CUDA device, of a control group, or of the machine."""

import math
from pathlib import Path

import psutil
import torch

from uneven.runtime.system import peak_memory_bytes

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_UNLIMITED = 1 << 60  # control groups of version 1 have a number near 2⁶³ if there is no limit


def limit_bytes(device: torch.device) -> int | None:
    """Return the total memory that this process may use on the device; None if unknown.

    On CUDA: the memory it holds now and the free memory. On the host: the tightest limit of its control groups without
    the use of others, and at most the memory it holds now and the machine's available memory.
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
    """Return the fraction in use, 0 … 1, of the memory that a larger batch would fill; NaN if unknown.

    On CUDA: the memory of others and this process's peak. On the host: of the machine or the fullest control group,
    whichever is fuller.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        return float(max(0, others) + torch.cuda.max_memory_allocated(device)) / total
    if device.type != "cpu":
        return math.nan
    return max(psutil.virtual_memory().percent / 100, group_use())


def used_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss


def forget_peak(device: torch.device) -> None:
    """Reset :func:`peak_bytes`, if the device can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Return the most memory in use: since :func:`forget_peak` on CUDA, since the start of the process on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_memory_bytes()


def group_room_bytes(root: Path = _ROOT, own: Path = _OWN) -> int | None:
    """Return the room in the tightest control group of this process; None if no group limits memory.

    Control groups are nested, so all ancestors count, of version 2 (``memory.max``) and of version 1
    (``memory.limit_in_bytes``). Inactive file pages do not count as used, because the kernel can drop them immediately.

    Args:
        root: mount point of the control groups.
        own: lists the groups of this process: lines of ``number:controllers:path``.
    """
    return min((max(0, limit - used) for limit, used in _groups(root, own)), default=None)


def group_use(root: Path = _ROOT, own: Path = _OWN) -> float:
    """Return the fraction in use, 0 … 1, of the fullest control group that limits this process's memory; 0 without
    one."""
    return max((used / limit for limit, used in _groups(root, own) if limit), default=0.0)


def _groups(root: Path, own: Path) -> list[tuple[int, int]]:
    """Return limit and use of every control group that limits this process's memory."""
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
    """Return limit and use of a group and of its ancestors, if both can be read."""
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
    """Return the number in a line ``name number`` of the file; 0 if there is none."""
    try:
        rows = (line.split() for line in file.read_text().splitlines())
        return next((int(row[1]) for row in rows if row[0] == name), 0)
    except OSError:
        return 0


def _number(file: Path) -> int | None:
    """Return the number in the file; None if it does not exist or has "max"."""
    try:
        text = file.read_text().strip()
    except OSError:  # a container shows its own group as the root; groups of others cannot be read
        return None
    return int(text) if text.isdigit() else None
