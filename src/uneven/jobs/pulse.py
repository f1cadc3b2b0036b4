"""Signs of life: processes give them, and whoever started them counts how long one that is busy has given none.

::

    a process                        who has started it
    step 17 of epoch 3 ──At──►       where it is, and when that was heard, wherever it runs
         │                                │
    nothing more                     quiet_s: it hangs at step 17 of epoch 3, and may be ended

A process that waits for something to do gives no signs and needs none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uneven.jobs.events import Awake

BEAT_S = 0.25


@dataclass(frozen=True, slots=True)
class At:
    """A sign of life, as it travels."""

    where: str


class Pulse:
    """Tells now and then where this process is.

    Args:
        send: says something to whoever started it.

    Attributes:
        every_s: the shortest time between two signs; 0 gives all of them.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.every_s = BEAT_S
        self._send = send
        self._last_s = -math.inf

    def beat(self, where: str, *numbers: object) -> bool:
        """The process is at ``where.format(*numbers)`` now; whether that was reported."""
        due = time.monotonic() - self._last_s >= self.every_s
        if due:
            self.begin(where, *numbers)
        return due

    def begin(self, where: str, *numbers: object) -> None:
        """The same of something new, which is reported in any case."""
        self._last_s = time.monotonic()
        self._send(At(where.format(*numbers)))


class Watched:
    """A process of which is known how long it has been silent, and where it was.

    Attributes:
        at: where it was when it gave its last sign.
    """

    def __init__(self, awake: Awake) -> None:
        self.at = ""
        self._awake, self._since_s = awake, awake.now_s

    @property
    def quiet_s(self) -> float:
        """Seconds since it said something, or something was said to it."""
        return self._awake.now_s - self._since_s

    @property
    def silence(self) -> Silence:
        return Silence(self.quiet_s, self.at)

    def touched(self) -> None:
        """Something was said to it."""
        self._since_s = self._awake.now_s

    def signals(self, message: Any) -> bool:
        """It said something; whether that was no more than a sign of life."""
        self.touched()
        if isinstance(message, At):
            self.at = message.where
        return isinstance(message, At)


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a process has been silent, and where it was before that."""

    for_s: float
    at: str

    def __str__(self) -> str:
        since = f"the last one from {self.at}" if self.at else "not even of its start"
        return f"no sign of life for {self.for_s:.0f} s, {since}"
