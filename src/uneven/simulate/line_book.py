"""What the lines between sites have carried, for the journal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from uneven.core.records import LineRecord
from uneven.simulate.links import Network
from uneven.simulate.routes import Topology


class LineBook:
    """Bytes and transfers on each line, from one record to the next. A transfer counts when it begins."""

    def __init__(self, topology: Topology, network: Network) -> None:
        self._network = network
        self._lines = topology.lines
        self._speaker = {site: topology.sites.index(site) for site in topology.sites}
        self._told = dict.fromkeys(topology.lines, (0, 0))

    def records(self, iteration: int, at_s: float) -> Iterator[LineRecord]:
        """What has begun on each line since the records before; nothing of a line without a transfer.

        It is written as of the first node of the site where the line begins; nobody's waiting is told.
        """
        for ends, link in self._lines.items():
            now = int(self._network.carried[link]), round(float(self._network.carried_bytes[link]))
            before = self._told[ends]
            if now != before:
                self._told[ends] = now
                yield LineRecord(
                    rank=self._speaker[ends[0]], iteration=iteration, at_s=at_s, line=f"{ends[0]} to {ends[1]}",
                    exchanges=now[0] - before[0], sent_bytes=now[1] - before[1], waited_s=0.0,
                )  # fmt: skip
