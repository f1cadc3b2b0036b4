"""How a process has ended, and how to say it."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from enum import Enum


class How(Enum):
    """What the end of a process says about it."""

    ENDED = "it came to its end by itself"
    FAILED = "it ended with an error of its own"
    KILLED = "a signal killed it"
    HUNG = "it gave no sign of life and was killed for that"
    LOST = "its machine was lost, or cannot be reached"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process.

    Attributes:
        cause: in words: "exit code 3", "SIGKILL", a traceback, what is known of one that hung.
        code: exit code, −n for signal n; None where nobody knows.
        at_s: when it was noticed, Unix time.
    """

    how: How
    cause: str
    code: int | None = None
    at_s: float = field(default_factory=time.time, compare=False)

    @classmethod
    def of(cls, code: int) -> Ending:
        """What an exit code says, −n for signal n."""
        if code < 0:
            return cls(How.KILLED, signal_name(-code), code)
        return cls(How.FAILED if code else How.ENDED, f"exit code {code}", code)

    @property
    def words(self) -> str:
        """A verb for a sentence that begins with the name of the process: "was killed by SIGKILL"."""
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
    """Such as "SIGKILL"; "signal 40" for one without a name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
