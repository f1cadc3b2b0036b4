"""The membership board of an elastic run: keys in the store by which its members inform each other."""

import json
from collections.abc import Iterable
from typing import Any

from uneven.runtime.tcp_store import Store

NEWS, ASKED, WORKERS = "news", "asked", "workers"
"""The counters: of deaths and of members in a recovery; of workers that have asked to join; of all workers ever."""

DEAD, MISSED = "dead", "missed"
"""The keys for a worker, written by others: it has failed, and why; it is alive, but has delayed them for too long."""

RUN = "run"  # the key of the information for a launcher that joins

SITE = "site"  # the key of the name of a worker's site

RELEASED = "released"
"""The key by which a launcher reports that a worker's session is closed: both no longer need the store."""

STARTS_WITHIN_S = 60.0  # the longest time from a worker's number to its first heartbeat

SESSION, OPEN, CLOSED = "session", "open", "closed"
"""The key and the values of a worker's session state. A worker that ends while it is open has failed."""


class Board:
    """One thread's connection to the store. No method waits for another worker.

    All methods raise RuntimeError if the store has ended with its process.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._asks: dict[int, tuple[int, dict[str, Any]]] = {}
        self._answered: set[int] = set()

    def look(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None

    def write(self, key: str, text: str) -> None:
        self.store.set(key, text)

    def write_once(self, key: str, text: str) -> str:
        """Write a value if the key has none; return the value after that, the same for all callers."""
        return self.store.compare_set(key, "", text).decode()

    def any_of(self, keys: Iterable[str], worker: int) -> bool:
        """Return whether one of these keys is written for a worker."""
        return any(self.store.check([f"{key}/{worker}"]) for key in keys)

    def count(self, key: str, more: int = 0) -> int:
        """Add ``more`` to a counter, and return it."""
        return self.store.add(key, more)

    def remove_member(self, worker: int, why: str) -> None:
        """Report to all that a worker has failed. The reason of the first report stays."""
        # Only the first report counts as news, so that several reports of one death start one recovery.
        if self.write_once(f"{DEAD}/{worker}", why) == why:
            self.count(NEWS, 1)

    def bury_silent(self, worker: int, limit_s: float) -> None:
        """Report to all that a worker was silent for too long, and how to allow more."""
        self.remove_member(
            worker, f"it sent no heartbeat for {limit_s:g} s; if its machine is only busy, raise --silence"
        )

    def miss(self, workers: Iterable[int], what: str) -> None:
        """Report to all that workers, which are alive, have delayed this one for too long."""
        for one in workers:
            self.write_once(f"{MISSED}/{one}", what)

    def dead(self, workers: Iterable[int]) -> dict[int, str]:
        return {one: why for one in workers if (why := self.look(f"{DEAD}/{one}")) is not None}

    def ask(self, worker: int, introduction: dict[str, Any]) -> str:
        """Ask to be a member from the next generation on; return the key that will have its number."""
        place = self.count(ASKED, 1)
        self.write(f"asks/{place}", json.dumps([worker, introduction]))
        return f"admitted/{place}"

    def admit(self, workers: Iterable[int], generation: int) -> None:
        """Admit workers that have asked. Idempotent."""
        those = {*workers}
        for place, (worker, _) in self._asks.items():
            if worker in those:
                self.write_once(f"admitted/{place}", str(generation))

    def asking(self) -> dict[int, dict[str, Any]]:
        """Return worker → introduction of the workers that wait for admission, in the order of their requests."""
        for place in range(1, self.count(ASKED) + 1):
            if place not in self._answered and (text := self.look(f"asks/{place}")) is not None:
                worker, introduction = json.loads(text)
                self._asks[place] = worker, introduction
        for place, (worker, _) in list(self._asks.items()):
            if self.look(f"admitted/{place}") is not None or self.look(f"{DEAD}/{worker}") is not None:
                self._answered.add(place)
                del self._asks[place]
        return dict(self._asks.values())
