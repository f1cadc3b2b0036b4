"""Whether the processes of other workers still run, as their kernels say it."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import weakref
from collections.abc import Mapping
from functools import partial

_MOST = 256
"""Connections of others that a worker holds; more wait in the kernel."""


class Lifelines:
    """Connections to other workers, which the kernel ends when their processes do, however that comes about.

    Nothing is sent on them, and a stranger who opens one gets nothing. One that ends is opened once more, and only
    where that is refused has the process ended: so nobody counts as gone because something on the way has dropped an
    idle connection. A process that is stopped, and a machine that is cut off or has lost its power, say nothing here.

    Args:
        interface: address of this machine for the others; None is the loopback.

    Attributes:
        address: host and port, for the others.
    """

    def __init__(self, interface: str | None) -> None:
        host = interface or "127.0.0.1"
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=self._family, backlog=64)
        self._listener.setblocking(False)
        self.address = f"{host} {self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, tuple[str, socket.socket]] = {}
        self._ended: set[int] = set()  # their first connection
        self._guests: list[socket.socket] = []
        # A reader process that outlives its worker must not keep the worker's port.
        os.register_at_fork(after_in_child=partial(_close, weakref.ref(self._listener)))

    def follow(self, addresses: Mapping[int, str]) -> None:
        """From now on look after these workers, and no others; hold on to those who look after this one."""
        self._receive()
        for worker in self._lines.keys() - addresses.keys():
            self._drop(worker)
            self._ended.discard(worker)
        for worker in addresses.keys() - self._lines.keys():
            self._open(worker, addresses[worker])

    def gone(self, within_s: float) -> list[int]:
        """Workers whose processes have ended since this was last asked; waits for one for so many seconds at most."""
        found = []
        for key, _ in self._selector.select(within_s):
            worker = key.data
            address, line = self._lines[worker]
            try:
                line.recv(1)
                refused = False
            except ConnectionRefusedError:
                refused = True
            except ConnectionResetError:
                refused = False
            except BlockingIOError:
                continue
            except OSError:  # no way there: that is for the silence to tell
                self._selector.unregister(line)
                continue
            if refused and worker in self._ended:
                found.append(worker)
            if refused:  # by one that was never reached there may be something on the way that refuses
                self._selector.unregister(line)
                continue
            self._ended.add(worker)
            self._drop(worker)
            self._open(worker, address)
        return found

    def close(self) -> None:
        """Let go of all, as when the process ends."""
        for worker in [*self._lines]:
            self._drop(worker)
        for one in (*self._guests, self._listener):
            one.close()
        self._selector.close()

    def _receive(self) -> None:
        for guest in [one for one in self._guests if _over(one)]:
            self._guests.remove(guest)
            guest.close()
        with contextlib.suppress(BlockingIOError):
            while len(self._guests) < _MOST:
                guest, _ = self._listener.accept()
                guest.setblocking(False)
                self._guests.append(guest)

    def _open(self, worker: int, address: str) -> None:
        host, port = address.split()
        line = socket.socket(self._family)
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.connect_ex((host, int(port)))
        self._lines[worker] = address, line
        self._selector.register(line, selectors.EVENT_READ, worker)

    def _drop(self, worker: int) -> None:
        _, line = self._lines.pop(worker)
        if line in self._selector.get_map():
            self._selector.unregister(line)
        line.close()


def _close(one: weakref.ref[socket.socket]) -> None:
    if (found := one()) is not None:
        found.close()


def _over(guest: socket.socket) -> bool:
    """Whether it has hung up, or says something, which none of ours does."""
    try:
        guest.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
