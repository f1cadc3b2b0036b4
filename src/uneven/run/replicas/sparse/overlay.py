"""Entries by way of hubs: all-to-all inside a group, and between the hubs of groups."""

from collections.abc import Callable, Sequence

import numpy as np

from uneven.policy.select import pack
from uneven.policy.select.pack import shortest
from uneven.policy.select.picked import Array, Picked


class Overlay:
    """One speaker's part; the first speaker of each group is its hub."""

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        rank: int,
        send: Callable[[int, bytes], None],
        receive: Callable[[int, int], Picked],
    ) -> None:
        self._near = next(group for group in groups if rank in group)
        self._hubs = [group[0] for group in groups]
        self._rank = rank
        self._send = send
        self._receive = receive

    def heard(self, own: Picked, clock: int) -> Array:
        """Return the sum of all other speakers' entries, shape (n,); ``own`` are this speaker's."""
        near, hub = [rank for rank in self._near if rank != self._rank], self._near[0]
        others = np.zeros(own.size, dtype=own.values.dtype)
        self._tell(near, own, clock)
        self._add(near, others, clock)
        if self._rank != hub:
            self._receive(hub, clock).add_to(others)
        elif len(self._hubs) > 1:
            # A hub forwards its group's entries without its accumulator, so nothing is sent twice.
            # `others` holds the group's entries now, and gets those of the other groups below.
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
    """Return the nonzero entries of a vector (n,), or all of it if that is not longer."""
    places = np.flatnonzero(vector)
    return shortest(Picked(len(vector), places, vector[places]), vector)
