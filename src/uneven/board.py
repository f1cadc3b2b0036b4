"""What the members of an elastic run write for each other to read: the keys in their store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from uneven.stores import Store

NEWS, ASKED, WORKERS = "news", "asked", "workers"
"""Counters: of deaths and of members in a recovery; of workers that have asked to join; of all workers ever."""

DEAD, MISSED = "dead", "missed"
"""What others write of a worker: that it is gone, and why; that it is alive, but has kept them waiting for too long."""

RUN = "run"
"""What a launcher that joins needs to know."""

RELEASED = "released"
"""What a launcher writes when it knows that a worker's session is closed: neither of them needs the store any more."""

STARTS_WITHIN_S = 60.0
"""How long a worker may take from its number until its first sign of life."""

SESSION, OPEN, CLOSED = "session", "open", "closed"
"""What a worker writes there about its session. One that ends while it is open has not ended in order."""


class Board:
    """One thread's connection to the store. Nothing here waits for another worker.

    Raises, in all methods:
        RuntimeError: the store has ended, with the process that kept it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._asks: dict[int, tuple[int, dict[str, Any]]] = {}
        self._answered: set[int] = set()

    def look(self, key: str) -> str | None:
        """What is written there, or None."""
        return self.store.get(key).decode() if self.store.check([key]) else None

    def write(self, key: str, text: str) -> None:
        """Write it there."""
        self.store.set(key, text)

    def write_once(self, key: str, text: str) -> str:
        """Write it there if nothing is; what is there then, the same for all who ask."""
        return self.store.compare_set(key, "", text).decode()

    def any_of(self, keys: Iterable[str], worker: int) -> bool:
        """Whether one of these is written for a worker."""
        return any(self.store.check([f"{key}/{worker}"]) for key in keys)

    def count(self, key: str, more: int = 0) -> int:
        """A counter, after so many more."""
        return self.store.add(key, more)

    # ---------------------------------------------------------------- deaths
    def bury(self, worker: int, why: str) -> None:
        """Let all know that a worker is gone. The first to say so says why."""
        if self.write_once(f"{DEAD}/{worker}", why) == why:
            self.count(NEWS, 1)

    def bury_silent(self, worker: int, limit_s: float) -> None:
        """Let all know that a worker was silent for too long, and how to allow more."""
        self.bury(worker, f"it gave no sign of life for {limit_s:g} s; if its machine is only busy, raise --silence")

    def miss(self, workers: Iterable[int], what: str) -> None:
        """Let all know that workers, which are alive, have kept this one waiting for too long."""
        for one in workers:
            self.write_once(f"{MISSED}/{one}", what)

    def dead(self, workers: Iterable[int]) -> dict[int, str]:
        """Those that are gone, and why."""
        return {one: why for one in workers if (why := self.look(f"{DEAD}/{one}")) is not None}

    # ---------------------------------------------------------------- newcomers
    def ask(self, worker: int, introduction: dict[str, Any]) -> str:
        """Ask to be a member from the next generation on.

        Returns:
            The key under which the number of the generation that lets it in will be written.
        """
        place = self.count(ASKED, 1)
        self.write(f"asks/{place}", json.dumps([worker, introduction]))
        return f"admitted/{place}"

    def admit(self, workers: Iterable[int], generation: int) -> None:
        """Let workers in that have asked. Twice is fine."""
        for place, (worker, _) in self._asks.items():
            if worker in workers:
                self.write_once(f"admitted/{place}", str(generation))

    def asking(self) -> dict[int, dict[str, Any]]:
        """Worker → introduction of those that have asked and were not let in yet, in that order."""
        for place in range(1, self.count(ASKED) + 1):
            if place not in self._answered and (text := self.look(f"asks/{place}")) is not None:
                worker, introduction = json.loads(text)
                self._asks[place] = worker, introduction
        for place, (worker, _) in list(self._asks.items()):
            if self.look(f"admitted/{place}") is not None or self.look(f"{DEAD}/{worker}") is not None:
                self._answered.add(place)
                del self._asks[place]
        return dict(self._asks.values())
