"""Signs of life: processes give them, and the engine counts how long one that is busy has given none.

::

    member, preprocessor            engine
    step 17 of epoch 3 ──"at"──►    where it is, and when that was heard        the same for both engines
         │                               │
    nothing more                    quiet_s > timeout_s: it hangs at step 17 of epoch 3, and is ended

A process that waits for samples, or for something to do, gives no signs and needs none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uneven.errors import ConfigError

TIMEOUT_S = 300.0
"""How long a sample, a step, a factory's call or a checkpoint may take; the same as ``uneven.Session``'s."""

BEAT_S = 0.25

_LONGEST_TICK_S = 1.0

AT = "at"
"""The first word of a sign of life; the second says where the process is."""


class Pulse:
    """Tells the engine now and then where this process is.

    Args:
        send: says something to the engine.

    Attributes:
        every_s: the shortest time between two signs; 0 gives all of them.
    """

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.every_s = BEAT_S
        self._send = send
        self._last_s = -math.inf

    def beat(self, where: str, *numbers: object) -> bool:
        """The process is at ``where.format(*numbers)`` now; whether that was told."""
        told = time.monotonic() - self._last_s >= self.every_s
        if told:
            self.begin(where, *numbers)
        return told

    def begin(self, where: str, *numbers: object) -> None:
        """The same of something new, which is told in any case."""
        self._last_s = time.monotonic()
        self._send((AT, where.format(*numbers)))


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
        """The same, with where it was."""
        return Silence(self.quiet_s, self.at)

    def touched(self) -> None:
        """Something was said to it."""
        self._since_s = self._awake.now_s

    def signals(self, message: Any) -> bool:
        """It said something; whether that was no more than a sign of life."""
        self.touched()
        if message[0] != AT:
            return False
        self.at = message[1]
        return True


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a process has been silent, and where it was before that."""

    for_s: float
    at: str

    def __str__(self) -> str:
        since = f"the last one from {self.at}" if self.at else "not even of its start"
        return f"no sign of life for {self.for_s:.0f} s, {since}"


def hangs(timeout_s: float, at: str) -> str:
    """What is said of a process that hangs."""
    return f"it hangs: {Silence(timeout_s, at)}; if that takes longer, raise Options(timeout_s=…) or --timeout"


def checked(timeout_s: float) -> float:
    """A time-out, in seconds.

    Raises:
        ConfigError: too short to tell a process that hangs from one that is busy.
    """
    if not timeout_s >= 1.0:
        raise ConfigError(f"timeout_s={timeout_s:g}: at least 1 s; float('inf') waits for ever")
    return timeout_s
