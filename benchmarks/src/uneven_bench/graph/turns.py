"""Memory that stays with this process."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_memory() -> bool:
    """Let malloc keep freed memory in this process, and return whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    # By default glibc returns buffers above 32 MB to the system, and each new one costs page faults, more than a
    # kernel's work.
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))
