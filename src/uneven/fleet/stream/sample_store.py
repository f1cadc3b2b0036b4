"""Choose the memory for prepared samples: memory that all processes share, or a place's object store."""

from __future__ import annotations

from typing import Any, Protocol

from uneven.errors import ConfigError
from uneven.fleet.stream.chunks import ChunksHandle, KeptChunks
from uneven.fleet.stream.layout import Layout
from uneven.fleet.stream.sample_ring import Ring
from uneven.runtime.jobs.executor import Place


class Store(Protocol):
    """The memory for prepared samples on the engine's side; see :class:`~uneven.fleet.stream.sample_ring.Ring`."""

    def handle(self, *, writable: bool) -> Any:
        """Return what another process needs to read or write the samples: an object with a method ``open(line)``."""
        ...

    def keep(self, number: int, reference: Any) -> None:
        """Record that a chunk was made; ``reference`` comes from its maker's ``made``."""
        ...

    def found(self, first: int, end: int) -> Any:
        """Return what a reader needs to find the chunks ``first`` … ``end`` − 1."""
        ...

    def lost(self, number: int, reference: Any) -> bool:
        """Return whether a chunk that a reader cannot find by this reference must be made again."""
        ...

    def drop(self, below: int) -> None:
        """Release the chunks below this one."""
        ...

    def close(self) -> None:
        """Release the memory. Idempotent."""
        ...


def store_in(place: Place, layout: Layout, *, slots: int, chunk: int) -> Store:
    """Return memory for ``slots`` chunks of ``chunk`` samples. Raises `ConfigError` if the memory is not available."""
    if place.shares_memory:
        return Ring(layout, slots=slots, chunk=chunk, writable=True)
    needs, room = slots * chunk * sum(field.nbytes for field in layout), place.room_bytes
    if needs > room:
        raise ConfigError(
            f"the shared buffer needs {needs / 1e6:,.0f} MB, a machine's object store has {room / 1e6:,.0f} MB: "
            f"give Options(buffer=…) fewer samples, or Ray more object_store_memory"
        )
    return KeptChunks(ChunksHandle(layout, slots, chunk))
