"""Processes that are restarted when they end, under a rule."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from uneven.runtime.jobs.command import Process
from uneven.runtime.jobs.ending import Ending

P = TypeVar("P", bound=Process)


@dataclass(frozen=True, slots=True)
class Restarts:
    """The rule for restarts: a process is restarted unless it repeatedly ends right after its start."""

    most_quick: int = 3  # number of consecutive quick ends after which it is given up
    quick_s: float = 1.0  # an end within this time after the start is quick

    def quick(self, before: int, lived_s: float) -> int:
        """Return the number of consecutive quick ends after a life of ``lived_s``, given the number ``before``."""
        return before + 1 if lived_s < self.quick_s else 0

    def hopeless(self, quick: int) -> bool:
        return quick >= self.most_quick


class Kept(Generic[P]):
    """A process and its replacements, counted in ``ends``. All calls happen in the loop that notices the ends."""

    def __init__(
        self,
        start: Callable[[Callable[[P], None]], P],  # starts a process that calls its argument when it has ended
        rule: Restarts = Restarts(),
        told: Callable[[Ending, bool], None] = lambda ending, again: None,  # (end, whether it is restarted)
    ) -> None:
        self.ends = 0
        self._start = start
        self._rule = rule
        self._told = told
        self._quick = 0
        self._began_s = time.monotonic()
        self.process = start(self._ended)

    def _ended(self, process: P) -> None:
        self.ends += 1
        self._quick = self._rule.quick(self._quick, time.monotonic() - self._began_s)
        again = not self._rule.hopeless(self._quick)
        assert process.ending is not None
        self._told(process.ending, again)
        if again:
            self._began_s = time.monotonic()
            self.process = self._start(self._ended)
