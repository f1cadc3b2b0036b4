"""A program that ends with the process that started it: ``python bound.py PARENT PROGRAM ARGUMENTS…``.

The kernel sees to it, so it holds whatever the program does, also for one that is stopped and for a parent that was
killed. Run as a file and not as a module, this costs a start of Python without its site packages, 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def bound(program: Sequence[str]) -> list[str]:
    """The command line of ``program``, bound to the thread that starts it; as it is where there is no such thing.

    A process that is started so keeps its number, environment and files when it becomes the program.
    """
    if sys.platform != "linux":
        return list(program)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def _main(parent: int, program: list[str]) -> None:
    """Let the kernel kill this process when the thread that started it ends, also after ``exec``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        sys.exit("uneven: the program that started this process has ended before it could begin")
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"uneven: {program[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
