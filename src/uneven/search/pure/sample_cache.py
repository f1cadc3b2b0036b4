"""Track prepared samples for trials that read the same data at different times.

A trial's samples in its epoch e depend on e only, so a chunk of samples is prepared once and cached for later trials,
if there is room. A reader, the process on a device, reads its epoch chunk by chunk::

    want(1, 40) ── is it there? ── yes ──► its slot, and 40 is not taken away before reader 1 wants another
                        └── no ──► a preprocessor makes it, and the next ones ahead of time
"""

from dataclasses import dataclass, field

from uneven.errors import ConfigError


@dataclass(slots=True)
class SampleCache:
    """The index of the cached chunks."""

    slots: int  # chunks that it holds
    per_pass: int  # chunks of an epoch
    ahead: int = 2  # number of chunks made ahead of each reader
    where: dict[int, int] = field(default_factory=dict)  # chunk → its slot, also while it is being made
    ready: set[int] = field(default_factory=set)  # chunks that are complete
    # reader → the chunk that it reads or waits for, and the last one of its epoch
    reading: dict[int, tuple[int, int]] = field(default_factory=dict)
    _making: dict[str, int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.slots < 1 or self.per_pass < 1:
            raise ConfigError(f"a cache of {self.slots} slots for {self.per_pass} chunks: give at least one of each")
        self._free = list(range(self.slots))

    def want(self, reader: int, chunk: int, last: int) -> int | None:
        """Record that a reader needs this chunk and no earlier one. Return its slot, or None while it is not ready.

        `last` is the last chunk that it will read in this epoch.
        """
        self.reading[reader] = chunk, last
        return self.where[chunk] if chunk in self.ready else None

    def waiting(self) -> set[int]:
        """Return the readers whose chunk is not ready."""
        return {reader for reader, (chunk, _) in self.reading.items() if chunk not in self.ready}

    def leave(self, reader: int) -> None:
        self.reading.pop(reader, None)

    def assign(self, maker: str) -> tuple[int, int] | None:
        """Return the chunk that ``maker`` must make and its slot; None if none is wanted or there is no room.

        Raises `ConfigError` if it is making one.
        """
        if maker in self._making:
            raise ConfigError(f"{maker!r} is still making chunk {self._making[maker]}")
        wanted = self.wanted()
        slot = self._room(wanted) if wanted is not None else None
        if wanted is None or slot is None:
            return None
        self.where[wanted] = slot
        self._making[maker] = wanted
        return wanted, slot

    def wanted(self) -> int | None:
        """Return the most needed chunk: first those that readers wait for, then those that they will read next."""
        for far in range(self.ahead + 1):
            for chunk, last in self.reading.values():
                if chunk + far <= last and chunk + far not in self.where:
                    return chunk + far
        return None

    def made(self, maker: str) -> dict[int, int]:
        """Record that ``maker`` has made its chunk. Return the readers that wait for it → its slot.

        Raises `KeyError` if it was making none.
        """
        chunk = self._making.pop(maker)
        self.ready.add(chunk)
        return {reader: self.where[chunk] for reader, (wanted, _) in self.reading.items() if wanted == chunk}

    def lost(self, maker: str) -> int | None:
        """Record that ``maker`` died, and return its chunk, which is wanted again."""
        chunk = self._making.pop(maker, None)
        if chunk is not None:
            self._free.append(self.where.pop(chunk))
        return chunk

    def _room(self, wanted: int) -> int | None:
        if self._free:
            return self._free.pop(0)
        needed = {at for chunk, last in self.reading.values() for at in range(chunk, min(last, chunk + self.ahead) + 1)}
        spare = self.ready - needed
        used = {chunk for chunk, _ in self.reading.values()}
        if not spare and wanted in used:
            # If room is short, a reader that waits gets that of chunks which were made ahead.
            spare = self.ready - used
        if not spare:
            return None
        # The highest epoch goes first, because the fewest trials reach it.
        gone = max(spare, key=lambda chunk: (chunk // self.per_pass, -chunk))
        self.ready.remove(gone)
        return self.where.pop(gone)


def slots_for(room_bytes: float, chunk_bytes: int, per_pass: int, readers: int, ahead: int, passes: float) -> int:
    """Return how many chunks to cache: as many as fit and exist, and enough for all trials to progress.

    `passes` is the number of epochs of the longest trial; infinite if unknown. Raises `ConfigError` if not even the
    chunks that trials read at the same time fit.
    """
    # One chunk in use per reader, and one that is being made.
    least = readers + 1
    fit = int(room_bytes // max(chunk_bytes, 1))
    if fit < least:
        raise ConfigError(
            f"shared data: {readers} trials at a time need {least * chunk_bytes / 1e6:,.1f} MB, but data_bytes "
            f"allows {room_bytes / 1e6:,.1f} MB: give data_bytes={least * chunk_bytes} or more, or a smaller chunk"
        )
    return int(min(fit, max(least + readers * ahead, per_pass * passes)))
