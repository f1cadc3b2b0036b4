"""Key-value stores that other processes keep, in which the members of an elastic run meet, and the ways to them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar

_Answer = TypeVar("_Answer")


class Store(Protocol):
    """What is needed of a store; torch's ``TCPStore`` and ``PrefixStore`` have it. Values are bytes."""

    def get(self, key: str) -> bytes: ...
    def set(self, key: str, value: str) -> None: ...
    def add(self, key: str, amount: int) -> int: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...
    def check(self, keys: list[str]) -> bool: ...


class WayToStore(ABC):
    """Stands where a store does; which one that is may change."""

    @abstractmethod
    def call(self, ask: Callable[[Store], _Answer]) -> _Answer:
        """What the present store answers.

        Raises:
            RuntimeError: it has ended, or cannot be reached.
        """

    def get(self, key: str) -> bytes:
        """What is written there."""
        return self.call(lambda store: store.get(key))

    def set(self, key: str, value: str) -> None:
        """Write it there."""
        self.call(lambda store: store.set(key, value))

    def add(self, key: str, amount: int) -> int:
        """A counter, after so many more."""
        return self.call(lambda store: store.add(key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write it there if that is what is there; what is there then."""
        return self.call(lambda store: store.compare_set(key, expected, desired))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Until all are written."""
        self.call(lambda store: store.wait(keys, timeout))

    def check(self, keys: list[str]) -> bool:
        """Whether all are written."""
        return self.call(lambda store: store.check(keys))


def address_of(text: str) -> tuple[str, int]:
    """Host and port, as the row of stores has them."""
    host, _, port = text.rpartition(" ")
    return host, int(port)


def reached(address: tuple[str, int], within_s: float) -> Store | None:
    """A connection to a store that may be gone; None if it is."""
    try:
        socket.create_connection(address, within_s).close()  # torch would go on trying
        return reach(*address, within_s, within_s)
    except (OSError, RuntimeError):
        return None


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
