"""The handshake of workers that may finish at different times."""

from __future__ import annotations

from uneven.run.samples.async_sampling.session_store import SessionStore


class ShutdownHandshake:
    """The record of the workers that are done; a worker that serves others reads it before it ends.

    Both methods raise a PeerError if the store does not answer.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self._store.size) if rank != self._store.rank]

    def done(self) -> None:
        """Record that this worker needs no other worker any longer."""
        self._store.put(f"closed/{self._store.rank}", "")

    def is_done(self, rank: int) -> bool:
        return self._store.has(f"closed/{rank}")
