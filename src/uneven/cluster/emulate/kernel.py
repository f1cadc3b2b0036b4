"""System calls that Python 3.11 does not offer. Linux only. All raise OSError if the kernel rejects them."""

import ctypes
import os
from pathlib import Path

NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_BIND = 0x1000  # MS_BIND
_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE


def unshare(kind: int) -> None:
    """Give the calling thread a new namespace of a kind."""
    _checked(_libc().unshare(kind), "unshare")


def enter(namespace: int, kind: int) -> None:
    """Move the calling thread into the namespace of an open descriptor."""
    _checked(_libc().setns(namespace, kind), "setns")


def own_shared_memory() -> None:
    """Give this process private mounts with an empty /dev/shm; other processes are unaffected."""
    unshare(NEW_MOUNTS)
    libc = _libc()
    _checked(libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None), "mount --make-rprivate /")
    _checked(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), None), "mount /dev/shm")


def own_hosts(text: str) -> None:
    """Replace /etc/hosts for this process only, after :func:`own_shared_memory`."""
    hosts, new = Path("/etc/hosts"), Path("/dev/shm/hosts")
    if hosts.is_file():
        new.write_text(text)
        _checked(_libc().mount(bytes(new), bytes(hosts), None, ctypes.c_ulong(_BIND), None), "mount /etc/hosts")
        new.unlink()  # the mount keeps it


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
