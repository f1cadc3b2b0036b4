"""The namespaces, cables and routes of an emulated network.

Without links between sites, all nodes have one switch. With them, each site has its own switch, with a cable to every
other one; a switch is also its site's router::

    node 0      node 1               node 2
    eth0        eth0                 eth0
      ║           ║                    ║
    port0       port1                port2
    └── switch of site 0 ──┐      ┌── switch of site 1 ──┘
                         line1 ══ line0

A device has the bandwidth and latency of the traffic out of it: a node's uplink at its ``eth0``, its downlink at its
port, each direction of a link at the end where it starts.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uneven.cluster.emulate.pure import names
from uneven.cluster.pure.describe.spec import Node, SiteLink

_QUEUED_FRAMES = 10_000
"""The length of the queue between the kernel and a process that delays packets; a full one drops them."""


class CableEnd(NamedTuple):
    """An end of a cable, in the namespace with number ``place``."""

    place: int
    name: str


@dataclass(frozen=True, slots=True)
class Cable:
    """Two devices; frames out of one arrive at the other."""

    ends: tuple[CableEnd, CableEnd]
    latency_s: float  # one way, the same in both directions


class Wiring:
    """The network of a description; ``cables`` has those of the nodes, in their order, then those between sites."""

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
        """The numbers of the namespaces: first the switches, then the nodes."""
        return range(len(self._sites) + len(self._site_of))

    @property
    def routers(self) -> range:
        """The numbers of the namespaces that forward packets between sites."""
        return range(len(self._sites) if len(self._sites) > 1 else 0)

    def node(self, index: int) -> int:
        return len(self._sites) + index

    def up(self, index: int) -> CableEnd:
        return CableEnd(self.node(index), names.INTERFACE)

    def down(self, index: int) -> CableEnd:
        return CableEnd(self._site_of[index], names.port(index))

    def line(self, here: str, there: str) -> CableEnd:
        return CableEnd(self._sites[here], names.line(self._sites[there]))

    def lines_of(self, device: CableEnd) -> list[CableEnd]:
        """Return the starts of the links that lead away from a node's site, given a device of this node."""
        site = self._site_of[device.place - len(self._sites)]
        return [CableEnd(site, names.line(other)) for other in self.routers if other != site]

    def set_up(self, place: int, held: Sequence[int], made: Collection[CableEnd] = ()) -> list[str]:
        """Return ``ip -batch`` lines that set a namespace up; the switches come first and make the cables. ``held`` has
        the namespaces' descriptors, ``made`` the devices that exist."""
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
        # No IPv6 address: a library that takes an interface's first address must find the one that is routed.
        lines += [f"link set {link} addrgenmode none", address, f"link set {link} up"]
        site = self._site_of[index]
        return lines + [f"route add {names.address(far)} via {names.gateway(site)}" for far in self._elsewhere(site)]

    def _plug_in(self, place: int, cable: Cable, held: Sequence[int], made: Collection[CableEnd]) -> Iterator[str]:
        for end, other in (cable.ends, cable.ends[::-1]):
            if end.place != place:
                continue
            if end in made:
                yield f"link set {end.name} txqueuelen {_QUEUED_FRAMES}"
            elif other.place > place:  # otherwise the other namespace has made it
                yield f"link add {end.name} type veth peer name {other.name} netns /proc/self/fd/{held[other.place]}"
            is_port = other.place >= len(self._sites)
            yield f"link set {end.name} master {names.SWITCH} up" if is_port else f"link set {end.name} up"

    def _router(self, site: int) -> Iterator[str]:
        """Yield the lines for the address of a switch that is a router, and its routes to the nodes of other sites."""
        if site in self.routers:
            yield f"addr add {names.gateway(site)}/{names.PREFIX_LENGTH} dev {names.SWITCH}"
            for far in self._elsewhere(site):
                other = self._site_of[far]
                yield f"route add {names.address(far)} via {names.gateway(other)} dev {names.line(other)} onlink"

    def _elsewhere(self, site: int) -> list[int]:
        return [index for index, other in enumerate(self._site_of) if other != site]
