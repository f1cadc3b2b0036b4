"""The one place where all processes of a program are listened to."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable
from typing import Self

_LONGEST_TICK_S = 1.0


class Awake:
    """Seconds in which this process could have heard of others.

    They stand still while it is stopped itself (Ctrl-Z, a debugger), for then everybody seems to be silent.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._last_s = time.monotonic()

    def tick(self) -> None:
        """To be called every time that everybody has been listened to."""
        now_s = time.monotonic()
        self.now_s += min(now_s - self._last_s, _LONGEST_TICK_S)
        self._last_s = now_s


class Events:
    """Whom to call when something can be read. One thread listens; :meth:`wake` alone may be called by others.

    Attributes:
        awake: seconds in which anybody could have been heard.
    """

    def __init__(self) -> None:
        self.awake = Awake()
        self._selector = selectors.DefaultSelector()
        self._calls: dict[int, Callable[[], None]] = {}
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self.add(self._woken, self._wakes)

    def add(self, source: int, call: Callable[[], None]) -> None:
        """Call ``call`` whenever the file descriptor ``source`` can be read."""
        self._selector.register(source, selectors.EVENT_READ)
        self._calls[source] = call

    def remove(self, source: int) -> None:
        """No longer; to be said before it is closed. Twice is no error."""
        if self._calls.pop(source, None) is not None:
            self._selector.unregister(source)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the next ones, at most so long (None: for ever), and call."""
        ready = self._selector.select(timeout_s)
        self.awake.tick()
        for key, _ in ready:
            call = self._calls.get(key.fd)
            if call is not None:  # an earlier one may have removed it
                call()

    def wake(self) -> None:
        """Let :meth:`wait` come back; from any thread, or from a signal's handler."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake up
            os.write(self._waker, b"\0")

    def close(self) -> None:
        """Forget all."""
        self._calls.clear()
        self._selector.close()
        for end in (self._woken, self._waker):
            os.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._woken, 4096):
                pass
