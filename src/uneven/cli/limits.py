"""What the control group of this process leaves of the machine (Linux, versions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2⁶³."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """None where there is no limit."""

    cores: float | None = None
    memory_bytes: int | None = None


def control_group_limit(mounted: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Limit:
    """The tightest limit on the way from the root group to this process's own.

    Args:
        mounted: where the control groups are mounted.
        own: the file that says which groups this process is in, lines of ``number:controllers:path``.
    """
    cores: list[float] = []
    memory: list[int] = []
    lines = own.read_text().splitlines() if own.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for group in _groups(mounted, controllers, path):
            cores += _cores(group)
            memory += _memory(group)
    return Limit(cores=min(cores, default=None), memory_bytes=min(memory, default=None))


def _groups(mounted: Path, controllers: str, path: str) -> Iterator[Path]:
    """The group and all above it. In a container the path may be the host's; then only the root is found."""
    top = mounted / controllers if controllers else mounted
    for depth in range(len(parts := Path(path).parts) + 1):
        group = top.joinpath(*parts[1:depth])
        if group.is_dir():
            yield group


def _cores(group: Path) -> list[float]:
    if (text := _read(group / "cpu.max")) and not text.startswith("max"):  # version 2: "quota period"
        quota, period = map(int, text.split())
        return [quota / period]
    quota, period = (int(_read(group / f"cpu.cfs_{name}_us") or -1) for name in ("quota", "period"))
    return [quota / period] if quota > 0 and period > 0 else []


def _memory(group: Path) -> list[int]:
    text = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
    if not text or text == "max":
        return []
    return [int(text)] if int(text) < UNLIMITED_BYTES else []


def _read(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""
