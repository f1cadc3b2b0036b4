"""Messages between sites in the background: one per step to each other site, as in real runs.

A channel carries its messages one after the other: the next one starts when the last byte of the previous one has left.
A worker with a bounded lead waits for the messages in transit to it. It also waits for messages that it was notified of
(the selective barrier); the notification travels in parallel and overtakes them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from uneven.cluster.pure.simulate.links import Flow, Route
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.actions import Exchange, Significant, Wait

Party = tuple[int, ...]

_PLACE_BYTES, _VALUE_BYTES = 2.0, {32: 4.0, 16: 2.0}  # of an entry, with places as gaps


@dataclass(slots=True, eq=False)
class SiteMessage:
    """One message to one site."""

    exchange: Exchange
    content: object  # from the arithmetic's ``writes``
    step: int  # finished steps of its writer that it includes
    size_bytes: float
    barred: bool = False  # whether its receivers were notified and take no step without it


@dataclass(slots=True, eq=False)
class SiteChannel:
    """The channel from one worker to one party."""

    writer: Worker
    party: Party
    route: Route
    letters: deque[SiteMessage] = field(default_factory=deque)  # written, not received, oldest first …
    departed: int = 0  # … the number of them that have left completely
    unconfirmed_bytes: float = 0.0  # of messages whose receipt the writer does not know yet
    flow: Flow | None = None  # of the message that is leaving now


class SiteMessages:
    """All channels, created on demand."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lines: dict[tuple[int, Party], SiteChannel] = {}
        self._to: dict[int, list[SiteChannel]] = {}  # rank → lines to its party
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def write(self, worker: Worker, exchange: Exchange, parties: Iterable[Sequence[int]], step: int) -> None:
        """Send a message that includes ``step`` finished steps to each party, without waiting."""
        stage = self._stage
        content = stage.writes(worker.rank, exchange)
        size_bytes = stage.size_bytes(worker.rank, exchange)
        for party in parties:
            line = self._line(worker, tuple(party))
            letter = SiteMessage(exchange, content, step, size_bytes)
            line.letters.append(letter)
            line.unconfirmed_bytes += size_bytes
            if exchange.far.barrier_bytes and line.unconfirmed_bytes > exchange.far.barrier_bytes:
                stage.network.start(line.route, size_bytes * _places(exchange), self._barred, letter)
            if line.flow is None:
                self._depart(line)

    def blocks(self, rank: int, waits: Iterable[Wait]) -> bool:
        """Return whether a message that a worker waits for, or was notified of, is still in transit."""
        return any(
            one.barred or one.step <= max((wait.clock for wait in waits if line.writer.rank in wait.members), default=0)
            for line in self._to.get(rank, ())
            for one in line.letters
        )

    def when_heard(self, rank: int, then: Callable[[], None]) -> None:
        """Call ``then`` once, at the next message."""
        self._waiting.setdefault(rank, []).append(then)

    def lose(self, rank: int) -> None:
        """Remove a dead worker's messages in transit."""
        for line in [line for (writer, _), line in self._lines.items() if writer == rank]:
            if line.flow is not None:
                self._stage.network.cancel(line.flow)
            line.flow = None
            line.letters.clear()
            line.departed = 0
            self._wake(line.party)

    def _line(self, worker: Worker, party: Party) -> SiteChannel:
        line = self._lines.get((worker.rank, party))
        if line is None or line.writer is not worker:
            topology = self._stage.topology
            # A new worker of the same rank gets its own channel.
            line = self._lines[worker.rank, party] = SiteChannel(worker, party, topology.tell(worker.rank, [party]))
            for rank in party:
                self._to.setdefault(rank, []).append(line)
        return line

    def _depart(self, line: SiteChannel) -> None:
        size_bytes = line.letters[line.departed].size_bytes
        # Without latency: the channel is free when the last byte has left, not when it has arrived.
        at_once = line.route._replace(latency_s=0.0)
        line.flow = self._stage.network.start(at_once, size_bytes, self._departed, line)

    def _departed(self, line: SiteChannel) -> None:
        line.flow = None
        line.departed += 1
        queue = self._stage.queue
        queue.at(queue.now_s + line.route.latency_s, self._arrived, line, line.letters[line.departed - 1])
        if line.departed < len(line.letters):
            self._depart(line)

    def _arrived(self, line: SiteChannel, letter: SiteMessage) -> None:
        if not line.letters or line.letters[0] is not letter:
            return  # its writer has died, and lose() has removed it
        line.letters.popleft()
        line.departed -= 1
        here = [rank for rank in line.party if not self._stage.workers[rank].dead]
        self._stage.arithmetic.hears(letter.exchange, letter.content, here)
        queue = self._stage.queue
        queue.at(queue.now_s + line.route.latency_s, self._confirmed, line, letter.size_bytes)
        self._wake(line.party)

    def _confirmed(self, line: SiteChannel, size_bytes: float) -> None:
        line.unconfirmed_bytes -= size_bytes

    def _barred(self, letter: SiteMessage) -> None:
        letter.barred = True

    def _wake(self, party: Party) -> None:
        for then in [then for rank in party for then in self._waiting.pop(rank, ())]:
            then()


def _places(exchange: Exchange) -> float:
    # The notification contains the places only.
    select = exchange.select
    value = _VALUE_BYTES[select.bits] if isinstance(select, Significant) else _VALUE_BYTES[32]
    return _PLACE_BYTES / (_PLACE_BYTES + value)
