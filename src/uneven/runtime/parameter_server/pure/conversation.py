"""A worker's conversation with one shard. Pure: messages to send, updates to keep, answers.

There are no timers. A connection keeps the order of messages, so the answer to a ping covers everything sent before it.
A message that is not parked and not answered was lost, and is sent again. Repetition is harmless, because updates are
numbered.

The worker keeps the newest copy that it has received, and each of its updates that this copy lacks. If a shard has lost
its state, the newest of these copies becomes the state again, and the workers send the updates that it lacks.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from uneven.runtime.parameter_server.pure import vectors
from uneven.runtime.parameter_server.pure.wire import CHANGING, Entry, Kind, Message, Refusal, Vector

_TABLE = list(Refusal).index(Refusal.TABLE)


@dataclass(frozen=True, slots=True)
class Held:
    """The newest copy that this worker has."""

    version: int
    base: Vector
    entries: tuple[Entry, ...] = ()
    # after an exchange, the message sent; it and ``base``, the copy before, determine the copy
    exchange: Message | None = None
    mean: bool = False  # True if it is the mean of a step

    def vector(self) -> Vector:
        """Return the copy; shape (numbers of this shard,)."""
        if self.exchange is None:
            return self.base
        change = vectors.difference(self.exchange.vector, self.base, self.exchange.value)
        copy = vectors.add(self.base, 1.0, change)
        assert copy is not None  # the shard has computed the same and found it finite
        return copy


@dataclass(slots=True)
class Link:
    """The state of one conversation."""

    rank: int  # this worker
    # table, dtype: as in ``wire.Message``
    table: int
    dtype: int
    elements: int  # of this shard's vector
    held: Held  # the copy to offer: at first the worker's initial parameters, version 0
    waits_s: float = 0.0  # how long it waits for an answer, reported to the shard; 0 leaves that open
    life: int = 0  # of the shard that has welcomed this worker; 0 before
    clock: int = 0  # steps of this worker that ``held`` includes, or that were finished before it joined
    left: bool = False  # it has asked that no worker waits for it, and has sent no request since
    # members that this worker has declared failed; reported again to a restarted shard
    gone: set[int] = field(default_factory=set)
    # met, through: meetings that it has come to, and epochs that it has finished; heartbeats report them
    met: int = 0
    through: int = 0
    kept: dict[int, Message] = field(default_factory=dict)  # updates that ``held`` lacks, by sequence number
    waiting: dict[int, Message] = field(default_factory=dict)  # requests without an answer, by number
    _numbers: int = 0
    _sequence: int = 0
    _mine: int = 0  # own updates that ``held`` includes
    _held_life: int = 0
    _known: bool = False  # True once a shard has welcomed it

    def request(
        self, kind: Kind, *, clock: int, value: float, extra: int = 0, vector: Vector = (), **more: Any
    ) -> tuple[int, list[Message]]:
        """Create a request, with ``more`` fields of its message. Return its number, and the messages to send now: none
        before a shard's welcome."""
        self._numbers += 1
        if kind is Kind.MEET:
            self.met = clock
        elif kind is Kind.BURY:
            self.gone.add(extra)
        else:
            self.left = False
        changing = kind in CHANGING
        self._sequence += changing
        message = Message(
            kind=kind,
            rank=self.rank,
            number=self._numbers,
            sequence=self._sequence,
            clock=clock,
            life=self.life,
            value=value,
            extra=extra,
            table=self.table,
            dtype=self.dtype,
            elements=self.elements if vector else 0,
            vector=vector,
            **more,
        )
        self.waiting[self._numbers] = message
        if changing:
            self.kept[self._sequence] = message
        return self._numbers, [message] if self.life else []

    def beat(self) -> Message:
        """Return the next heartbeat; its answer reveals lost messages."""
        if not self.life:
            return self._hello()
        self._numbers += 1
        return Message(
            kind=Kind.PING, rank=self.rank, number=self._numbers, clock=self.met, life=self.life, extra=self.through
        )

    def leave(self) -> Message:
        """Return a message that asks other workers not to wait for this one until its next request."""
        self.left = True
        return Message(kind=Kind.LEAVE, rank=self.rank, life=self.life)

    def forget(self, number: int) -> None:
        """Cancel the wait for an answer. An update is still sent until it has arrived."""
        message = self.waiting.get(number)
        if message is not None and message.kind not in CHANGING:
            del self.waiting[number]

    def receive(self, m: Message) -> tuple[list[Message], list[tuple[int, Message]]]:
        """Take a shard's message. Return the messages to send, and answers: the number of a request and its answer."""
        if m.kind is Kind.WHO:
            if m.life == self.life:
                return [], []  # an answer to a message from before the welcome
            self.life = 0
            return [self._hello()], []
        if m.kind is Kind.WANT:
            return [self._offer(m.life)], []
        if m.kind is Kind.WELCOME:
            self.life = m.life
            if m.extra:  # others continued without the copy held here, so it must not count as the newest
                self.held = replace(self.held, version=0)
            if not self._known:
                self._count_from(m.sequence)
            return self._lost_after(m.sequence, self._numbers + 1, parked=0)
        if m.kind is Kind.REFUSED and not m.number and not self.life and m.extra == _TABLE:
            return [], self._all(m)
        if m.life != self.life:
            return [], []
        if m.kind is Kind.GAP:
            return self._lost_after(m.sequence - 1, self._numbers + 1, parked=0)
        if m.kind is Kind.PONG:
            return self._lost_after(m.sequence, m.number, parked=m.extra)
        return [], self._answered(m)

    def _answered(self, m: Message) -> list[tuple[int, Message]]:
        if m.vector and m.kind is not Kind.KEPT:
            self._hold(m)
        if m.kind is Kind.APPLIED:
            return self._arrived(m.sequence)
        request = self.waiting.pop(m.number, None)
        if request is None:
            return []
        if m.kind is Kind.REFUSED and request.kind in CHANGING:
            return [(m.number, m), *self._undo(request, m)]
        return [(m.number, m)]

    def _undo(self, request: Message, refusal: Message) -> list[tuple[int, Message]]:
        """Cancel a rejected update and all requests after it."""
        self._sequence = request.sequence - 1
        self.kept = {sequence: one for sequence, one in self.kept.items() if sequence < request.sequence}
        return self._all(refusal, after=request.number)

    def _all(self, answer: Message, after: int = 0) -> list[tuple[int, Message]]:
        """Return one answer for all requests after a rejected greeting or update, except removals after an update."""
        found = [at for at, one in self.waiting.items() if at > after and not (after and one.kind is Kind.BURY)]
        for number in found:
            del self.waiting[number]
        return [(number, answer) for number in found]

    def _hold(self, m: Message) -> None:
        if m.version < self.held.version and m.life == self._held_life:
            return
        exchange = self.waiting.get(m.number) if m.kind is Kind.BEFORE else None
        if m.kind is Kind.BEFORE and exchange is None:
            return  # answered before
        mean = m.kind is Kind.MEAN or (m.kind is Kind.COPY and m.extra > 0)
        self.held, self._held_life = Held(m.version, m.vector, m.entries, exchange, mean), m.life
        mine = next((entry for entry in m.entries if entry.rank == self.rank), Entry(self.rank, True, 0, 0))
        self._mine, self.clock = mine.sequence, max(self.clock, mine.clock)
        self.kept = {sequence: one for sequence, one in self.kept.items() if sequence > self._mine}

    def _arrived(self, sequence: int) -> list[tuple[int, Message]]:
        """Return answers for the pushes and gradients up to this one, which are in the shard's copy."""
        done = [
            number
            for number, one in self.waiting.items()
            if (one.kind is Kind.GRADIENT or (one.kind is Kind.PUSH and not one.extra)) and one.sequence <= sequence
        ]
        answer = Message(kind=Kind.APPLIED, rank=self.rank, sequence=sequence, life=self.life)
        for number in done:
            del self.waiting[number]
        return [(number, answer) for number in done]

    def _count_from(self, sequence: int) -> None:
        """Continue the numbers of an earlier process of this rank, whose updates the shard has counted."""
        self._known, self._mine = True, sequence
        self._sequence += sequence
        self.kept = {seq + sequence: replace(one, sequence=seq + sequence) for seq, one in self.kept.items()}
        self.waiting = {number: replace(one, sequence=one.sequence + sequence) for number, one in self.waiting.items()}

    def _lost_after(self, sequence: int, before: int, parked: int) -> tuple[list[Message], list[tuple[int, Message]]]:
        """Send again the messages until ``before`` that are not in the copy, not parked and not answered."""
        answers = self._arrived(sequence)
        kept = {one.number: one for seq, one in self.kept.items() if seq > sequence}
        again = {number: one for number, one in (kept | self.waiting).items() if number < before and number != parked}
        return [replace(again[number], life=self.life) for number in sorted(again)], answers

    def _hello(self) -> Message:
        return Message(
            kind=Kind.HELLO,
            rank=self.rank,
            sequence=self._mine,
            clock=self.clock,
            version=self.held.version,
            value=self.waits_s,
            extra=int(self.left),
            table=self.table,
            dtype=self.dtype,
            elements=self.elements,
            entries=tuple(Entry(rank, False, 0, 0) for rank in sorted(self.gone)),
        )

    def _offer(self, life: int) -> Message:
        return Message(
            kind=Kind.OFFER,
            rank=self.rank,
            version=self.held.version,
            life=life,
            extra=int(self.held.mean),
            table=self.table,
            dtype=self.dtype,
            elements=self.elements,
            entries=self.held.entries,
            vector=self.held.vector(),
        )
