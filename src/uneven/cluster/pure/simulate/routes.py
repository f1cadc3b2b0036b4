"""The links of a transfer, and the latency of its path.

A node has a link up and a link down to its switch; two sites have a link in each direction. Only limited links exist
here.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, Trace, steady
from uneven.cluster.pure.simulate.links import LinkLoad, Route

_UNLIMITED_BIT_PER_S = 1e15  # of a link without a limit until an event limits it


FREE = Route(LinkLoad({}), 0.0)

_LARGEST_BYTES = 1 << 20  # of a piece that gloo sends in an all-reduce


class RingPieces(NamedTuple):
    """The pieces of an all-reduce on each hop of a ring; two are in transit at a time.

    A piece waits for a notice of free space, which its receiver sends when the last piece but one has arrived. So two
    pieces take a round trip and the time of one, however fast the link is. This is gloo's protocol
    (``gloo/allreduce.cc``, and ``Pair::send`` in ``gloo/transport/tcp/pair.cc``).
    """

    many: int  # pieces over each hop
    latency_s: tuple[float, ...]  # of the hop to each member, one way
    own_s: tuple[float, ...]  # of a piece on the hop's slowest link

    @classmethod
    def at_once(cls, members: int) -> "RingPieces":
        """Return the least number of pieces, without delays."""
        return cls(pieces_of(members, 0.0), (0.0,) * members, (0.0,) * members)

    @property
    def waits_s(self) -> float:
        """The seconds of all pieces beyond their bytes on the slowest link, if all members start together and none is
        slow."""
        bytes_s = 2 * max(self.own_s)
        slowest_s = max(2 * latency_s + own_s for latency_s, own_s in zip(self.latency_s, self.own_s, strict=True))
        return self.many / 2 * max(slowest_s - bytes_s, 0.0)

    def come_s(self, begun_s: Sequence[float]) -> list[float]:
        """Return when a piece arrives at each member, given when each is ready to receive it and sends its own."""
        hops = zip(begun_s, [begun_s[-1], *begun_s[:-1]], self.latency_s, self.own_s, strict=True)
        return [max(room_s + way_s, sends_s) + own_s + way_s for room_s, sends_s, way_s, own_s in hops]


class TransferLinks:
    """The links of a transfer, one hop after the other. ``flows``: connections of each hop."""

    def __init__(self, flows: int = 1) -> None:
        self.flows = flows
        self._parts: dict[int, float] = {}
        self._most = math.inf  # bytes of the transfer in a second

    def add(self, links: Iterable[int], part: float) -> None:
        """Add ``part`` of the transfer's bytes to each link."""
        for link in links:
            self._parts[link] = self._parts.get(link, 0.0) + part

    def at_most(self, bytes_per_s: float, part: float) -> None:
        """Limit a hop that carries ``part`` of the bytes."""
        if part:
            self._most = min(self._most, bytes_per_s / part)

    def route(self, latency_s: float) -> Route:
        return Route(LinkLoad(self._parts, self._most), latency_s)


