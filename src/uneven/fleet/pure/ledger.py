"""Keep track of the chunks that readers have read and of those that may be made next.

The shared stream is a row of chunks of samples, numbered from 0 over the whole run. A ring of ``slots`` holds the
newest ones; chunk n is in slot n mod ``slots``::

      read by all │ in the ring: made, or being made                │ not yet
     ─────────────┼──────────────────┬──────────────────┬───────────┼──────────
                tail               ready               next       tail + slots
                  ▲ the slowest reader                      └ the slot of chunk ``tail`` comes next

A slot is free when every current reader has passed it, so the slowest reader limits the lead of the fastest. A reader
that leaves does not delay others. Eviction that follows the slowest reader is FLEET's rule (MLSys 2020, §1); removing
readers is ours, as the paper does not describe it.
"""

from dataclasses import dataclass, field

from uneven.errors import ConfigError


@dataclass(slots=True)
class Ledger:
    """The positions of readers and makers in one ring."""

    slots: int  # chunks that the ring holds
    floor: int = 0  # the first chunk of the next newcomer; chunks from here on are kept for it
    end: int = 0  # production stops before this chunk
    tail: int = 0  # the first chunk that a reader may still read
    ready: int = 0  # every chunk below it has been made
    next: int = 0  # the first chunk that has not been assigned to a maker
    readers: dict[str, int] = field(default_factory=dict)  # name → the first chunk that it has not read
    _making: dict[str, int] = field(default_factory=dict)
    _again: list[int] = field(default_factory=list)
    _made: set[int] = field(default_factory=set)
    _missing: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError(f"a ring of {self.slots} slots: give at least 1")
        if self.floor:  # continues an earlier run
            self.tail = self.ready = self.next = self.end = self.floor

    def join(self, reader: str) -> int:
        """Add a reader at the floor and return its first chunk. Raises `ConfigError` if it is already reading."""
        if reader in self.readers:
            raise ConfigError(f"{reader!r} reads this ring already")
        self.readers[reader] = self.floor
        return self.floor

    def leave(self, reader: str) -> None:
        """Remove a reader, and free the chunks that only it held. Idempotent."""
        self.readers.pop(reader, None)
        self._settle()

    def read(self, reader: str, upto: int) -> None:
        """Record that a reader no longer needs chunks below ``upto``.

        Raises `ConfigError` if it goes back, or beyond what has been made.
        """
        if not self.readers[reader] <= upto <= self.ready:
            raise ConfigError(
                f"{reader!r} has read up to chunk {upto}, after {self.readers[reader]}, but {self.ready} are ready"
            )
        self.readers[reader] = upto
        self._settle()

    def raise_floor(self, floor: int) -> None:
        """Let newcomers start at chunk ``floor`` from now on. Raises `ConfigError` if it goes back."""
        if floor < self.floor:
            raise ConfigError(f"the floor cannot go back from chunk {self.floor} to {floor}")
        self.floor = floor
        self._settle()

    def allow(self, end: int) -> None:
        """Allow chunks below ``end`` to be made. A chunk that is being made is finished in any case."""
        self.end = end

    def assign(self, maker: str) -> int | None:
        """Return the chunk that ``maker`` must make now; None if there is no room, or nothing to make.

        Raises `ConfigError` if it is making one.
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
        """Record that ``maker`` has made its chunk, and return the chunk. Raises `KeyError` if it was making none."""
        chunk = self._making.pop(maker)
        self._missing.discard(chunk)
        if chunk >= self.ready:
            self._made.add(chunk)
            self._go_on()
        self._settle()
        return chunk

    def making(self, maker: str) -> int | None:
        """Return the chunk that ``maker`` is making; None if it is idle."""
        return self._making.get(maker)

    def lost(self, maker: str) -> int | None:
        """Record that ``maker`` died. Its chunk, which is returned unless it was idle, will be made again."""
        chunk = self._making.pop(maker, None)
        # A chunk below `ready` was made again for a reader that missed it; if that reader has left, it is not needed.
        if chunk is not None and (chunk >= self.ready or chunk in self._missing):
            self._again.append(chunk)
            self._again.sort()  # readers wait for the lowest
        self._settle()
        return chunk

    def again(self, chunk: int) -> None:
        """Record that a chunk was lost and must be made again. Idempotent."""
        if chunk < self.ready and chunk not in self._missing:
            self._missing.add(chunk)
            self._again.append(chunk)
            self._again.sort()

    def missing(self, chunk: int) -> bool:
        """Return whether a chunk was made and lost, and has not been made again."""
        return chunk in self._missing

    @property
    def fill(self) -> float:
        """The part of the ring that holds unread chunks, 0 … 1."""
        return (self.ready - min([*self.readers.values(), self.floor])) / self.slots

    @property
    def full(self) -> bool:
        """True if no chunk can be made because the slowest reader holds the ring."""
        return not self._again and self.next < self.end and self.next >= self.tail + self.slots

    def holding(self) -> tuple[str, ...]:
        """Return the names of the readers that the others wait for: those at the tail of a full ring."""
        return tuple(sorted(name for name, at in self.readers.items() if at == self.tail)) if self.full else ()

    def _settle(self) -> None:
        if not self.readers and self.floor > self.ready:  # no reader will ever need the chunks below the floor
            self._again = [chunk for chunk in self._again if chunk >= self.floor]
            self._made = {chunk for chunk in self._made if chunk >= self.floor}
            self.next = max(self.next, self.floor)
            self.ready = self.floor
            self._go_on()
        # A maker may still write into a slot whose chunk no reader needs now.
        still = [*self.readers.values(), *self._making.values(), self.floor]
        self.tail = max(self.tail, min(still))
        if self._missing:
            self._missing = {chunk for chunk in self._missing if chunk >= self.tail}
            self._again = [chunk for chunk in self._again if chunk >= self.tail]

    def _go_on(self) -> None:
        while self.ready in self._made:
            self._made.remove(self.ready)
            self.ready += 1
