"""The end of a process, and its description."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Any, Self

from uneven.runtime.system import signals

_SIGNALS = signals("SIGINT", "SIGTERM", "SIGHUP")


class Stop:
    """A counter of requests to stop while its ``with`` block runs; main thread only.

    The signal handler calls ``asked`` with the signal's number, to wake a loop or to forward the signal.
    """

    def __init__(self, asked: Callable[[int], None] = lambda number: None, more: Sequence[int] = ()) -> None:
        self._asked = asked
        self._signals = (*_SIGNALS, *more)
        self.requests = 0
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs ignore them
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # No exception, which could leave an operation half done anywhere.
        self.requests += 1
        self.number = self.number or number
        self._asked(number)


class How(Enum):
    """The kind of a process's end."""

    ENDED = "it ended by itself"
    FAILED = "it ended with an error"
    KILLED = "a signal killed it"
    HUNG = "it sent no heartbeat, so it was killed"
    LOST = "its machine was lost, or cannot be reached"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process."""

    how: How
    cause: str  # in words: "exit code 3", "SIGKILL", a traceback, or a description of a hanging process
    code: int | None = None  # exit code, −n for signal n; None if unknown
    at_s: float = field(default_factory=time.time, compare=False)  # when it was noticed, Unix time

    @classmethod
    def of(cls, code: int) -> "Ending":
        """Return the end that an exit code (−n for signal n) describes."""
        if code < 0:
            return cls(How.KILLED, signal_name(-code), code)
        return cls(How.FAILED if code else How.ENDED, f"exit code {code}", code)

    @property
    def words(self) -> str:
        """The predicate of a sentence about the process: "was killed by SIGKILL"."""
        match self.how:
            case How.KILLED:
                return f"was killed by {self.cause}"
            case How.HUNG:
                return f"hung, so it was killed: {self.cause}"
            case How.LOST:
                return f"was lost: {self.cause}"
        return f"ended with {self.cause}"

    def __str__(self) -> str:
        return self.cause


def signal_name(number: int) -> str:
    """Return a name such as "SIGKILL", or "signal 40" if there is none."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
