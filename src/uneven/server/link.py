"""A worker's end of its conversation with one shard. Pure: what to send, what to keep, what has been answered.

Nothing here waits for a time to pass. A connection keeps the order of messages, so the answer to a ping shows what
has become of everything sent before it: what it does not name as parked, and has not been answered, was lost and is
sent again. Repeating is harmless, since updates are numbered.

The worker keeps the newest copy that it has received, and each of its updates that this copy does not hold. When a
shard has lost its state, the newest of these copies becomes the state again, and everybody sends the updates that it
does not hold: those are exactly the ones that somebody still keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from uneven.server import vectors
from uneven.server.wire import CHANGING, Entry, Kind, Message, Refusal, Vector

_TABLE = list(Refusal).index(Refusal.TABLE)


@dataclass(frozen=True, slots=True)
class Held:
    """The newest copy that this worker has.

    Attributes:
        exchange: after an exchange, what it sent; the copy follows from it and from ``base``, the copy before.
        mean: whether it is the mean of a step.
    """

    version: int
    base: Vector
    entries: tuple[Entry, ...] = ()
    exchange: Message | None = None
    mean: bool = False

    def vector(self) -> Vector:
        """The copy; shape (numbers of this shard,)."""
        if self.exchange is None:
            return self.base
        change = vectors.difference(self.exchange.vector, self.base, self.exchange.value)
        copy = vectors.add(self.base, 1.0, change)
        assert copy is not None  # the shard has reckoned the same and found it finite
        return copy


@dataclass(slots=True)
class Link:
    """The state of one conversation.

    Args:
        rank: this worker.
        table, dtype: as in ``wire.Message``.
        elements: of this shard's vector.
        held: the copy to offer: at first the parameters that the worker starts with, version 0.
        waits_s: how long it waits for an answer, sent along to the shard; 0 leaves that open.

    Attributes:
        life: of the shard that has welcomed this worker; 0 while none has.
        clock: steps that this worker has finished and ``held`` holds, or that it had finished before it began here.
        left: whether it has said that nobody shall wait for it, and asked for nothing since.
        gone: members that are, as this worker has said; told again where a shard is started again.
        met, through: meetings that it has come to, and epochs that it is through with; signs of life tell them.
        kept: updates that ``held`` does not hold, by sequence number.
        waiting: requests that have not been answered, by number.
    """

    rank: int
    table: int
    dtype: int
    elements: int
    held: Held
    waits_s: float = 0.0
    life: int = 0
    clock: int = 0
    left: bool = False
    gone: set[int] = field(default_factory=set)
    met: int = 0
    through: int = 0
    kept: dict[int, Message] = field(default_factory=dict)
    waiting: dict[int, Message] = field(default_factory=dict)
    _numbers: int = 0
    _sequence: int = 0
    _mine: int = 0  # own updates that ``held`` holds
    _held_life: int = 0
    _known: bool = False  # whether a shard has ever welcomed it

    def request(
        self, kind: Kind, *, clock: int, value: float, extra: int = 0, version: int = 0, vector: Vector = (),
        momentum: float = 0.0, grace: float = 0.0,
    ) -> tuple[int, list[Message]]:  # fmt: skip
        """A new request.

        Returns:
            Its number, and what to send now: nothing while no shard has welcomed this worker.
        """
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
            version=version,
            life=self.life,
            value=value,
            extra=extra,
            momentum=momentum,
            grace=grace,
            table=self.table,
            dtype=self.dtype,
            elements=self.elements if vector else 0,
            vector=vector,
        )
        self.waiting[self._numbers] = message
        if changing:
            self.kept[self._sequence] = message
        return self._numbers, [message] if self.life else []

    def beat(self) -> Message:
        """To be sent from time to time: a sign of life, whose answer shows what has been lost."""
        if not self.life:
            return self._hello()
        self._numbers += 1
        return Message(
            kind=Kind.PING,
            rank=self.rank,
            number=self._numbers,
            clock=self.met,
            life=self.life,
            extra=self.through,
        )

    def leave(self) -> Message:
        """Nobody shall wait for this worker, until it asks for something again."""
        self.left = True
        return Message(kind=Kind.LEAVE, rank=self.rank, life=self.life)

    def forget(self, number: int) -> None:
        """Wait no more for the answer to a request. An update is still sent until it has arrived."""
        message = self.waiting.get(number)
        if message is not None and message.kind not in CHANGING:
            del self.waiting[number]

    def receive(self, m: Message) -> tuple[list[Message], list[tuple[int, Message]]]:
        """Take a shard's message.

        Returns:
            What to send, and answers: the number of a request and the message that answers it.
        """
        if m.kind is Kind.WHO:
            if m.life == self.life:
                return [], []  # to something sent before the shard had welcomed this worker
            self.life = 0
            return [self._hello()], []
        if m.kind is Kind.WANT:
            return [self._offer(m.life)], []
        if m.kind is Kind.WELCOME:
            self.life = m.life
            if m.extra:  # others went on without the copy that is held here, which so must not be taken for the newest
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
        """A refused update is taken back, and with it all that was asked for after it."""
        self._sequence = request.sequence - 1
        self.kept = {sequence: one for sequence, one in self.kept.items() if sequence < request.sequence}
        return self._all(refusal, after=request.number)

    def _all(self, answer: Message, after: int = 0) -> list[tuple[int, Message]]:
        """One answer for all that was asked for after a request: a greeting, or an update, was refused."""
        found = [number for number in self.waiting if number > after]
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
        """Answers for the pushes and gradients up to this one, which are in the shard's copy."""
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
        """Go on where an earlier process of this rank ended, whose updates the shard has counted."""
        self._known, self._mine = True, sequence
        self._sequence += sequence
        self.kept = {seq + sequence: replace(one, sequence=seq + sequence) for seq, one in self.kept.items()}
        self.waiting = {number: replace(one, sequence=one.sequence + sequence) for number, one in self.waiting.items()}

    def _lost_after(self, sequence: int, before: int, parked: int) -> tuple[list[Message], list[tuple[int, Message]]]:
        """Send again what was sent before the message ``before``, is neither in the copy nor parked nor answered."""
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
