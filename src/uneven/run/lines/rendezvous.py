"""The store at which the ranks met, and further connections to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributed import distributed_c10d as c10d


class MeetingPlace:
    """A store, and connections for waits, each of which blocks a connection."""

    def __init__(self, store: c10d.Store) -> None:
        # Connections are reused. Both ends of a new one look up the other's name for a log, and the store's only thread
        # blocks during that. If name resolution fails, all ranks stop for five seconds (torch 2.9 to 2.13).
        self.store = store
        self._free: list[c10d.Store] = []

    @contextlib.contextmanager
    def aside(self) -> Iterator[c10d.Store]:
        """Yield a connection for one user, reused later if no error occurs; raises :class:`RuntimeError` if the
        store has ended."""
        try:
            store = self._free.pop()
        except IndexError:
            store = self.store.clone()  # type: ignore[attr-defined] # not in torch's stubs
        yield store
        self._free.append(store)
