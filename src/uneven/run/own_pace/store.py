"""Numbers and texts in the store that the ranks met at, which the launcher keeps (or rank 0 where there is none)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from uneven.errors import PeerError

T = TypeVar("T")


class SessionStore:
    """One session's part of the store. A worker that is alone has one in its own process.

    Every method raises a PeerError if the store does not answer.

    Args:
        rank, size: this worker, and how many there are.
        store: a connection to the one that the ranks met at; None where that is torch's own.
    """

    def __init__(self, rank: int, size: int, store: c10d.Store | None = None) -> None:
        self.rank = rank
        self.size = size
        if store is None:
            store = c10d._get_default_store() if size > 1 else HashStore()
        number = store.add(f"uneven/own-paces/{rank}", 1)  # tells apart the sessions that use one store
        self._store = c10d.PrefixStore(f"uneven/own-pace/{number}", store)

    def add(self, key: str, number: int) -> int:
        """Add to a number that begins at 0; the sum. One question and one answer."""
        return int(self._ask(lambda: self._store.add(key, number)))

    def swap(self, key: str, before: str, after: str) -> str:
        """Write ``after`` where ``before`` is, "" for nothing; what is there then. One question and one answer."""
        return str(self._ask(lambda: self._store.compare_set(key, before, after)).decode())

    def put(self, key: str, text: str) -> None:
        """Write a text."""
        self._ask(lambda: self._store.set(key, text))

    def keep(self, key: str, text: str) -> None:
        """Write a text, and return when it is there: a write alone has no answer, and may still be on its way when this
        process, or its machine, is lost."""
        self.put(key, text)
        self.has(key)

    def delete(self, key: str) -> None:
        """Forget a text."""
        self._ask(lambda: self._store.delete_key(key))

    def has(self, *keys: str) -> bool:
        """Whether all of these are there."""
        return bool(self._ask(lambda: self._store.check(list(keys))))

    def texts(self, keys: Sequence[str]) -> list[str | None]:
        """What is there under each key. Two questions where all have a text, also with many ranks."""
        here = [True] * len(keys) if self.has(*keys) else [self.has(key) for key in keys]
        there = [key for key, word in zip(keys, here, strict=True) if word]
        found = iter(self._ask(lambda: self._store.multi_get(there)))
        return [next(found).decode() if word else None for word in here]

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except RuntimeError as error:
            raise PeerError(
                f"rank {self.rank}: the store that the ranks met at, which hands out the samples, does not answer: the "
                f"process that keeps it (the launcher, or rank 0 without one) has ended "
                f"({str(error).strip().splitlines()[0]})"
            ) from error
