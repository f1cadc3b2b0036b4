"""Key-value stores that other processes keep, in which the members of an elastic run meet."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from datetime import timedelta
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """What is needed of a store; torch's ``TCPStore`` and ``PrefixStore`` have it. Values are bytes."""

    def get(self, key: str) -> bytes: ...
    def set(self, key: str, value: str) -> None: ...
    def add(self, key: str, amount: int) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...
    def check(self, keys: list[str]) -> bool: ...


def reach(host: str, port: int, timeout_s: float, gone_s: float = 0.0) -> Store:
    """A connection to a store that another process keeps.

    Args:
        gone_s: after how many seconds without an answer of its machine the connection fails; 0 leaves that to the
            kernel, which waits for minutes.

    Raises:
        RuntimeError: it cannot be reached within ``timeout_s``.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

    store: Store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    if gone_s > 0.0:
        _fail_after(port, gone_s)
    return store


def _fail_after(port: int, gone_s: float) -> None:
    """torch does not say which descriptors its stores have: those of this process that lead to such a port."""
    listing = Path("/proc/self/fd")
    if not (listing.is_dir() and hasattr(socket, "TCP_USER_TIMEOUT")):
        return
    for name in os.listdir(listing):
        with contextlib.suppress(OSError):  # it has been closed meanwhile, or is not connected
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as line:
                    if line.type == socket.SOCK_STREAM and line.family in _NETWORK and line.getpeername()[1] == port:
                        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * gone_s))


_NETWORK = (socket.AF_INET, socket.AF_INET6)
