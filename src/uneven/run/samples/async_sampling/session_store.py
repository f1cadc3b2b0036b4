"""A session's numbers and texts in the rendezvous store, which the launcher hosts (rank 0 without a launcher)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from uneven.errors import PeerError

T = TypeVar("T")


class SessionStore:
    """One session's part of the store (by default torch's); a single-process run has an in-memory one.

    Every method raises a PeerError if the store does not answer.
    """

    def __init__(self, rank: int, size: int, store: c10d.Store | None = None) -> None:
        self.rank = rank
        self.size = size
        if store is None:
            store = c10d._get_default_store() if size > 1 else HashStore()
        # Each rank counts its sessions on this store. The numbers agree, because all ranks make them in the same order.
        number = store.add(f"uneven/own-paces/{rank}", 1)
        self._store = c10d.PrefixStore(f"uneven/own-pace/{number}", store)

    def add(self, key: str, number: int) -> int:
        """Add to a number that starts at 0, and return the sum; one round trip."""
        return int(self._ask(lambda: self._store.add(key, number)))

    def swap(self, key: str, before: str, after: str) -> str:
        """Replace ``before`` ("" if the key is absent) by ``after``, if it is there; return the text now there."""
        return str(self._ask(lambda: self._store.compare_set(key, before, after)).decode())

    def put(self, key: str, text: str) -> None:
        self._ask(lambda: self._store.set(key, text))

    def keep(self, key: str, text: str) -> None:
        """Write a text and wait until the store has it."""
        self.put(key, text)
        self.has(key)  # a write has no answer: without this read it could be lost together with this process

    def delete(self, key: str) -> None:
        self._ask(lambda: self._store.delete_key(key))

    def has(self, *keys: str) -> bool:
        """Return whether all keys are there."""
        return bool(self._ask(lambda: self._store.check(list(keys))))

    def texts(self, keys: Sequence[str]) -> list[str | None]:
        """Return the text under each key, None if the key is absent."""
        # Two round trips if all keys are there, for any number of ranks.
        here = [True] * len(keys) if self.has(*keys) else [self.has(key) for key in keys]
        there = [key for key, word in zip(keys, here, strict=True) if word]
        found = iter(self._ask(lambda: self._store.multi_get(there)))
        return [next(found).decode() if word else None for word in here]

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except RuntimeError as error:
            raise PeerError(
                f"rank {self.rank}: the store of the run, which assigns the samples, does not answer: its process "
                f"(the launcher, or rank 0 without one) has ended ({str(error).strip().splitlines()[0]})"
            ) from error
