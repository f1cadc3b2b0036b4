"""The differences between operating systems that more than one module meets.

``docs/platforms.md`` lists what each system can do. ``tests/system/test_other_systems.py`` runs a worker where the
names that macOS or Windows lacks are hidden.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import IO, Any

import psutil

from uneven.errors import ConfigError

if sys.platform != "win32":
    import fcntl
    import resource

NAME = {"darwin": "macOS", "linux": "Linux", "win32": "Windows"}.get(sys.platform, sys.platform)

LINUX, WINDOWS = NAME == "Linux", NAME == "Windows"

KILL = signal.SIGTERM if WINDOWS else signal.SIGKILL
"""Ends a process, which cannot handle it. On Windows :func:`os.kill` ends a process by any number."""

LOOPBACK_INTERFACE = {"macOS": "lo0", "Windows": ""}.get(NAME, "lo")
"""The name of the interface of 127.0.0.1 for gloo; empty where gloo finds it without a name."""


def signals(*names: str) -> tuple[int, ...]:
    """Return the signals of these names that this system has; on Windows SIGHUP and SIGCONT are missing."""
    return tuple(int(getattr(signal, name)) for name in names if hasattr(signal, name))


def in_forks(call: Callable[[], object]) -> None:
    """Call a function in each process that this one forks from now on; Windows forks none."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=call)


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process, with ``group`` to its process group.

    On Windows the process ends, with ``group`` also those that it has started, because it has no such signals.

    Raises:
        ProcessLookupError: it has ended.
        PermissionError: it belongs to another user.
    """
    if sys.platform != "win32":
        (os.killpg if group else os.kill)(pid, number)
        return
    try:
        process = psutil.Process(pid)
        for one in process.children(recursive=True) if group else ():
            one.kill()
        process.kill()
    except psutil.NoSuchProcess:
        raise ProcessLookupError(pid) from None
    except psutil.AccessDenied:
        raise PermissionError(pid) from None


def lock(file: IO[Any] | int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed or its process ends, however it ends.

    Args:
        shared: others may hold a shared lock, too; Windows has no such locks, so it locks for one.
        wait: wait for the lock, on Windows at most ten seconds.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the disk has no locks.
    """
    if sys.platform != "win32":
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        return
    import msvcrt

    try:
        msvcrt.locking(file if isinstance(file, int) else file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(error.errno, error.strerror) from error


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if LINUX else 1)


def major_faults() -> int:
    """Return the pages that this process has waited for from a disk; 0 on Windows, which does not count them."""
    return 0 if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def not_on_windows(what: str) -> None:
    """Raise ConfigError on Windows, which lacks the signals, process groups or descriptors of ``what`` (plural)."""
    if WINDOWS:
        raise ConfigError(f"{what} work on Linux and macOS only, and this is Windows: use WSL 2, which is Linux")


def borrowed(descriptor: int) -> socket.socket:
    """Return a socket object for a duplicate of a descriptor whose owner continues to use it. Linux only."""
    # SOCK_NONBLOCK: otherwise Python applies socket.setdefaulttimeout to the flags, which both descriptors share.
    return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=os.dup(descriptor))
