"""Gaia's selective barrier: entries that must not be read before they arrive.

A site whose line cannot carry its significant entries in time first sends their places, in a short message that
overtakes them. The receiver reads none of these entries until they arrive. Both ends number the messages of a line from
1, so their order of arrival does not matter.
"""

from collections import deque

import numpy as np

from uneven.policy.select.picked import Array


class Backlog:
    """The messages in flight to one other site; above ``most_bytes``, places are announced."""

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._under_way: deque[tuple[int, int]] = deque()  # (number, bytes)
        self._sent = 0

    @property
    def under_way_bytes(self) -> int:
        """The bytes sent and not confirmed yet."""
        return sum(length for _, length in self._under_way)

    def leaves(self, length: int) -> tuple[int, bool]:
        """Register a message of ``length`` bytes; return its number, and whether to announce its places."""
        self._sent += 1
        self._under_way.append((self._sent, length))
        return self._sent, self.under_way_bytes > self._most_bytes

    def taken(self, number: int) -> None:
        """Record that the other site has applied all messages up to ``number``."""
        while self._under_way and self._under_way[0][0] <= number:
            self._under_way.popleft()


class Barrier:
    """The entries that must not be read yet, by source and message.

    An entry announced by several sources is barred until all of them have delivered.
    """

    def __init__(self) -> None:
        self._announced: dict[int, dict[int, Array | None]] = {}  # source → number → places, None for all
        self._taken: dict[int, int] = {}

    def announced(self, source: int, number: int, places: Array | None) -> None:
        """Bar the places (n,), or all for None, of a message, unless it has been applied already."""
        # The announcement may arrive after its message.
        if number > self._taken.get(source, 0) and (places is None or len(places)):
            self._announced.setdefault(source, {})[number] = places

    def taken(self, source: int, number: int) -> None:
        """Record that all messages of a source up to ``number`` are applied."""
        self._taken[source] = max(number, self._taken.get(source, 0))
        ahead = self._announced.get(source, {})
        for one in [one for one in ahead if one <= number]:
            del ahead[one]

    def due(self, reads: Array | None = None) -> dict[int, int]:
        """Return source → number of the message to apply before reading ``reads`` (n,), ascending; None for all."""
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
