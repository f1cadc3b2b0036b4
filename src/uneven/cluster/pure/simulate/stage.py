"""The shared state of the simulator's parts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from uneven.cluster.pure.describe.spec import Workload
from uneven.cluster.pure.simulate.arithmetic import Arithmetic
from uneven.cluster.pure.simulate.event_queue import Action, EventQueue
from uneven.cluster.pure.simulate.links import Network
from uneven.cluster.pure.simulate.members import Clocks, MemberHistory
from uneven.cluster.pure.simulate.rounds import Group, Groups
from uneven.cluster.pure.simulate.routes import Topology
from uneven.cluster.pure.simulate.virtual_worker import Machine, Worker
from uneven.policy.core.actions import Exchange, Significant
from uneven.policy.select import BandwidthControl, estimated_bytes


class Bandwidths:
    """The rule of :class:`~uneven.policy.select.BandwidthControl`, applied by the first worker of each site."""

    def __init__(self) -> None:
        self._controls: dict[int, BandwidthControl] = {}
        self._since: dict[int, tuple[float, float]] = {}  # start of the last exchange, and its payload

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
        self._since[rank] = now_s, 0.0
        if not select.mbit_per_s:  # a flush
            return exchange
        # As in a real run, all bytes between the starts of two exchanges count, forwarded or the worker's own.
        control.measured(sent_bytes, now_s - since_s)
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


_NUMBER_BYTES = 4  # of one number of a gradient


@dataclass(slots=True, kw_only=True)
class Stage:
    """The current state of the virtual cluster."""

    queue: EventQueue
    network: Network
    topology: Topology
    workload: Workload
    history: MemberHistory
    arithmetic: Arithmetic
    go_on: Callable[[Worker], None]  # called with a worker that its exchange no longer delays
    clocks: Clocks = field(default_factory=Clocks)
    groups: Groups = field(default_factory=Groups)
    bandwidths: Bandwidths = field(default_factory=Bandwidths)
    machines: Sequence[Machine] = ()  # of every node, by rank
    workers: dict[int, Worker] = field(default_factory=dict)  # rank → the current or last worker of that rank
    newest: int = -1  # the furthest clock at which a step was started
    _lumps: dict[float, tuple[float, int]] = field(init=False)

    def __post_init__(self) -> None:
        load = self.workload
        ends = buckets(load.gradient_bytes, load.first_bucket_bytes, load.bucket_bytes)
        self._lumps = lumps(ends, len(self.machines))

    def group(self, worker: Worker, one: Exchange) -> Group:
        if one.beside and one.quorum is not None:
            return self.groups.learners
        return self.groups.of(self.history.at(worker.clock).generation, one.members)

    @property
    def whole_bytes(self) -> float:
        load = self.workload
        return load.gradient_bytes * load.framing * load.number_bytes / _NUMBER_BYTES

    def sends(self, rank: int, exchange: Exchange) -> None:
        self.arithmetic.sends(rank, self.bandwidths.within(rank, exchange, self.queue.now_s))
        self._note(rank, exchange)

    def writes(self, rank: int, exchange: Exchange) -> object:
        """Take a worker's message for the arithmetic's ``hears``, and return it."""
        content = self.arithmetic.writes(rank, self.bandwidths.within(rank, exchange, self.queue.now_s))
        self._note(rank, exchange)
        return content

    def _note(self, rank: int, exchange: Exchange) -> None:
        if exchange.select is not None:
            self.bandwidths.sent(rank, exchange, self.size_bytes(rank, exchange))

    def size_bytes(self, rank: int, exchange: Exchange) -> float:
        """Return the bytes that one member sends in an exchange."""
        whole = self.whole_bytes * exchange.merge.bytes_factor / (exchange.piece or (0, 1))[1]
        if exchange.select is None:
            return whole
        part = self.arithmetic.sent_part(rank, exchange)
        if part is None:
            # Selected entries travel with their places, in the shortest encoding.
            entries = self.workload.gradient_bytes / _NUMBER_BYTES
            significant = min(1.0, self.workload.significant * self.bandwidths.passes(rank, exchange))
            picked_bytes = estimated_bytes(exchange.select_of(rank), entries, significant, _NUMBER_BYTES)
            part = picked_bytes / max(1, self.workload.gradient_bytes)
        return whole * part

    def together_bytes(self, ranks: Sequence[int], exchange: Exchange) -> float:
        """Return the bytes of the sum of some members' selected entries."""
        part = self.arithmetic.together_part(ranks, exchange)
        if part is None:
            return min(self.whole_bytes, sum(self.size_bytes(rank, exchange) for rank in ranks))
        return self.whole_bytes * part

    def when_done(self, worker: Worker, part: float, action: Action, *arguments: object) -> None:
        """Schedule an action for when ``part`` of a worker's computing is done."""
        worker.event = self.queue.at(worker.ready_s(part), action, *arguments)
        # Stored, so that a change of its speed can reschedule it.
        worker.awaited = part, action, arguments

    @property
    def buckets(self) -> tuple[float, ...]:
        """The end of each lump of buckets as a part of the gradients; a single one if nothing limits transfers."""
        return (1.0,) if self.topology.free else tuple(self._lumps)

    def ready_part(self, end: float) -> float:
        """Return the part of the computing after which the lump that ends there may start."""
        first, _ = self._lumps.get(end, (end, 1))
        if first >= 1.0:
            return 1.0
        for (before_s, before), (after_s, after) in pairwise(((0.0, 0.0), *self.workload.ready, (1.0, 1.0))):
            if first <= after:
                done = before_s + (after_s - before_s) * (first - before) / (after - before)
                break
        return 1.0 - self.workload.backward * (1.0 - done)

    def many(self, end: float) -> int:
        """Return the number of buckets in the lump that ends there."""
        return self._lumps.get(end, (end, 1))[1]


MOST_BUCKETS = 32  # transfers of an exchange; more buckets are lumped [ours]
_APART = 2  # buckets at either end that stay as they are
_FEWEST, _TRANSFERS = 4, 128  # lumps between them, at least; and with those of all nodes together [ours]


def lumps(ends: Sequence[float], nodes: int) -> dict[float, tuple[float, int]]:
    """Return the end of each lump of buckets → the end of its first bucket, and their number.

    A lump starts when its first bucket is ready. Over the buckets, the time at which they are ready rises along a
    straight line, and the bytes still to send fall along one. So the first or the last buckets decide when an
    all-reduce ends, and lumps between them change nothing while speeds and bandwidths stay the same. Transfers to a
    server compete, and there lumps change samples/s by less than 1 %.
    """
    if len(ends) <= MOST_BUCKETS:
        return {end: (end, 1) for end in ends}
    middle = ends[_APART:-_APART]
    each = math.ceil(len(middle) / min(MOST_BUCKETS - 2 * _APART, max(_FEWEST, _TRANSFERS // nodes)))
    between = [middle[place : place + each] for place in range(0, len(middle), each)]
    single = [[end] for end in (*ends[:_APART], *ends[-_APART:])]
    lumped = [*single[:_APART], *between, *single[_APART:]]
    return {lump[-1]: (lump[0], len(lump)) for lump in lumped}


def buckets(size_bytes: int, first_bytes: int, each_bytes: int) -> tuple[float, ...]:
    """Return the end of each bucket as a part of the gradients, as DistributedDataParallel cuts them."""
    ends = (first_bytes, *range(first_bytes + each_bytes, size_bytes, each_bytes))
    return (*(end / size_bytes for end in ends if end < size_bytes), 1.0)
