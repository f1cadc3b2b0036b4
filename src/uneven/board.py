"""What the members of an elastic run write for each other to read: the keys in their store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from uneven.stores import Store

NEWS, ASKED, WORKERS = "news", "asked", "workers"
"""Counters: of deaths and of members in a recovery; of workers that have asked to join; of all workers ever."""

DEAD, MISSED = "dead", "missed"
"""What others write of a worker: that it is gone, and why; that it is alive, but has kept them waiting for too long."""

ENDED = "ended"
"""What is written of one that is gone when its process has ended for certain, and is not only silent or cut off."""

STANDBYS, STANDBY = "standbys", "standby"
"""A counter of launchers that have joined, and where each of them keeps the store that may follow this one."""

RUN, REIGN, VOTE, ABANDONED = "run", "reign", "vote", "abandoned"
"""What a launcher that joins needs to know; in a store that may follow: the generation that goes on with it, or that
nobody ever will; and what each member says there."""

SESSION, OPEN, CLOSED = "session", "open", "closed"
"""What a worker writes there about its session. One that ends while it is open has not ended in order."""


@dataclass(slots=True)
class Carried:
    """What outlives a store.

    Attributes:
        kept: key → text that is written to a store that takes the place of this one.
        moves: from one store to another so far.
    """

    kept: dict[str, str] = field(default_factory=dict)
    moves: int = 0


class Board:
    """One thread's connection to the store. Nothing here waits for another worker.

    Args:
        carried: what outlives the store.

    Raises, in all methods:
        RuntimeError: the store has ended, with the launcher that kept it.
    """

    def __init__(self, store: Store, carried: Carried | None = None) -> None:
        self.store = store
        self._carried = carried or Carried()
        self._moves = 0  # after which asks were last looked at
        self._asks: dict[int, tuple[int, dict[str, Any]]] = {}
        self._answered: set[int] = set()

    def look(self, key: str) -> str | None:
        """What is written there, or None."""
        try:
            return self.store.get(key).decode() if self.store.check([key]) else None
        except KeyError:  # it was written in a store that has gone in between
            return None

    def write(self, key: str, text: str, *, keep: bool = False) -> None:
        """Write it there.

        Args:
            keep: also to a store that takes the place of this one.
        """
        if keep:
            self._carried.kept[key] = text
        self.store.set(key, text)

    def keep(self, key: str, text: str) -> None:
        """It is written here, and has to be in a store that takes the place of this one."""
        self._carried.kept[key] = text

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
    def bury(self, worker: int, why: str, *, ended: bool = False) -> None:
        """Let all know that a worker is gone. The first to say so says why.

        Args:
            ended: its process has ended for certain.
        """
        if ended:
            self.write(f"{ENDED}/{worker}", "", keep=True)
        self.keep(f"{DEAD}/{worker}", why)
        if self.write_once(f"{DEAD}/{worker}", why) == why:
            self.count(NEWS, 1)

    def miss(self, workers: Iterable[int], what: str) -> None:
        """Let all know that workers, which are alive, have kept this one waiting for too long."""
        for one in workers:
            self.write_once(f"{MISSED}/{one}", what)

    def dead(self, workers: Iterable[int]) -> dict[int, str]:
        """Those that are gone, and why."""
        found = {one: why for one in workers if (why := self.look(f"{DEAD}/{one}")) is not None}
        for one, why in found.items():
            self.keep(f"{DEAD}/{one}", why)
        return found

    def ended(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Those whose processes have ended for certain."""
        return tuple(one for one in workers if self.any_of([ENDED], one))

    # ---------------------------------------------------------------- stores that may follow
    def offer(self, address: str) -> str:
        """A launcher keeps a store there that may follow this one; the key to take that back with. Twice is fine."""
        keys = (key for key, one in self._offers().items() if one == address)
        if (key := next(keys, "")) == "":
            self.write(key := f"{STANDBY}/{self.count(STANDBYS, 1)}", address)
        return key

    def offered(self, row: tuple[str, ...]) -> None:
        """These were offered at the store before this one; to be called before anybody uses this one. Twice is fine."""
        for place, address in enumerate(row, 1):
            self.write_once(f"{STANDBY}/{place}", address)
        self.write_once(STANDBYS, str(len(row)))

    def row(self) -> tuple[str, ...]:
        """Stores that may follow this one, in order."""
        return tuple(self._offers().values())

    def _offers(self) -> dict[str, str]:
        keys = (f"{STANDBY}/{place}" for place in range(1, self.count(STANDBYS) + 1))
        return {key: address for key in keys if (address := self.look(key))}

    # ---------------------------------------------------------------- newcomers
    def ask(self, worker: int, introduction: dict[str, Any]) -> str:
        """Ask to be a member from the next generation on.

        Returns:
            Where it will be written which generation lets it in.
        """
        place = self.count(ASKED, 1)
        self.write(f"asks/{place}", json.dumps([worker, introduction]))
        return f"admitted/{place}"

    def admit(self, workers: Iterable[int], generation: str) -> None:
        """Let workers in that have asked. Twice is fine."""
        for place, (worker, _) in self._asks.items():
            if worker in workers:
                self.write_once(f"admitted/{place}", generation)

    def asking(self) -> dict[int, dict[str, Any]]:
        """Worker → introduction of those that have asked and were not let in yet, in that order."""
        places = self.count(ASKED)
        if self._moves != self._carried.moves:
            self._moves = self._carried.moves
            self._asks.clear()
            self._answered.clear()
        for place in range(1, places + 1):
            if place not in self._answered and (text := self.look(f"asks/{place}")) is not None:
                worker, introduction = json.loads(text)
                self._asks[place] = worker, introduction
        for place, (worker, _) in list(self._asks.items()):
            if self.look(f"admitted/{place}") is not None or self.look(f"{DEAD}/{worker}") is not None:
                self._answered.add(place)
                del self._asks[place]
        return dict(self._asks.values())
