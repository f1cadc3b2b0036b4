"""Messages between sites that go on meanwhile: one a step to each other site, as in real runs. Pure.

A line carries its messages one after the other; the next one departs when the last byte of the one before has. Who is
to be no more than some steps beyond what it has heard waits for what is under way to it, and so does who has been told
what comes (the selective barrier): that word goes beside the messages, and overtakes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from uneven.core.actions import Exchange, Significant, Wait
from uneven.simulate.links import Flow, Route
from uneven.simulate.stage import Stage
from uneven.simulate.worker import Worker

Party = tuple[int, ...]

_PLACE_BYTES, _VALUE_BYTES = 2.0, {32: 4.0, 16: 2.0}
"""Bytes that an entry takes, where places are told as gaps."""


@dataclass(slots=True, eq=False)
class SiteLetter:
    """One message to one site.

    Attributes:
        content: what the arithmetic has written.
        step: finished steps of who wrote it that it holds.
        barred: whether those who are to hear it know of it, and take no step without it.
    """

    exchange: Exchange
    content: object
    step: int
    size_bytes: float
    barred: bool = False


@dataclass(slots=True, eq=False)
class WrittenLine:
    """From one worker to one party.

    Attributes:
        letters: that were written and not heard, the oldest first; the first ``departed`` of them are under way with
            their last byte.
        unconfirmed_bytes: of letters of which their writer does not know yet that they were heard.
        flow: of the letter that departs now.
    """

    writer: Worker
    party: Party
    route: Route
    letters: deque[SiteLetter] = field(default_factory=deque)
    departed: int = 0
    unconfirmed_bytes: float = 0.0
    flow: Flow | None = None


class Letters:
    """All lines, made as they are needed."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lines: dict[tuple[int, Party], WrittenLine] = {}
        self._to: dict[int, list[WrittenLine]] = {}  # rank → lines to its party
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def write(self, worker: Worker, exchange: Exchange, parties: Iterable[Sequence[int]], step: int) -> None:
        """Tell some parties what holds so many finished steps, each by its own line; nobody waits."""
        stage = self._stage
        content = stage.writes(worker.rank, exchange)
        size_bytes = stage.size_bytes(worker.rank, exchange)
        for party in parties:
            line = self._line(worker, tuple(party))
            letter = SiteLetter(exchange, content, step, size_bytes)
            line.letters.append(letter)
            line.unconfirmed_bytes += size_bytes
            if exchange.barrier_bytes and line.unconfirmed_bytes > exchange.barrier_bytes:
                stage.network.start(line.route, size_bytes * _places(exchange), self._barred, letter)
            if line.flow is None:
                self._depart(line)

    def blocks(self, rank: int, waits: Iterable[Wait]) -> bool:
        """Whether anything that a worker waits for, or that it was told of, is still to be heard."""
        return any(
            one.barred or one.step <= max((wait.clock for wait in waits if line.writer.rank in wait.members), default=0)
            for line in self._to.get(rank, ())
            for one in line.letters
        )

    def when_heard(self, rank: int, then: Callable[[], None]) -> None:
        """Call ``then`` once, when something is heard next."""
        self._waiting.setdefault(rank, []).append(then)

    def lose(self, rank: int) -> None:
        """A worker has died, with what it had written and nobody has heard."""
        for line in [line for (writer, _), line in self._lines.items() if writer == rank]:
            if line.flow is not None:
                self._stage.network.cancel(line.flow)
            line.flow = None
            line.letters.clear()
            line.departed = 0
            self._wake(line.party)

    def _line(self, worker: Worker, party: Party) -> WrittenLine:
        line = self._lines.get((worker.rank, party))
        if line is None or line.writer is not worker:
            topology = self._stage.topology
            line = self._lines[worker.rank, party] = WrittenLine(worker, party, topology.tell(worker.rank, [party]))
            for rank in party:
                self._to.setdefault(rank, []).append(line)
        return line

    def _depart(self, line: WrittenLine) -> None:
        size_bytes = line.letters[line.departed].size_bytes
        at_once = line.route._replace(latency_s=0.0)
        line.flow = self._stage.network.start(at_once, size_bytes, self._departed, line)

    def _departed(self, line: WrittenLine) -> None:
        line.flow = None
        line.departed += 1
        queue = self._stage.queue
        queue.at(queue.now_s + line.route.latency_s, self._arrived, line, line.letters[line.departed - 1])
        if line.departed < len(line.letters):
            self._depart(line)

    def _arrived(self, line: WrittenLine, letter: SiteLetter) -> None:
        if not line.letters or line.letters[0] is not letter:
            return  # its writer has died
        line.letters.popleft()
        line.departed -= 1
        here = [rank for rank in line.party if not self._stage.workers[rank].dead]
        self._stage.arithmetic.hears(letter.exchange, letter.content, here)
        queue = self._stage.queue
        queue.at(queue.now_s + line.route.latency_s, self._confirmed, line, letter.size_bytes)
        self._wake(line.party)

    def _confirmed(self, line: WrittenLine, size_bytes: float) -> None:
        line.unconfirmed_bytes -= size_bytes

    def _barred(self, letter: SiteLetter) -> None:
        letter.barred = True

    def _wake(self, party: Party) -> None:
        for then in [then for rank in party for then in self._waiting.pop(rank, ())]:
            then()


def _places(exchange: Exchange) -> float:
    """What telling where entries are takes, as a part of telling entries and places."""
    select = exchange.select
    value = _VALUE_BYTES[select.bits] if isinstance(select, Significant) else _VALUE_BYTES[32]
    return _PLACE_BYTES / (_PLACE_BYTES + value)
