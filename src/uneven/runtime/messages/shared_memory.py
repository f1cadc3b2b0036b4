"""Memory that processes of one user on one machine share. It has no name in any folder, and ends with its last user.

The maker keeps a descriptor (``memfd_create``). Others open it below ``/proc/PID/fd``, which the system allows to the
same user only. So there is nothing to clean up, whichever process is killed, and a small ``/dev/shm`` does not matter.
"""

import contextlib
import mmap
import os
import platform
import sys
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.runtime.system import LINUX

AVAILABLE = LINUX and platform.machine() == "x86_64"
"""Other processors may show a worker the count of an update before its rows."""

_FUTURE_WRITE = 0x0010  # F_SEAL_FUTURE_WRITE, which Python 3.11 does not name


class SharedMemory:
    """Zeroed bytes of this process; with ``read_only`` no other process can write them.

    Raises:
        OSError: this system does not share memory in this way, or the process has too few descriptors or addresses.
            Missing memory shows only when the bytes are written.
    """

    def __init__(self, name: str, size: int, *, read_only: bool = False) -> None:
        if sys.platform != "linux":
            raise NotImplementedError
        import fcntl

        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)
        os.truncate(self.fd, size)
        self.bytes = _mapped(self.fd, size, write=True)
        # A process that reads memory which another one has cut ends.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | (_FUTURE_WRITE if read_only else 0)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)


def attached(
    pid: int, fd: int, *, write: bool = False, start: int = 0, size: int | None = None
) -> npt.NDArray[np.uint8]:
    """Return another process's memory or a part of it, shape (bytes,). Raises OSError if it is out of reach."""
    found = os.open(f"/proc/{pid}/fd/{fd}", (os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _mapped(found, size or os.fstat(found).st_size, write=write, start=start)
    finally:
        os.close(found)


def _mapped(fd: int, size: int, *, write: bool, start: int = 0) -> npt.NDArray[Any]:
    access = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    memory = mmap.mmap(fd, size, mmap.MAP_SHARED, access, offset=start)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)  # rows are scattered: small pages cost a walk of the page table for each
    return np.frombuffer(memory, np.uint8)
