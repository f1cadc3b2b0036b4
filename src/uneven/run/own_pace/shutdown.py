"""How workers that may end at different times tell each other that they need nothing more."""

from __future__ import annotations

from uneven.run.own_pace.store import SessionStore


class ShutdownHandshake:
    """Each worker says that it is done; whoever keeps something for the others asks.

    Both methods raise a PeerError if the store does not answer.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    @property
    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self._store.size) if rank != self._store.rank]

    def done(self) -> None:
        """This worker needs nothing more of anybody."""
        self._store.put(f"closed/{self._store.rank}", "")

    def is_done(self, rank: int) -> bool:
        """Whether a worker has said so."""
        return self._store.has(f"closed/{rank}")
