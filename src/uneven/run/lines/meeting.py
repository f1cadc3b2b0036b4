"""The store that the ranks met at, and further connections to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributed import distributed_c10d as c10d


class MeetingPlace:
    """A store, and connections for those who wait for a key: a wait keeps a connection busy.

    Both ends of a new connection look up the other's name for a log that nobody reads, and the store's only thread
    looks up nothing else meanwhile: where names are looked up in vain, that is five seconds in which all ranks stand
    (torch 2.9 to 2.13). So a connection is used again.

    Args:
        store: a TCPStore, or a prefix of one.
    """

    def __init__(self, store: c10d.Store) -> None:
        self.store = store
        self._free: list[c10d.Store] = []

    @contextlib.contextmanager
    def aside(self) -> Iterator[c10d.Store]:
        """A connection of one's own; it is left to the next if all went well.

        Raises:
            RuntimeError: the store has ended.
        """
        try:
            store = self._free.pop()
        except IndexError:
            store = self.store.clone()  # type: ignore[attr-defined] # not in torch's stubs
        yield store
        self._free.append(store)
