"""Entries by way of hubs: inside a group everybody tells everybody, between groups hubs tell hubs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from uneven.entries import pack
from uneven.entries.pack import shortest
from uneven.entries.picked import Array, Picked


class Overlay:
    """One speaker's part. What is handed on is in nobody's accumulator, so nothing of it is sent a second time.

    Args:
        groups: speakers, by group; the first of each is its hub.
        send, receive: a message to a rank; what the next message of a rank holds.
    """

    def __init__(
        self, groups: Sequence[Sequence[int]], rank: int, send: Callable[[int, bytes], None],
        receive: Callable[[int, int], Picked],
    ) -> None:  # fmt: skip
        self._near = next(group for group in groups if rank in group)
        self._hubs = [group[0] for group in groups]
        self._rank = rank
        self._send, self._receive = send, receive

    def heard(self, own: Picked, clock: int) -> Array:
        """The sum of what all others have sent, shape (n,).

        Args:
            own: what this speaker sends.
        """
        near, hub = [rank for rank in self._near if rank != self._rank], self._near[0]
        others = np.zeros(own.size, dtype=own.values.dtype)
        self._tell(near, own, clock)
        self._add(near, others, clock)
        if self._rank != hub:
            self._receive(hub, clock).add_to(others)
        elif len(self._hubs) > 1:
            out, far = others.copy(), np.zeros_like(others)
            own.add_to(out)
            hubs = [rank for rank in self._hubs if rank != hub]
            self._tell(hubs, sparse(out), clock)
            self._add(hubs, far, clock)
            self._tell(near, sparse(far), clock)
            others += far
        return others

    def _tell(self, ranks: Sequence[int], picked: Picked, clock: int) -> None:
        if ranks:
            message = pack(picked, clock)
            for rank in ranks:
                self._send(rank, message)

    def _add(self, ranks: Sequence[int], into: Array, clock: int) -> None:
        for rank in ranks:
            self._receive(rank, clock).add_to(into)


def sparse(vector: Array) -> Picked:
    """All of a vector that is not zero, or the vector where that takes no more bytes."""
    places = np.flatnonzero(vector)
    return shortest(Picked(len(vector), places, vector[places]), vector)
