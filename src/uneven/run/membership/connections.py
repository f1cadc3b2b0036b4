"""Connections that end when the process of another worker ends, as its kernel reports it."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import weakref
from collections.abc import Mapping
from functools import partial

_MOST = 256  # connections that a worker accepts; more wait in the kernel


class PeerConnections:
    """Connections to other workers, which the kernel closes when their processes end for any reason.

    They carry no data. A process that is stopped, and a machine that is cut off or without power, are not noticed here.
    """

    # `interface` is this machine's address for the others; None is the loopback.
    def __init__(self, interface: str | None) -> None:
        host = interface or "127.0.0.1"
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=self._family, backlog=64)
        self._listener.setblocking(False)
        self.address = f"{host} {self._listener.getsockname()[1]}"  # host and port, for the others
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, tuple[str, socket.socket]] = {}
        self._ended: set[int] = set()  # workers whose first connection has ended
        self._guests: list[socket.socket] = []
        # A reader process that outlives its worker must not keep the worker's port.
        os.register_at_fork(after_in_child=partial(_close, weakref.ref(self._listener)))

    def follow(self, addresses: Mapping[int, str]) -> None:
        """Watch these workers and no others; accept connections of workers that watch this one."""
        self._receive()
        for worker in self._lines.keys() - addresses.keys():
            self._drop(worker)
            self._ended.discard(worker)
        for worker in addresses.keys() - self._lines.keys():
            self._open(worker, addresses[worker])

    def gone(self, within_s: float) -> list[int]:
        """Return the workers whose processes have ended since the last call; wait for one at most ``within_s``."""
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
            except OSError:  # no route to it: the missing heartbeats will show that
                self._selector.unregister(line)
                continue
            if refused and worker in self._ended:
                found.append(worker)
            if refused:  # never connected before: perhaps a firewall refuses, not the worker's kernel
                self._selector.unregister(line)
                continue
            # A router may drop an idle connection, so a closed one is opened again. Only a refusal after that means the
            # process ended.
            self._ended.add(worker)
            self._drop(worker)
            self._open(worker, address)
        return found

    def close(self) -> None:
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
    """Return whether the guest has closed the connection or sends data, which no worker does."""
    try:
        guest.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
