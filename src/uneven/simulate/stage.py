"""What the parts of the simulator share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from uneven.cluster.spec import Workload
from uneven.core.actions import Exchange
from uneven.entries import estimated_bytes
from uneven.simulate.arithmetic import Arithmetic
from uneven.simulate.bandwidths import Bandwidths
from uneven.simulate.events import Action, EventQueue
from uneven.simulate.links import Network
from uneven.simulate.members import Clocks, MemberHistory
from uneven.simulate.rounds import Group, Groups
from uneven.simulate.routes import Topology
from uneven.simulate.worker import Machine, Worker

_NUMBER_BYTES = 4
"""What one number of a gradient takes, where entries are counted."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """The virtual cluster as it stands.

    Attributes:
        machines: of every node, by rank.
        workers: rank → the worker that is there now, or was there last.
        go_on: called with a worker whose exchange no longer holds it up.
        newest: the furthest clock that a step was begun at, −1 before the first.
    """

    queue: EventQueue
    network: Network
    topology: Topology
    workload: Workload
    history: MemberHistory
    arithmetic: Arithmetic
    go_on: Callable[[Worker], None]
    clocks: Clocks = field(default_factory=Clocks)
    groups: Groups = field(default_factory=Groups)
    bandwidths: Bandwidths = field(default_factory=Bandwidths)
    machines: Sequence[Machine] = ()
    workers: dict[int, Worker] = field(default_factory=dict)
    newest: int = -1
    _buckets: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        load = self.workload
        self._buckets = buckets(load.gradient_bytes, load.first_bucket_bytes, load.bucket_bytes)

    def group(self, worker: Worker, members: tuple[int, ...]) -> Group:
        """The members of an exchange of this worker's present step."""
        return self.groups.of(self.history.at(worker.clock).generation, members)

    @property
    def whole_bytes(self) -> float:
        """What the whole model takes on a link."""
        return self.workload.gradient_bytes * self.workload.framing

    def sends(self, rank: int, exchange: Exchange) -> None:
        """What a worker contributes leaves it now."""
        self.arithmetic.sends(rank, self.bandwidths.within(rank, exchange, self.queue.now_s))
        self._note(rank, exchange)

    def writes(self, rank: int, exchange: Exchange) -> object:
        """What a worker tells others leaves it now, for the arithmetic's ``hears``."""
        content = self.arithmetic.writes(rank, self.bandwidths.within(rank, exchange, self.queue.now_s))
        self._note(rank, exchange)
        return content

    def _note(self, rank: int, exchange: Exchange) -> None:
        if exchange.select is not None:
            self.bandwidths.sent(rank, exchange, self.size_bytes(rank, exchange))

    def size_bytes(self, rank: int, exchange: Exchange) -> float:
        """What one member puts on its link in an exchange.

        Entries that were picked travel with their places, in the shortest form that there is for them.
        """
        whole = self.whole_bytes * exchange.merge.bytes_factor / (exchange.piece or (0, 1))[1]
        if exchange.select is None:
            return whole
        part = self.arithmetic.sent_part(rank, exchange)
        if part is None:
            entries = self.workload.gradient_bytes / _NUMBER_BYTES
            significant = min(1.0, self.workload.significant * self.bandwidths.passes(rank, exchange))
            picked_bytes = estimated_bytes(exchange.select, entries, significant, _NUMBER_BYTES)
            part = picked_bytes / max(1, self.workload.gradient_bytes)
        return whole * part

    def together_bytes(self, ranks: Sequence[int], exchange: Exchange) -> float:
        """What the entries that some members have picked take, added up."""
        part = self.arithmetic.together_part(ranks, exchange)
        if part is None:
            return min(self.whole_bytes, sum(self.size_bytes(rank, exchange) for rank in ranks))
        return self.whole_bytes * part

    def when_done(self, worker: Worker, part: float, action: Action, *arguments: object) -> None:
        """Do something when so much of a worker's computing is done, also if its speed changes until then."""
        worker.event = self.queue.at(worker.ready_s(part), action, *arguments)
        worker.awaited = part, action, arguments

    @property
    def buckets(self) -> tuple[float, ...]:
        """Up to which part of the gradients each bucket goes; one for all where nothing slows transfers down."""
        return (1.0,) if self.topology.free else self._buckets

    def ready_part(self, sent: float) -> float:
        """How much of the computing is done when so much of the gradient is ready."""
        return 1.0 if sent >= 1.0 else 1.0 - self.workload.backward * (1.0 - sent)


def buckets(size_bytes: int, first_bytes: int, each_bytes: int) -> tuple[float, ...]:
    """Up to which part of the gradients each bucket goes, as DistributedDataParallel cuts them."""
    ends = (first_bytes, *range(first_bytes + each_bytes, size_bytes, each_bytes))
    return (*(end / size_bytes for end in ends if end < size_bytes), 1.0)