class Topology:
    """The nodes, by rank (position in the description), and the links between them."""

    def __init__(self, spec: ClusterSpec) -> None:
        cut = {event.node for event in spec.events if event.do is Do.CUT_LINK and not event.factor}
        self.capacities: list[Trace] = []  # of every link, bit/s over time
        self._mean_bit_per_s: list[float] = []
        self.sites = [node.site for node in spec.nodes]
        self.machines: list[object] = [(node.site, node.card) if node.card else node.name for node in spec.nodes]
        self.flows = spec.workload.flows
        framing = spec.workload.framing
        self._latency_s = [node.latency_s for node in spec.nodes]
        # Payload of one connection, here with its framing, as all sizes have it.
        self._flow_bit_per_s = [(node.carried.flow_bit_per_s or math.inf) * framing for node in spec.nodes]
        self._up: list[int | None] = []
        self._down: list[int | None] = []
        cards: dict[object, int] = {}  # machine → its first rank, whose link all use
        for rank, node in enumerate(spec.nodes):
            first = cards.setdefault(self.machines[rank], rank)
            if first != rank:
                self._up.append(self._up[first])
                self._down.append(self._down[first])
                continue
            for ways, limit in ((self._up, node.up_bit_per_s), (self._down, node.down_bit_per_s)):
                ways.append(self._link(_achieved(_limit(node, limit, cut), node, framing)))
        self._inside = [
            self._link(steady(node.inside_bit_per_s)) if node.inside_bit_per_s and node.card else None
            for node in spec.nodes
        ]
        through = spec.switch_bit_per_s
        self._switches = {} if through is None else {site: self._link(through) for site in spec.sites}
        self.lines: dict[tuple[str, str], int] = {}  # (from a site, to a site) → link
        self._line_latency_s: dict[tuple[str, str], float] = {}
        for line in spec.links:
            here, there = line.between
            for ends in ((here, there), (there, here)):
                link = self._link(line.toward(ends[1]))
                assert link is not None
                self.lines[ends] = link
                self._line_latency_s[ends] = line.latency_s
        self.free = not self.capacities and not any(self._latency_s) and not any(self._line_latency_s.values())

    def _link(self, capacity: Trace | None) -> int | None:
        if capacity is None:
            return None
        self.capacities.append(capacity)
        self._mean_bit_per_s.append(fmean(capacity.values))
        return len(self.capacities) - 1

    def links_of(self, rank: int) -> tuple[int, ...]:
        return tuple(link for link in (self._up[rank], self._down[rank]) if link is not None)

    def links_between(self, here: str, there: str) -> tuple[int, int]:
        return self.lines[here, there], self.lines[there, here]

    def ring(self, members: Sequence[int], size_bytes: float) -> Route:
        """Return the route of an all-reduce over a ring in the order of ``members``."""
        n = len(members)
        if n < 2 or self.free:
            return FREE
        load = TransferLinks(self.flows)
        # A ring moves 2 (n − 1) / n of the bytes over each hop.
        for here, there in hops(members):
            self.add(load, here, there, 2 * (n - 1) / n)
        return load.route(self.ring_pieces(members, size_bytes).waits_s)

    def ring_pieces(self, members: Sequence[int], size_bytes: float) -> RingPieces:
        n = len(members)
        if n < 2 or self.free:
            return RingPieces.at_once(n)
        many = pieces_of(n, size_bytes)
        bits = 8 * 2 * (n - 1) / n * size_bytes / many
        latency_s, own_s = [], []
        for hop in hops(members):
            latency_s.append(self.add(TransferLinks(), *hop, 0.0))
            of_links = min((self._mean_bit_per_s[link] for link in self._links(*hop)), default=math.inf)
            rate = min(of_links, self.flows * self._flow(*hop))
            own_s.append(bits / rate if rate > 0.0 else 0.0)  # a dead link already stops the flow, so it needs no delay
        return RingPieces(many, tuple(latency_s), tuple(own_s))

    def push(self, rank: int, members: Sequence[int]) -> Route:
        """Return the route to the parameter server, whose shards are spread evenly over the members."""
        if self.free:
            return FREE
        return self._spread((rank, other) for other in members if other != rank) if len(members) > 1 else FREE

    def pull(self, rank: int, members: Sequence[int]) -> Route:
        """Return the route from the parameter server."""
        if self.free or len(members) < 2:
            return FREE
        back = self._spread((other, rank) for other in members if other != rank)
        return Route(back.load, 2 * back.latency_s)  # of the request and of the answer

    def point(self, here: int, there: int) -> Route:
        load = TransferLinks()
        return load.route(self.add(load, here, there, 1.0))

    def tell(self, rank: int, others: Sequence[Sequence[int]]) -> Route:
        """Return the route from one node to the first of each of ``others``, which forward from node to node in their
        order."""
        return FREE if self.free else self.hand_on([[rank, *party] for party in others])

    def mesh(self, sends: Iterable[tuple[int, int, float]]) -> Route:
        """Return the route of simultaneous messages (from, to, bytes); the transfer has size 1."""
        load = TransferLinks()
        latency_s = max((self.add(load, here, there, size) for here, there, size in sends), default=0.0)
        return load.route(latency_s)

    def hand_on(self, parties: Sequence[Sequence[int]]) -> Route:
        """Return the route from the first of each of ``parties`` through to its last."""
        load = TransferLinks()
        latency_s = 0.0
        for party in parties:
            latency_s = max(latency_s, sum(self.add(load, *pair, 1.0) for pair in pairwise(party)))
        return load.route(latency_s)

    def pieces(self, sizes: Mapping[tuple[int, int], float]) -> Route:
        """Return the route of simultaneous pieces, (from, to) → bytes; the transfer has size 1."""
        return FREE if self.free else self.mesh((*pair, size) for pair, size in sizes.items())

    def _spread(self, pairs: Iterable[tuple[int, int]]) -> Route:
        pairs = tuple(pairs)
        return self.mesh((*pair, 1 / (len(pairs) + 1)) for pair in pairs)

    def add(self, load: TransferLinks, here: int, there: int, part: float) -> float:
        """Add a hop between two nodes to a load, and return its latency."""
        load.add(self._links(here, there), part)
        if self.machines[here] == self.machines[there]:
            return 0.0
        load.at_most(load.flows * self._flow(here, there) / 8, part)
        ends = self.sites[here], self.sites[there]
        return self._latency_s[here] + self._latency_s[there] + self._line_latency_s.get(ends, 0.0)

    def _flow(self, here: int, there: int) -> float:
        """Return the most bit/s of one connection between two nodes."""
        return min(self._flow_bit_per_s[here], self._flow_bit_per_s[there])

    def _links(self, here: int, there: int) -> Iterator[int]:
        if self.machines[here] == self.machines[there]:
            found = (self._inside[here],)
            return (link for link in found if link is not None)
        ends = self.sites[here], self.sites[there]
        between = self._switches.get(ends[0]) if ends[0] == ends[1] else self.lines.get(ends)
        return (link for link in (self._up[here], self._down[there], between) if link is not None)


def hops(members: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the hops of a ring (from, to); the first one ends at the first member."""
    return zip([members[-1], *members[:-1]], members, strict=True)


def pieces_of(members: int, size_bytes: float) -> int:
    """Return the number of pieces of an all-reduce over each hop: at least two of each member's part, twice for n − 1
    members."""
    return 2 * (members - 1) * max(2, math.ceil(size_bytes / members / _LARGEST_BYTES))


def cut_of(event: Event) -> tuple[float, float]:
    """Return what an event leaves of a link: a factor and a ceiling in bit/s."""
    return event.left, _UNLIMITED_BIT_PER_S if event.bit_per_s is None else event.bit_per_s


def _limit(node: Node, limit: Trace | None, cut: set[str]) -> Trace | None:
    return steady(_UNLIMITED_BIT_PER_S) if limit is None and node.name in cut else limit


def _achieved(limit: Trace | None, node: Node, framing: float) -> Trace | None:
    achieved = node.carried.achieved
    if limit is None or achieved is None:
        return limit
    # Sizes have their framing, and the achieved part is payload.
    return replace(limit, values=tuple(value * achieved * framing for value in limit.values))
