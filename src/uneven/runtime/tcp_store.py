"""Key-value stores in other processes, through which the members of an elastic run meet."""

import contextlib
import os
import socket
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from uneven.runtime.system import WINDOWS, borrowed


class Store(Protocol):
    """The required methods of a store; torch's ``TCPStore`` and ``PrefixStore`` have them. Values are bytes."""

    def get(self, key: str) -> bytes: ...
    def set(self, key: str, value: str) -> None: ...
    def add(self, key: str, amount: int) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


def tcp_store(host: str, port: int, **how: Any) -> Any:
    """Return torch's ``TCPStore``; on Windows without libuv, which torch lacks there. ``how``: its other arguments."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs declare it private

    return TCPStore(host, port, use_libuv=not WINDOWS, **how)


def reach(host: str, port: int, timeout_s: float, gone_s: float = 0.0) -> Store:
    """Return a connection to a store in another process. Raises RuntimeError if that takes longer than ``timeout_s``.

    It fails after ``gone_s`` without an answer of the store's machine; 0 leaves that to the kernel (minutes).
    """
    store: Store = tcp_store(host, port, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    if gone_s > 0.0:
        fail_after(port, gone_s)
    return store


def fail_after(port: int, gone_s: float) -> None:
    """Let all this process's connections to ``port`` fail after ``gone_s`` without an answer of that machine.

    Linux only; elsewhere the kernel's own limit holds (minutes).
    """
    # torch hides its stores' descriptors.
    listing = Path("/proc/self/fd")
    if not (listing.is_dir() and hasattr(socket, "TCP_USER_TIMEOUT")):
        return
    for name in os.listdir(listing):
        with contextlib.suppress(OSError):  # it is closed by now, or not connected
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with borrowed(int(name)) as line:  # torch still needs the original
                    stream = line.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
                    if stream and line.family in _NETWORK and line.getpeername()[1] == port:
                        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(1000 * gone_s), _MOST_MS))


_MOST_MS = 2**31 - 1
_NETWORK = (socket.AF_INET, socket.AF_INET6)
