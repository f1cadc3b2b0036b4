"""Which namespaces, cables and routes an emulated network has. Pure.

Without lines between sites, all nodes hang on one switch. With them, every site has a switch of its own, and there is a
cable between each two of those; a switch is its site's router as well::

    node 0      node 1               node 2
    eth0        eth0                 eth0
      ║           ║                    ║
    port0       port1                port2
    └── switch of site 0 ──┐      ┌── switch of site 1 ──┘
                         line1 ══ line0

What leaves through a device has that device's bandwidth and latency: a node's way up at its ``eth0``, its way down at
its port, each direction of a line at the end where it begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uneven.cluster.spec import Node, SiteLink
from uneven.emulate import names

_QUEUED_FRAMES = 10_000
"""What may wait between the kernel and a process that delays packets; full, it drops them."""


class CableEnd(NamedTuple):
    """An end of a cable.

    Attributes:
        place: number of the namespace that it is in.
    """

    place: int
    name: str


@dataclass(frozen=True, slots=True)
class Cable:
    """Two devices; what leaves through one arrives at the other.

    Attributes:
        latency_s: one way, the same in both directions.
    """

    ends: tuple[CableEnd, CableEnd]
    latency_s: float


class Wiring:
    """The network of a description.

    Args:
        nodes: in the order of the description.
        links: the lines between sites.

    Attributes:
        cables: of the nodes, in their order, then those between sites.
    """

    def __init__(self, nodes: Sequence[Node], links: Sequence[SiteLink] = ()) -> None:
        sites = list(dict.fromkeys(node.site for node in nodes)) if links else [""]
        self._site_of = [sites.index(node.site) if links else 0 for node in nodes]
        self._sites = {name: site for site, name in enumerate(sites)}
        latency_s = {frozenset(link.between): link.latency_s for link in links}
        own = [Cable((self.up(index), self.down(index)), node.latency_s) for index, node in enumerate(nodes)]
        between = [
            Cable((self.line(one, other), self.line(other, one)), latency_s.get(frozenset((one, other)), 0.0))
            for one, site in self._sites.items()
            for other, far in self._sites.items()
            if site < far
        ]
        self.cables = (*own, *between)

    @property
    def places(self) -> range:
        """Numbers of the namespaces: first the switches, then the nodes."""
        return range(len(self._sites) + len(self._site_of))

    @property
    def routers(self) -> range:
        """Numbers of the namespaces that hand packets on from site to site."""
        return range(len(self._sites) if len(self._sites) > 1 else 0)

    def node(self, index: int) -> int:
        """A node's namespace."""
        return len(self._sites) + index

    def up(self, index: int) -> CableEnd:
        """Where a node's way up begins."""
        return CableEnd(self.node(index), names.INTERFACE)

    def down(self, index: int) -> CableEnd:
        """Where a node's way down begins."""
        return CableEnd(self._site_of[index], names.port(index))

    def line(self, here: str, there: str) -> CableEnd:
        """Where the line from one site to another begins."""
        return CableEnd(self._sites[here], names.line(self._sites[there]))

    def lines_of(self, device: CableEnd) -> list[CableEnd]:
        """Where the lines begin that lead away from the site of a node, by a device of this node."""
        site = self._site_of[device.place - len(self._sites)]
        return [CableEnd(site, names.line(other)) for other in self.routers if other != site]

    def set_up(self, place: int, held: Sequence[int], made: Collection[CableEnd] = ()) -> list[str]:
        """Lines for ``ip -batch`` that set a namespace up; those of the switches, which come first, lay the cables.

        Args:
            held: the namespaces' descriptors, by number.
            made: devices that are there already.
        """
        lines = ["link set lo up"]
        if place in range(len(self._sites)):
            lines += [f"link add {names.SWITCH} type bridge", f"link set {names.SWITCH} up"]
            for cable in self.cables:
                lines += self._plug_in(place, cable, held, made)
            return lines + list(self._router(place))
        index, link = place - len(self._sites), names.INTERFACE
        if self.up(index) in made:
            lines.append(f"link set {link} txqueuelen {_QUEUED_FRAMES}")
        address = f"addr add {names.address(index)}/{names.PREFIX_LENGTH} dev {link}"
        # No IPv6 address: a library that takes an interface's first address is to find the one that is routed.
        lines += [f"link set {link} addrgenmode none", address, f"link set {link} up"]
        site = self._site_of[index]
        return lines + [f"route add {names.address(far)} via {names.gateway(site)}" for far in self._elsewhere(site)]

    def _plug_in(self, place: int, cable: Cable, held: Sequence[int], made: Collection[CableEnd]) -> Iterator[str]:
        for end, other in (cable.ends, cable.ends[::-1]):
            if end.place != place:
                continue
            if end in made:
                yield f"link set {end.name} txqueuelen {_QUEUED_FRAMES}"
            elif other.place > place:  # else the other one's namespace has laid it
                yield f"link add {end.name} type veth peer name {other.name} netns /proc/self/fd/{held[other.place]}"
            is_port = other.place >= len(self._sites)
            yield f"link set {end.name} master {names.SWITCH} up" if is_port else f"link set {end.name} up"

    def _router(self, site: int) -> Iterator[str]:
        """Address of a switch that is a router too, and its routes to the nodes of other sites."""
        if site in self.routers:
            yield f"addr add {names.gateway(site)}/{names.PREFIX_LENGTH} dev {names.SWITCH}"
            for far in self._elsewhere(site):
                other = self._site_of[far]
                yield f"route add {names.address(far)} via {names.gateway(other)} dev {names.line(other)} onlink"

    def _elsewhere(self, site: int) -> list[int]:
        return [index for index, other in enumerate(self._site_of) if other != site]
