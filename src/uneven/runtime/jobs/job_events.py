"""The loop in which a program receives the events of all its processes."""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from typing import Self

_LONGEST_TICK_S = 1.0


class Awake:
    """A clock of the seconds in which this process could receive messages."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._last_s = time.monotonic()

    def tick(self) -> None:
        """Advance the clock; call it after each round of listening."""
        now_s = time.monotonic()
        # While this process is stopped (Ctrl-Z, a debugger), every other one seems silent, so that time must not count.
        self.now_s += min(now_s - self._last_s, _LONGEST_TICK_S)
        self._last_s = now_s


class Events:
    """A loop that calls functions when descriptors are readable. Other threads may only call :meth:`wake`."""

    def __init__(self) -> None:
        self.awake = Awake()
        self._selector = selectors.DefaultSelector()
        self._calls: dict[int, Callable[[], None]] = {}
        self._woken, self._waker = socket.socketpair()  # not a pipe, which Windows cannot wait for
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self.add(self._woken.fileno(), self._wakes)

    def add(self, source: int, call: Callable[[], None]) -> None:
        """Call ``call`` whenever the file descriptor ``source`` is readable."""
        self._selector.register(source, selectors.EVENT_READ)
        self._calls[source] = call

    def remove(self, source: int) -> None:
        """Stop watching ``source``; call this before closing it. Idempotent."""
        if self._calls.pop(source, None) is not None:
            self._selector.unregister(source)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for events, at most ``timeout_s`` (None: forever), and call their functions."""
        ready = self._selector.select(timeout_s)
        self.awake.tick()
        for key, _ in ready:
            call = self._calls.get(key.fd)
            if call is not None:  # an earlier call may have removed it
                call()

    def wake(self) -> None:
        """Make :meth:`wait` return; callable from any thread and from signal handlers."""
        with contextlib.suppress(BlockingIOError):  # a full buffer wakes it, too
            self._waker.send(b"\0")

    def close(self) -> None:
        self._calls.clear()
        self._selector.close()
        for end in (self._woken, self._waker):
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
