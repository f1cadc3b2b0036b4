"""One more number that rides on a bucket of gradients, so that saying it costs no message of its own."""

from __future__ import annotations

import torch

_LARGEST_BYTES = 1 << 20
"""A bucket up to this size is copied to make room for the number; DDP's first bucket is never larger unless a single
parameter is. Where all are larger, nothing rides."""


class Rider:
    """Carries whether anybody calls, on the smallest bucket of each exchange, for gradients in host memory.

    Which bucket that is follows from the sizes of the last exchange, which are the same on every rank.
    """

    def __init__(self) -> None:
        self.calling = False
        self.heard = False
        self._sizes: list[int] = []  # bytes of each bucket of this exchange, in order
        self._index = -1  # the bucket of this exchange that is ridden on
        self._bucket: torch.Tensor | None = None  # the one that is ridden on now
        self._staged = self._room = self._seat = torch.empty(0)  # the copy, and its two parts

    def mount(self, bucket: torch.Tensor) -> torch.Tensor:
        """What is to be summed up instead of ``bucket``: itself, or a copy with one more number at its end."""
        index = len(self._sizes)
        self._sizes.append(bucket.numel() * bucket.element_size())
        if index != self._index:
            return bucket
        if self._room.numel() != bucket.numel() or self._room.dtype != bucket.dtype:
            self._staged = torch.empty(bucket.numel() + 1, dtype=bucket.dtype)
            self._room, self._seat = self._staged[:-1], self._staged[-1:]
        self._room.copy_(bucket)
        self._seat.fill_(float(self.calling))
        self._bucket = bucket
        return self._staged

    def dismount(self) -> None:
        """All sums are there: give the bucket its own, and hear whether anybody called."""
        if self._bucket is not None:
            self._bucket.copy_(self._room)
            self.heard = self.heard or self._seat.item() > 0
        smallest = min(self._sizes)
        self._index = self._sizes.index(smallest) if smallest <= _LARGEST_BYTES else -1
        self._sizes, self._bucket = [], None

    def take(self) -> bool | None:
        """Whether anybody has called since this was last asked, the same on every rank; None where nobody could."""
        heard, self.heard = self.heard, False
        return heard if self._index >= 0 else None
