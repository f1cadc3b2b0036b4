"""Processes that are started again when they end, under a rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from uneven.jobs.command import Process
from uneven.jobs.ending import Ending

P = TypeVar("P", bound=Process)


@dataclass(frozen=True, slots=True)
class Restarts:
    """When a process that has ended is started again: unless it ends at once, again and again.

    Attributes:
        most_quick: it is given up after so many quick ends in a row.
        quick_s: an end is quick that comes sooner after the start.
    """

    most_quick: int = 3
    quick_s: float = 1.0

    def quick(self, before: int, lived_s: float) -> int:
        """Quick ends in a row, with one after ``lived_s``, when there were ``before`` of them."""
        return before + 1 if lived_s < self.quick_s else 0

    def hopeless(self, quick: int) -> bool:
        """Whether so many quick ends in a row are too many."""
        return quick >= self.most_quick


class Kept(Generic[P]):
    """A process, and those that have taken its place. All happens in the loop in which its ends are heard.

    Args:
        start: starts one that calls what it is given when it has ended.
        told: called with how one has ended, and whether it is started again.

    Attributes:
        process: the newest one.
        ends: how often one has ended by itself.
    """

    def __init__(
        self,
        start: Callable[[Callable[[P], None]], P],
        rule: Restarts = Restarts(),
        told: Callable[[Ending, bool], None] = lambda ending, again: None,
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
