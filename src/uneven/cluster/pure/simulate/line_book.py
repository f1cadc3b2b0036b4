"""The traffic on the links between sites, for the journal."""

from __future__ import annotations

from collections.abc import Iterator

from uneven.cluster.pure.simulate.links import Network
from uneven.cluster.pure.simulate.routes import Topology
from uneven.policy.core.records import LineRecord


class LineBook:
    """Bytes and transfers on each link between sites since the last record; a transfer counts when it starts."""

    def __init__(self, topology: Topology, network: Network) -> None:
        self._network = network
        self._lines = topology.lines
        self._speaker = {site: topology.sites.index(site) for site in topology.sites}
        self._told = dict.fromkeys(topology.lines, (0, 0))

    def records(self, iteration: int, at_s: float) -> Iterator[LineRecord]:
        """Yield a record for each link with transfers since the last call, as of the first node of its first site."""
        for ends, link in self._lines.items():
            now = int(self._network.carried[link]), round(float(self._network.carried_bytes[link]))
            before = self._told[ends]
            if now != before:
                self._told[ends] = now
                yield LineRecord(
                    rank=self._speaker[ends[0]],
                    iteration=iteration,
                    at_s=at_s,
                    line=f"{ends[0]} to {ends[1]}",
                    exchanges=now[0] - before[0],
                    sent_bytes=now[1] - before[1],
                    waited_s=0.0,
                )
