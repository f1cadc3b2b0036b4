"""Thresholds that keep what sites send each other within a bandwidth, in virtual time. Pure."""

from __future__ import annotations

from dataclasses import replace

from uneven.core.actions import Exchange, Significant
from uneven.entries import BandwidthControl


class Bandwidths:
    """Follows the rule of :class:`~uneven.entries.BandwidthControl`, the first of each site for itself.

    As in a real run, all that was sent from the beginning of one exchange to that of the next counts, handed on or own.
    """

    def __init__(self) -> None:
        self._controls: dict[int, BandwidthControl] = {}
        self._since: dict[int, tuple[float, float]] = {}  # when the last exchange began, and what was sent in it

    def within(self, rank: int, exchange: Exchange, now_s: float) -> Exchange:
        """The exchange that a worker begins now, with the threshold that it takes for it."""
        select = exchange.select
        if not isinstance(select, Significant) or not self._speaks(rank, exchange):
            return exchange
        control = self._controls.get(rank)
        if control is None:
            if (first := select.control()) is not None:
                self._controls[rank], self._since[rank] = first, (now_s, 0.0)
            return exchange
        since_s, sent_bytes = self._since[rank]
        control.measured(sent_bytes, now_s - since_s)
        self._since[rank] = now_s, 0.0
        return replace(exchange, select=replace(select, threshold=control.applied(select.threshold)))

    def sent(self, rank: int, exchange: Exchange, size_bytes: float) -> None:
        """So large is what a worker sends each other site, where no hub hands it on, in the exchange that it begins."""
        if not exchange.groups and self._speaks(rank, exchange):
            self.more(rank, size_bytes * (len(exchange.parties) - 1))

    def more(self, rank: int, sent_bytes: float) -> None:
        """A worker sends so much more to other sites."""
        if rank in self._controls:
            since_s, before = self._since[rank]
            self._since[rank] = since_s, before + sent_bytes

    def passes(self, rank: int, exchange: Exchange) -> float:
        """Entries that pass the threshold now, as a part of those that pass the one that was asked for.

        Half as many pass twice the threshold: on a small convolutional network 13, 7.0 and 3.8 % passed thresholds of
        5, 10 and 20 %.
        """
        control, select = self._controls.get(rank), exchange.select
        if control is None or not isinstance(select, Significant) or select.threshold <= 0:
            return 1.0
        return select.threshold / control.applied(select.threshold)

    def _speaks(self, rank: int, exchange: Exchange) -> bool:
        return any(party[0] == rank for party in exchange.parties)
