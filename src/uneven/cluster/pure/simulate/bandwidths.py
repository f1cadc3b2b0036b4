"""Thresholds that keep the messages between sites within a bandwidth, in virtual time."""

from __future__ import annotations

from dataclasses import replace

from uneven.policy.core.actions import Exchange, Significant
from uneven.policy.select import BandwidthControl


class Bandwidths:
    """The rule of :class:`~uneven.policy.select.BandwidthControl`, applied by the first worker of each site."""

    def __init__(self) -> None:
        self._controls: dict[int, BandwidthControl] = {}
        self._since: dict[int, tuple[float, float]] = {}  # when the last exchange began, and what was sent in it

    def within(self, rank: int, exchange: Exchange, now_s: float) -> Exchange:
        select = exchange.select
        if not isinstance(select, Significant) or not self._speaks(rank, exchange):
            return exchange
        control = self._controls.get(rank)
        if control is None:
            if (first := select.control()) is not None:
                self._controls[rank], self._since[rank] = first, (now_s, 0.0)
            return exchange
        since_s, sent_bytes = self._since[rank]
        # As in a real run, all bytes between the starts of two exchanges count, forwarded or the worker's own.
        control.measured(sent_bytes, now_s - since_s)
        self._since[rank] = now_s, 0.0
        return replace(exchange, select=replace(select, threshold=control.applied(select.threshold)))

    def sent(self, rank: int, exchange: Exchange, size_bytes: float) -> None:
        """Record the size of a worker's message to each other site, unless hubs forward it."""
        if not exchange.far.hubs and self._speaks(rank, exchange):
            self.more(rank, size_bytes * (len(exchange.parties) - 1))

    def more(self, rank: int, sent_bytes: float) -> None:
        if rank in self._controls:
            since_s, before = self._since[rank]
            self._since[rank] = since_s, before + sent_bytes

    def passes(self, rank: int, exchange: Exchange) -> float:
        """Return the number of entries above the current threshold relative to the policy's."""
        control, select = self._controls.get(rank), exchange.select
        if control is None or not isinstance(select, Significant) or select.threshold <= 0:
            return 1.0
        # Half as many exceed twice the threshold: on a small convolutional network 13, 7.0 and 3.8 % exceeded
        # thresholds of 5, 10 and 20 %.
        return select.threshold / control.applied(select.threshold)

    def _speaks(self, rank: int, exchange: Exchange) -> bool:
        return any(party[0] == rank for party in exchange.parties)
