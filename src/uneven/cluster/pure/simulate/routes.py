"""The links of a transfer, and the latency of its path.

A node has a link up and a link down to its switch; two sites have a link in each direction. Only limited links exist
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    def at_once(cls, members: int) -> RingPieces:
        """Return the least number of pieces, without delays."""
        return cls(pieces_of(members, 0.0), (0.0,) * members, (0.0,) * members)

    @property
    def waits_s(self) -> float:
        """The seconds of all pieces beyond their bytes on the slowest link, if all members start together and none is
        slow.
        """
        bytes_s = 2 * max(self.own_s)
        slowest_s = max(2 * latency_s + own_s for latency_s, own_s in zip(self.latency_s, self.own_s, strict=True))
        return self.many / 2 * max(slowest_s - bytes_s, 0.0)

    def come_s(self, begun_s: Sequence[float]) -> list[float]:
        """Return when a piece arrives at each member, given when each is ready to receive it and sends its own."""
        hops = zip(begun_s, [begun_s[-1], *begun_s[:-1]], self.latency_s, self.own_s, strict=True)
        return [max(room_s + way_s, sends_s) + own_s + way_s for room_s, sends_s, way_s, own_s in hops]


class Topology:
    """The nodes, by rank (position in the description), and the links between them."""

    def __init__(self, spec: ClusterSpec) -> None:
        cut = {event.node for event in spec.events if event.do is Do.CUT_LINK and not event.factor}
        self.capacities: list[Trace] = []  # of every link, bit/s over time
        self._mean_bit_per_s: list[float] = []
        self.sites = [node.site for node in spec.nodes]
        self._latency_s = [node.latency_s for node in spec.nodes]
        self._up = [self._link(_limit(node, node.up_bit_per_s, cut)) for node in spec.nodes]
        self._down = [self._link(_limit(node, node.down_bit_per_s, cut)) for node in spec.nodes]
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
        parts: dict[int, float] = {}
        # A ring moves 2 (n − 1) / n of the bytes over each hop.
        for here, there in _hops(members):
            self._load(parts, here, there, 2 * (n - 1) / n)
        return Route(LinkLoad(parts), self.ring_pieces(members, size_bytes).waits_s)

    def ring_pieces(self, members: Sequence[int], size_bytes: float) -> RingPieces:
        n = len(members)
        if n < 2 or self.free:
            return RingPieces.at_once(n)
        many = pieces_of(n, size_bytes)
        bits = 8 * 2 * (n - 1) / n * size_bytes / many
        latency_s, own_s = [], []
        for hop in _hops(members):
            latency_s.append(self._load({}, *hop, 0.0))
            rate = min((self._mean_bit_per_s[link] for link in self._links(*hop)), default=math.inf)
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
        parts: dict[int, float] = {}
        latency_s = self._load(parts, here, there, 1.0)
        return Route(LinkLoad(parts), latency_s)

    def tell(self, rank: int, others: Sequence[Sequence[int]]) -> Route:
        """Return the route from one node to the first of each of ``others``, which forward from node to node in their
        order.
        """
        if self.free:
            return FREE
        parts: dict[int, float] = {}
        latency_s = 0.0
        for party in others:
            way_s = sum(self._load(parts, *pair, 1.0) for pair in pairwise([rank, *party]))
            latency_s = max(latency_s, way_s)
        return Route(LinkLoad(parts), latency_s)

    def mesh(self, sends: Iterable[tuple[int, int, float]]) -> Route:
        """Return the route of simultaneous messages (from, to, bytes); the transfer has size 1."""
        parts: dict[int, float] = {}
        latency_s = max((self._load(parts, here, there, size) for here, there, size in sends), default=0.0)
        return Route(LinkLoad(parts), latency_s)

    def hand_on(self, parties: Sequence[Sequence[int]]) -> Route:
        """Return the route from the first of each of ``parties`` through to its last."""
        parts: dict[int, float] = {}
        latency_s = 0.0
        for party in parties:
            latency_s = max(latency_s, sum(self._load(parts, *pair, 1.0) for pair in pairwise(party)))
        return Route(LinkLoad(parts), latency_s)

    def pieces(self, sizes: Mapping[tuple[int, int], float]) -> Route:
        """Return the route of simultaneous pieces, (from, to) → bytes; the transfer has size 1."""
        if self.free:
            return FREE
        parts: dict[int, float] = {}
        latency_s = max((self._load(parts, *pair, size) for pair, size in sizes.items()), default=0.0)
        return Route(LinkLoad(parts), latency_s)

    def _spread(self, pairs: Iterable[tuple[int, int]]) -> Route:
        pairs = tuple(pairs)
        parts: dict[int, float] = {}
        latency_s = 0.0
        for here, there in pairs:
            latency_s = max(latency_s, self._load(parts, here, there, 1 / (len(pairs) + 1)))
        return Route(LinkLoad(parts), latency_s)

    def _load(self, parts: dict[int, float], here: int, there: int, part: float) -> float:
        """Add a transfer's load on each link between two nodes, and return the latency."""
        ends = self.sites[here], self.sites[there]
        for link in self._links(here, there):
            parts[link] = parts.get(link, 0.0) + part
        return self._latency_s[here] + self._latency_s[there] + self._line_latency_s.get(ends, 0.0)

    def _links(self, here: int, there: int) -> Iterator[int]:
        found = (self._up[here], self._down[there], self.lines.get((self.sites[here], self.sites[there])))
        return (link for link in found if link is not None)


def _hops(members: Sequence[int]) -> Iterator[tuple[int, int]]:
    # Into the first member first, so that hop i ends at member i.
    return zip([members[-1], *members[:-1]], members, strict=True)


def pieces_of(members: int, size_bytes: float) -> int:
    """Return the number of pieces of an all-reduce over each hop: at least two of each member's part, twice for n − 1
    members.
    """
    return 2 * (members - 1) * max(2, math.ceil(size_bytes / members / _LARGEST_BYTES))


def cut_of(event: Event) -> tuple[float, float]:
    """Return what an event leaves of a link: a factor and a ceiling in bit/s."""
    return event.left, _UNLIMITED_BIT_PER_S if event.bit_per_s is None else event.bit_per_s


def _limit(node: Node, limit: Trace | None, cut: set[str]) -> Trace | None:
    return steady(_UNLIMITED_BIT_PER_S) if limit is None and node.name in cut else limit
