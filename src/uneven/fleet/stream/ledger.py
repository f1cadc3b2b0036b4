"""Who has read which chunk, and what may be made next. Pure.

The shared stream is a row of chunks of samples, numbered from 0 over the whole run. A ring of ``slots`` holds the
newest ones; chunk n lies in slot n mod ``slots``::

      read by all │ in the ring: made, or being made                │ not yet
     ─────────────┼──────────────────┬──────────────────┬───────────┼──────────
                tail               ready               next       tail + slots
                  ▲ the slowest reader                      └ the slot of chunk ``tail`` comes next

A slot is free when every reader that is still there has passed it, so the slowest reader bounds how far the fastest
may lead, and a reader that leaves holds nobody back. That eviction follows the slowest is FLEET's rule (MLSys 2020,
§1); that readers can be taken out is ours, the paper does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from uneven.errors import ConfigError


@dataclass(slots=True)
class Ledger:
    """The book of one ring.

    Attributes:
        slots: chunks that the ring holds.
        floor: where the next newcomer will begin; what lies from here on is kept for it.
        end: production stops before this chunk.
        tail: the first chunk that somebody may still read.
        ready: every chunk below it has been made.
        next: the first chunk that has not been handed to a maker.
        readers: who reads → the first chunk that it has not read.
    """

    slots: int
    floor: int = 0
    end: int = 0
    tail: int = 0
    ready: int = 0
    next: int = 0
    readers: dict[str, int] = field(default_factory=dict)
    _making: dict[str, int] = field(default_factory=dict)
    _again: list[int] = field(default_factory=list)
    _made: set[int] = field(default_factory=set)
    _missing: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError(f"a ring of {self.slots} slots holds nothing: give it at least 1")
        if self.floor:  # a run that goes on where another one ended
            self.tail = self.ready = self.next = self.end = self.floor

    def join(self, reader: str) -> int:
        """A reader begins at the floor.

        Returns:
            The first chunk that it reads.

        Raises:
            ConfigError: somebody of that name reads already.
        """
        if reader in self.readers:
            raise ConfigError(f"{reader!r} reads this ring already")
        self.readers[reader] = self.floor
        return self.floor

    def leave(self, reader: str) -> None:
        """A reader converged, failed or died; what only it held is free. Leaving twice is no error."""
        self.readers.pop(reader, None)
        self._settle()

    def read(self, reader: str, upto: int) -> None:
        """A reader needs nothing below chunk ``upto`` any more.

        Raises:
            ConfigError: it goes back, or beyond what has been made.
        """
        if not self.readers[reader] <= upto <= self.ready:
            raise ConfigError(
                f"{reader!r} says that it has read up to chunk {upto}, but it was at {self.readers[reader]} and "
                f"{self.ready} are ready"
            )
        self.readers[reader] = upto
        self._settle()

    def raise_floor(self, floor: int) -> None:
        """Newcomers begin at chunk ``floor`` from now on.

        Raises:
            ConfigError: it goes back.
        """
        if floor < self.floor:
            raise ConfigError(f"the floor cannot go back from chunk {self.floor} to {floor}")
        self.floor = floor
        self._settle()

    def allow(self, end: int) -> None:
        """Chunks below ``end`` may be made. What is in the making is finished all the same."""
        self.end = end

    def assign(self, maker: str) -> int | None:
        """The chunk that ``maker`` is to make now; None if there is no room, or nothing to make.

        Raises:
            ConfigError: it is making one.
        """
        if maker in self._making:
            raise ConfigError(f"{maker!r} is still making chunk {self._making[maker]}")
        if self._again:
            chunk = self._again.pop(0)
        elif self.next < min(self.end, self.tail + self.slots):
            chunk, self.next = self.next, self.next + 1
        else:
            return None
        self._making[maker] = chunk
        return chunk

    def made(self, maker: str) -> int:
        """``maker`` has made its chunk.

        Returns:
            The chunk's number.

        Raises:
            KeyError: it was making none.
        """
        chunk = self._making.pop(maker)
        self._missing.discard(chunk)
        if chunk >= self.ready:
            self._made.add(chunk)
            self._go_on()
        self._settle()
        return chunk

    def making(self, maker: str) -> int | None:
        """The chunk that ``maker`` is making; None if it is idle."""
        return self._making.get(maker)

    def lost(self, maker: str) -> int | None:
        """``maker`` died; its chunk is made again by another one.

        Returns:
            That chunk, or None if it was idle.
        """
        chunk = self._making.pop(maker, None)
        if chunk is not None and (chunk >= self.ready or chunk in self._missing):
            self._again.append(chunk)
            self._again.sort()  # readers wait for the lowest
        self._settle()
        return chunk

    def again(self, chunk: int) -> None:
        """A chunk that had been made is gone, and has to be made once more. Twice is no error."""
        if chunk < self.ready and chunk not in self._missing:
            self._missing.add(chunk)
            self._again.append(chunk)
            self._again.sort()

    def missing(self, chunk: int) -> bool:
        """Whether a chunk was made, was lost, and has not been made again."""
        return chunk in self._missing

    @property
    def fill(self) -> float:
        """Part of the ring that holds what somebody has still to read, 0 … 1."""
        return (self.ready - min([*self.readers.values(), self.floor])) / self.slots

    @property
    def full(self) -> bool:
        """Whether nothing can be made because the slowest reader has not gone on."""
        return not self._again and self.next < self.end and self.next >= self.tail + self.slots

    def holding(self) -> tuple[str, ...]:
        """The readers that the others wait for: those at the tail of a full ring, by name."""
        return tuple(sorted(name for name, at in self.readers.items() if at == self.tail)) if self.full else ()

    def _settle(self) -> None:
        if not self.readers and self.floor > self.ready:  # nobody will ever read what lies below the floor
            self._again = [chunk for chunk in self._again if chunk >= self.floor]
            self._made = {chunk for chunk in self._made if chunk >= self.floor}
            self.next = max(self.next, self.floor)
            self.ready = self.floor
            self._go_on()
        # A maker may still be writing into a slot whose chunk nobody wants any more.
        still = [*self.readers.values(), *self._making.values(), self.floor]
        self.tail = max(self.tail, min(still))
        if self._missing:
            self._missing = {chunk for chunk in self._missing if chunk >= self.tail}
            self._again = [chunk for chunk in self._again if chunk >= self.tail]

    def _go_on(self) -> None:
        while self.ready in self._made:
            self._made.remove(self.ready)
            self.ready += 1
