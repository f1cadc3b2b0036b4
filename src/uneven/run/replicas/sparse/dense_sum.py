"""Sums of whole vectors between speakers, with no more bytes than an all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from uneven.policy.select import pack
from uneven.policy.select.picked import Array, Picked


class WholeSum:
    """A reduce-scatter and an all-gather between speakers, 2 (K − 1) / K vectors; their order is the same on all."""

    def __init__(
        self,
        speakers: Sequence[int],
        rank: int,
        send: Callable[[int, bytes], None],
        receive: Callable[[int, int, int], Picked],
    ) -> None:
        self._speakers = tuple(speakers)
        self._rank = rank
        self._send = send
        self._receive = receive

    def of(self, own: Array, clock: int) -> Array:
        """Return the sum over all speakers, shape (n,) like ``own`` on each of them."""
        ends = np.linspace(0, len(own), len(self._speakers) + 1).astype(int)
        parts = {rank: slice(low, high) for rank, low, high in zip(self._speakers, ends[:-1], ends[1:], strict=True)}
        for rank in self._others():
            self._send(rank, _message(own[parts[rank]], clock))
        mine, total = parts[self._rank], np.empty_like(own)
        heard = {rank: self._receive(rank, clock, mine.stop - mine.start).dense() for rank in self._others()}
        heard[self._rank] = own[mine]
        total[mine] = 0
        for rank in self._speakers:  # in a fixed order, so that rounding does not depend on which speaker sums
            total[mine] += heard[rank]
        message = _message(total[mine], clock)
        for rank in self._others():
            self._send(rank, message)
        for rank in self._others():
            length = parts[rank].stop - parts[rank].start
            total[parts[rank]] = self._receive(rank, clock, length).dense()
        return total

    def _others(self) -> list[int]:
        return [rank for rank in self._speakers if rank != self._rank]


def _message(values: Array, clock: int) -> bytes:
    return pack(Picked(len(values), None, values), clock)
