"""A wrapper that binds a program's life to its parent's: ``python parent_death.py PARENT PROGRAM ARGUMENTS…``.

The kernel kills the program, even a stopped one, however its parent ends. Run as a file with ``-S``, it starts in 20
ms.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def bound(program: Sequence[str]) -> list[str]:
    """Return the command line of ``program``, bound to the calling *thread*; unchanged on systems other than Linux."""
    if sys.platform != "linux":
        return list(program)
    # exec keeps the process id, environment and open files, so the caller's handle stays valid.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def end_with_parent(number: int) -> None:
    """Let the kernel send this process a signal when the *thread* that started it ends. The setting survives exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PARENT_DEATH_SIGNAL, ctypes.c_ulong(number)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _main(parent: int, program: list[str]) -> None:
    # Set here and not in a preexec_fn, which is not safe in a program with threads.
    end_with_parent(signal.SIGKILL)
    # The parent may have ended before prctl, which then never fires.
    if os.getppid() != parent:
        sys.exit("uneven: the program that started this process has ended before it could begin")
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"uneven: {program[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
