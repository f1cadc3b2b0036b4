"""The shared state of the simulator's parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from uneven.cluster.pure.describe.spec import Workload
from uneven.cluster.pure.simulate.arithmetic import Arithmetic
from uneven.cluster.pure.simulate.bandwidths import Bandwidths
from uneven.cluster.pure.simulate.event_queue import Action, EventQueue
from uneven.cluster.pure.simulate.links import Network
from uneven.cluster.pure.simulate.members import Clocks, MemberHistory
from uneven.cluster.pure.simulate.rounds import Group, Groups
from uneven.cluster.pure.simulate.routes import Topology
from uneven.cluster.pure.simulate.virtual_worker import Machine, Worker
from uneven.policy.core.actions import Exchange
from uneven.policy.select import estimated_bytes

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
    _buckets: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        load = self.workload
        self._buckets = buckets(load.gradient_bytes, load.first_bucket_bytes, load.bucket_bytes)

    def group(self, worker: Worker, members: tuple[int, ...]) -> Group:
        return self.groups.of(self.history.at(worker.clock).generation, members)

    @property
    def whole_bytes(self) -> float:
        return self.workload.gradient_bytes * self.workload.framing

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
            picked_bytes = estimated_bytes(exchange.select, entries, significant, _NUMBER_BYTES)
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
        """The end of each bucket as a part of the gradients; a single bucket if nothing limits transfers."""
        return (1.0,) if self.topology.free else self._buckets

    def ready_part(self, sent: float) -> float:
        """Return the part of the computing after which ``sent`` of the gradient is ready."""
        return 1.0 if sent >= 1.0 else 1.0 - self.workload.backward * (1.0 - sent)


def buckets(size_bytes: int, first_bytes: int, each_bytes: int) -> tuple[float, ...]:
    """Return the end of each bucket as a part of the gradients, as DistributedDataParallel cuts them."""
    ends = (first_bytes, *range(first_bytes + each_bytes, size_bytes, each_bytes))
    return (*(end / size_bytes for end in ends if end < size_bytes), 1.0)
