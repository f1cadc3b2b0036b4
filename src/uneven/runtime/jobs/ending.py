"""The end of a process, and its description."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from enum import Enum


class How(Enum):
    """The kind of a process's end."""

    ENDED = "it came to its end by itself"
    FAILED = "it ended with an error of its own"
    KILLED = "a signal killed it"
    HUNG = "it gave no sign of life and was killed for that"
    LOST = "its machine was lost, or cannot be reached"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process."""

    how: How
    cause: str  # in words: "exit code 3", "SIGKILL", a traceback, or a description of a hanging process
    code: int | None = None  # exit code, −n for signal n; None if unknown
    at_s: float = field(default_factory=time.time, compare=False)  # when it was noticed, Unix time

    @classmethod
    def of(cls, code: int) -> Ending:
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
                return f"hung and was killed for that: {self.cause}"
            case How.LOST:
                return f"was lost: {self.cause}"
        return f"ended with {self.cause}"

    def __str__(self) -> str:
        return self.cause


def signal_name(number: int) -> str:
    """Return a name such as "SIGKILL", or "signal 40" if there is none."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
