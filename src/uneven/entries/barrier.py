"""Gaia's selective barrier: which entries must not be read before they have come, and who is told so. Pure.

A site whose line to another one cannot carry its significant entries in time says their places first, in a short
message that overtakes them. Who has heard it reads none of them until they are there. Messages of a line are numbered
from 1 on, at both ends alike, so it does not matter which of the two comes first.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from uneven.entries.picked import Array


class Backlog:
    """Messages under way to one other site, until it says that it has taken them in.

    Args:
        most_bytes: that may be under way before places are announced.
    """

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._under_way: deque[tuple[int, int]] = deque()  # number, bytes
        self._sent = 0

    @property
    def under_way_bytes(self) -> int:
        """Bytes that were sent and not taken in yet, as far as one has heard."""
        return sum(length for _, length in self._under_way)

    def leaves(self, length: int) -> tuple[int, bool]:
        """A message of so many bytes is about to leave.

        Returns:
            Its number, and whether its places are to be announced: whether more is under way with it than may be.
        """
        self._sent += 1
        self._under_way.append((self._sent, length))
        return self._sent, self.under_way_bytes > self._most_bytes

    def taken(self, number: int) -> None:
        """The other site has taken in all messages up to this one."""
        while self._under_way and self._under_way[0][0] <= number:
            self._under_way.popleft()


class Barrier:
    """Entries that must not be read yet, by who has announced them and in which message they come.

    What several have announced stays barred until all of them have delivered.
    """

    def __init__(self) -> None:
        self._announced: dict[int, dict[int, Array | None]] = {}  # source → number → places, None for all
        self._taken: dict[int, int] = {}

    def announced(self, source: int, number: int, places: Array | None) -> None:
        """These places come in that message of a source; None are all. One that was taken in already bars nothing."""
        if number > self._taken.get(source, 0) and (places is None or len(places)):
            self._announced.setdefault(source, {})[number] = places

    def taken(self, source: int, number: int) -> None:
        """All messages of a source up to this one are in the replica."""
        self._taken[source] = max(number, self._taken.get(source, 0))
        ahead = self._announced.get(source, {})
        for one in [one for one in ahead if one <= number]:
            del ahead[one]

    def due(self, reads: Array | None = None) -> dict[int, int]:
        """Source → number of the message that has to be in the replica before these entries are read.

        Args:
            reads: places, ascending; None are all, which a step of a network reads.
        """
        found = {}
        for source, ahead in self._announced.items():
            numbers = [number for number, places in ahead.items() if _meet(places, reads)]
            if numbers:
                found[source] = max(numbers)
        return found


def _meet(places: Array | None, reads: Array | None) -> bool:
    if places is None or reads is None:
        return reads is None or len(reads) > 0
    return bool(np.isin(places, reads, assume_unique=True).any())
