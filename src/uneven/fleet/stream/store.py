"""Where prepared samples lie: memory that all processes share, or a place's store of objects."""

from __future__ import annotations

from typing import Any, Protocol

from uneven.errors import ConfigError
from uneven.fleet.stream.chunks import ChunksHandle, KeptChunks
from uneven.fleet.stream.layout import Layout
from uneven.fleet.stream.ring import Ring
from uneven.jobs.place import Place


class Store(Protocol):
    """Where prepared samples lie, as the engine sees it; see :class:`~uneven.fleet.stream.ring.Ring`."""

    def handle(self, *, writable: bool) -> Any:
        """What another process needs to read or write there: it has a method ``open(line)``."""
        ...

    def keep(self, number: int, reference: Any) -> None:
        """A chunk has been made; ``reference`` is what its maker's end of the store says of it."""
        ...

    def found(self, first: int, end: int) -> Any:
        """What a reader needs to find the chunks ``first`` … ``end`` − 1, beyond knowing that they are there."""
        ...

    def lost(self, number: int, reference: Any) -> bool:
        """A reader cannot find a chunk by its reference; whether the chunk has to be made again for that."""
        ...

    def drop(self, below: int) -> None:
        """Nobody needs the chunks below this one any more."""
        ...

    def close(self) -> None:
        """Give the memory back. Twice is no error."""
        ...


def store_in(place: Place, layout: Layout, *, slots: int, chunk: int) -> Store:
    """Room for so many chunks of so many samples.

    Raises:
        ConfigError: the memory is not to be had.
    """
    if place.shares_memory:
        return Ring(layout, slots=slots, chunk=chunk, writable=True)
    needs, room = slots * chunk * sum(field.nbytes for field in layout), place.room_bytes
    if needs > room:
        raise ConfigError(
            f"the shared buffer needs {needs / 1e6:,.0f} MB, a machine's object store has {room / 1e6:,.0f} MB: "
            f"give Options(buffer=…) fewer samples, or Ray more object_store_memory"
        )
    return KeptChunks(ChunksHandle(layout, slots, chunk))
