"""Heartbeats: a busy process sends them, and its parent measures the time since the last one.

::

    a process                        its parent process
    step 17 of epoch 3 ──At──►       records the position and the time of its arrival
         │                                │
    no further message               quiet_s: it hangs at step 17 of epoch 3, and may be killed

A process that waits for work sends no heartbeats and needs none.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uneven.runtime.jobs.job_events import Awake

BEAT_S = 0.25


@dataclass(frozen=True, slots=True)
class At:
    """A heartbeat with the sender's position."""

    where: str


class Heartbeat:
    """The sender of a process's heartbeats; ``every_s`` is the shortest time between two, 0 sends all."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.every_s = BEAT_S
        self._send = send
        self._last_s = -math.inf

    def beat(self, where: str, *numbers: object) -> bool:
        """Report the position ``where.format(*numbers)`` if a heartbeat is due; return whether it was."""
        due = time.monotonic() - self._last_s >= self.every_s
        if due:
            self.begin(where, *numbers)
        return due

    def begin(self, where: str, *numbers: object) -> None:
        """Report the position of a new piece of work, due or not."""
        self._last_s = time.monotonic()
        self._send(At(where.format(*numbers)))


class Watched:
    """A process whose silence is measured; ``at`` is its last reported position."""

    def __init__(self, awake: Awake) -> None:
        self.at = ""
        self._awake = awake
        self._since_s = awake.now_s

    @property
    def quiet_s(self) -> float:
        """The seconds since the last message from or to it."""
        return self._awake.now_s - self._since_s

    @property
    def silence(self) -> "Silence":
        return Silence(self.quiet_s, self.at)

    def touched(self) -> None:
        """Restart the measurement, because a message was sent to it."""
        self._since_s = self._awake.now_s

    def signals(self, message: Any) -> bool:
        """Record a message from it; return whether it is only a heartbeat."""
        self.touched()
        if isinstance(message, At):
            self.at = message.where
        return isinstance(message, At)


@dataclass(frozen=True, slots=True)
class Silence:
    """The duration of a process's silence, and its position before that."""

    for_s: float
    at: str

    def __str__(self) -> str:
        since = f"the last one at {self.at}" if self.at else "not even at its start"
        return f"no heartbeat for {self.for_s:.0f} s, {since}"
