"""The kind of a worker's machine: workers on machines of one kind start with similar shares."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

_PROCESSORS = Path("/proc/cpuinfo")


def kind_of(device: torch.device) -> str:
    """Return the name of an accelerator; otherwise that of the processor and the number of cores this process may
    use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores"


def _processor() -> str:
    lines = _PROCESSORS.read_text().splitlines() if _PROCESSORS.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
