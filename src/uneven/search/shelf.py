"""Which prepared samples lie where, for trials that read the same data at different times. Pure.

What trial i sees in its epoch e depends on e alone, so a chunk of samples is prepared once and lies on the shelf for
whoever comes to it later, as far as there is room. A reader, the process on a device, takes its epoch chunk by chunk::

    want(1, 40) ── is it there? ── yes ──► its slot, and 40 is not taken away before reader 1 wants another
                        └── no ──► a preprocessor makes it, and the next ones ahead of time

Where room is short, the epochs that fewest trials come to go first: the highest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from uneven.errors import ConfigError


@dataclass(slots=True)
class Shelf:
    """The book of the shelf.

    Attributes:
        slots: chunks that it holds.
        per_pass: chunks of an epoch.
        ahead: how many chunks are made ahead of each reader.
        where: chunk → its slot, also while it is being made.
        ready: chunks that are there.
        reading: reader → the chunk that it reads or waits for, and the last one of its epoch.
    """

    slots: int
    per_pass: int
    ahead: int = 2
    where: dict[int, int] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    reading: dict[int, tuple[int, int]] = field(default_factory=dict)
    _making: dict[str, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.slots < 1 or self.per_pass < 1:
            raise ConfigError(f"a shelf of {self.slots} slots for {self.per_pass} chunks: give at least one of each")
        self._free = list(range(self.slots))

    def want(self, reader: int, chunk: int, last: int) -> int | None:
        """A reader takes this chunk next, and none before it any more; its slot, None while it is not there.

        Args:
            last: of those that it will read in this epoch.
        """
        self.reading[reader] = chunk, last
        return self.where[chunk] if chunk in self.ready else None

    def leave(self, reader: int) -> None:
        """It reads no more. Twice is no error."""
        self.reading.pop(reader, None)

    def assign(self, maker: str) -> tuple[int, int] | None:
        """The chunk that ``maker`` is to make, and in which slot; None if nothing is wanted or there is no room.

        Raises:
            ConfigError: it is making one.
        """
        if maker in self._making:
            raise ConfigError(f"{maker!r} is still making chunk {self._making[maker]}")
        wanted = self.wanted()
        slot = self._room() if wanted is not None else None
        if wanted is None or slot is None:
            return None
        self.where[wanted] = slot
        self._making[maker] = wanted
        return wanted, slot

    def wanted(self) -> int | None:
        """The chunk that is needed most: first what readers wait for, then what they will read next."""
        for far in range(self.ahead + 1):
            for chunk, last in self.reading.values():
                if chunk + far <= last and chunk + far not in self.where:
                    return chunk + far
        return None

    def made(self, maker: str) -> dict[int, int]:
        """``maker`` has made its chunk; who waits for it → its slot.

        Raises:
            KeyError: it was making none.
        """
        chunk = self._making.pop(maker)
        self.ready.add(chunk)
        return {reader: self.where[chunk] for reader, (wanted, _) in self.reading.items() if wanted == chunk}

    def lost(self, maker: str) -> int | None:
        """``maker`` died; the chunk that it was making, which is wanted again."""
        chunk = self._making.pop(maker, None)
        if chunk is not None:
            self._free.append(self.where.pop(chunk))
        return chunk

    def _room(self) -> int | None:
        if self._free:
            return self._free.pop(0)
        needed = {at for chunk, last in self.reading.values() for at in range(chunk, min(last, chunk + self.ahead) + 1)}
        spare = self.ready - needed
        if not spare:
            spare = self.ready - {chunk for chunk, _ in self.reading.values()}
        if not spare:
            return None
        gone = max(spare, key=lambda chunk: (chunk // self.per_pass, -chunk))
        self.ready.remove(gone)
        return self.where.pop(gone)


def slots_for(room_bytes: float, chunk_bytes: int, per_pass: int, readers: int, ahead: int, passes: float) -> int:
    """How many chunks the shelf holds: what fits, no more than there are, and enough for all to go on.

    Args:
        passes: how many epochs the longest trial has; infinite if that is not known.

    Raises:
        ConfigError: not even what the trials read at the same time fits.
    """
    least = readers + 1
    fit = int(room_bytes // max(chunk_bytes, 1))
    if fit < least:
        raise ConfigError(
            f"shared data: {readers} trials at once need {least * chunk_bytes / 1e6:,.1f} MB, and data_bytes allows "
            f"{room_bytes / 1e6:,.1f} MB: give data_bytes={least * chunk_bytes} or more, or a smaller chunk"
        )
    return int(min(fit, max(least + readers * ahead, per_pass * passes)))
