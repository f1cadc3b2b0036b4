"""Choose the memory for prepared samples: memory that all processes share, or a place's object store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uneven.errors import ConfigError
from uneven.fleet.stream.sample_ring import Layout, Ring
from uneven.runtime.jobs.executor import LargeObject, ObjectLine, ObjectLostError, Place

Told = dict[int, tuple[int, Any]]
"""Chunk → number of times it has been made, and a reference to it."""


@dataclass(frozen=True, slots=True)
class ChunksHandle:
    """A description of the chunks that can be sent to another process."""

    layout: Layout
    slots: int
    chunk: int

    def open(self, line: ObjectLine) -> "Chunks":
        return Chunks(self, line)


class Chunks:
    """The chunks that a process makes or reads, if processes share no memory: each is an object of the place's store.

    Its interface is that of :class:`~uneven.fleet.stream.sample_ring.Ring`, so the code that makes and reads samples is
    the same.
    """

    def __init__(self, handle: ChunksHandle, line: ObjectLine) -> None:
        self.layout = handle.layout
        self.slots = handle.slots
        self.chunk = handle.chunk
        self._line = line
        self._making: list[npt.NDArray[Any]] = []
        self._told: Told = {}
        self._here: dict[int, list[npt.NDArray[Any]]] = {}

    def slot(self, number: int) -> list[npt.NDArray[Any]]:
        """Return arrays for the samples of a chunk, of shape (chunk, …) per field."""
        self._making = [np.zeros((self.chunk, *field.shape), field.dtype) for field in self.layout]
        return self._making

    def made(self, number: int) -> LargeObject:
        """Return the chunk that was written last, to put it into the machine's object store."""
        parcel, self._making = LargeObject(self._making), []
        return parcel

    def arrived(self, refs: Told) -> None:
        """Store references to chunks."""
        self._told.update(refs)
        # Ray copies the chunks to this machine in the background.
        self._line.expect([reference for _, reference in refs.values()])

    def batch(self, start: int, size: int) -> list[torch.Tensor]:
        """Return the samples from position ``start`` of the stream on, a tensor of shape (samples, …) per field."""
        parts = []
        while size:
            number, at = divmod(start, self.chunk)
            taken = min(size, self.chunk - at)
            parts.append([field[at : at + taken] for field in self._chunk(number)])
            start, size = start + taken, size - taken
        # Always a copy: memory of an object store is writable, and others read it too.
        return [torch.from_numpy(np.concatenate(field)) for field in zip(*parts, strict=True)]

    def free(self, chunk: int) -> None:
        """Forget all chunks below ``chunk``."""
        for held in (self._told, self._here):
            for number in [number for number in held if number < chunk]:
                del held[number]

    def forget(self) -> None:
        """Forget all chunks."""
        self._told.clear()
        self._here.clear()

    def _chunk(self, number: int) -> Sequence[npt.NDArray[Any]]:
        """Return a chunk. If it was lost with a machine, request it until it has been made again."""
        while number not in self._here:
            times, reference = self._told.get(number, (0, None))
            try:
                if reference is not None:
                    self._here[number] = self._line.fetch(reference)
                    continue
            except ObjectLostError:
                pass
            # The count of makings lets the engine ignore a second report of the same loss.
            self._line.send(("missing", number, times))
            _, _, refs = self._line.recv()
            self._told.update(refs)
        return self._here[number]


class KeptChunks:
    """The engine's side of the chunks, with the methods of :class:`~uneven.fleet.stream.sample_ring.Ring`.

    This process owns the chunks, so they outlive their makers. A chunk lost with a machine is made again.
    """

    def __init__(self, handle: ChunksHandle) -> None:
        self._handle = handle
        self._there: Told = {}
        self._times: dict[int, int] = {}

    def handle(self, *, writable: bool) -> ChunksHandle:
        return self._handle

    def keep(self, number: int, reference: Any) -> None:
        """Record that a chunk was made; ``reference`` comes from its maker's ``made``."""
        self._times[number] = self._times.get(number, 0) + 1
        self._there[number] = self._times[number], reference

    def found(self, first: int, end: int) -> Told:
        """Return what a reader needs to find the chunks ``first`` … ``end`` − 1."""
        return {number: self._there[number] for number in range(first, end) if number in self._there}

    def lost(self, number: int, times: int) -> bool:
        """Return whether this is the first report of the loss of a chunk that had been made ``times`` times."""
        there = self._there.get(number)
        if there is None or there[0] != times:
            return False
        del self._there[number]
        return True

    def drop(self, below: int) -> None:
        """Release the chunks below this one."""
        for held in (self._there, self._times):
            for number in [number for number in held if number < below]:
                del held[number]

    def close(self) -> None:
        self._there.clear()


def store_in(place: Place, layout: Layout, *, slots: int, chunk: int) -> Ring | KeptChunks:
    """Return memory for ``slots`` chunks of ``chunk`` samples. Raises `ConfigError` if the memory is not available."""
    if place.shares_memory:
        return Ring(layout, slots=slots, chunk=chunk, writable=True)
    needs, room = slots * chunk * sum(field.nbytes for field in layout), place.room_bytes
    if needs > room:
        raise ConfigError(
            f"the shared buffer needs {needs / 1e6:,.0f} MB, but a machine's object store has {room / 1e6:,.0f} "
            "MB: give Options(buffer=…) fewer samples, or Ray more object_store_memory"
        )
    return KeptChunks(ChunksHandle(layout, slots, chunk))
