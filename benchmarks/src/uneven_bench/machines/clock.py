"""A library that shifts the wall clock of single processes (``LD_PRELOAD``), by the seconds in a shared file.

A wait until a moment of that clock looks at the file every tenth of a second, as the kernel wakes one when a clock is
set.
"""

import ctypes
import mmap
import shutil
import struct
import subprocess
from pathlib import Path


def build(folder: Path) -> Path | None:
    """Return the compiled library; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source, library = Path(__file__).with_name("clock.c"), folder / "clock.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def shift(file: Path, seconds: int) -> None:
    """Shift the clock of the processes that follow this file."""
    with file.open("r+b") as shared, mmap.mmap(shared.fileno(), 8) as memory:
        memory[:] = struct.pack("q", seconds)


def follow(file: Path) -> None:
    """Let this process and its forks follow the file, if the library is loaded."""
    try:
        offset_s = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "uneven_clock_offset_s")
    except ValueError:
        return
    with file.open("r+b") as shared:
        _kept.append(mmap.mmap(shared.fileno(), 8))
    offset_s.value = ctypes.addressof(ctypes.c_int64.from_buffer(_kept[-1]))


_kept: list[mmap.mmap] = []  # mapped until the end of the process
