"""One shard of the parameter server: the answers to messages. Pure: ``host`` has sockets and clocks.

A new shard has no state. It asks the member with the newest copy for it, and then serves. (At first all members hold
their initial parameters, and it asks the lowest rank.) ::

    GATHERING ── all have greeted, left or stayed away ──► SEEDING ── the offer has come ──► SERVING

Every change makes a new vector, so a reply is a reference and a rejected message has changed nothing.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from uneven.runtime.parameter_server.pure import vectors
from uneven.runtime.parameter_server.pure.quorum import Done, Rounds
from uneven.runtime.parameter_server.pure.roster import FOLLOWER, KnownWorker, Patience, followed, least_clock_for
from uneven.runtime.parameter_server.pure.vectors import MovementMerges
from uneven.runtime.parameter_server.pure.wire import (
    CHANGING,
    MOST_ENTRIES,
    Entry,
    Kind,
    Message,
    Refusal,
    Refused,
    Vector,
    decode,
)

MOST_STEPS = 1 << 48  # the largest valid clock


def check_numbers(m: Message, members: int) -> None:
    """Check the numbers of a message to a shard with ``members`` members. Raises Refused with the reason."""
    if max(m.clock, m.version, m.extra) > MOST_STEPS:
        raise Refused(Refusal.STEP)
    if m.value < 0:
        raise Refused(Refusal.SCALE)
    if m.kind not in CHANGING:
        return
    if not m.sequence:
        raise Refused(Refusal.SEQUENCE)
    if m.kind is Kind.MOVEMENT and not (0 <= m.momentum < 1 and m.grace >= 0):
        raise Refused(Refusal.SCALE)
    if m.kind is not Kind.GRADIENT and not 0 < m.value <= (1 if m.kind is Kind.EXCHANGE else m.value):
        raise Refused(Refusal.SCALE)
    if m.kind in (Kind.GRADIENT, Kind.MOVEMENT) and not 1 <= m.extra <= members:
        raise Refused(Refusal.QUORUM)


_LEAVING = frozenset({Kind.PING, Kind.MEET, Kind.BURY})  # the messages after which a left member stays left
_CLOCKED = frozenset({Kind.PULL, Kind.FOLLOW})  # the requests that wait for clocks


def _asks(m: Message) -> bool:
    return m.kind is Kind.PUSH and m.extra > 0


@dataclass(slots=True)
class Shard:
    """The state of one shard."""

    life: int  # a number other than 0 that identifies this start of the shard
    members: Collection[int]  # ranks of the workers at the start of the run
    patience: Patience = field(default_factory=Patience)
    growing: bool = False  # others with new ranks may come later
    # applied, repeated, late, gaps, left, returned, lost, restored (1 if a worker's copy from an earlier life was
    # taken), and one count for each reason of a rejection
    counts: Counter[str] = field(default_factory=Counter)
    vector: Vector = ()
    version: int = 0
    rounds: Rounds = field(default_factory=Rounds)
    movements: MovementMerges = field(default_factory=MovementMerges)
    _table: tuple[int, int, int] | None = None
    _asked: int | None = None
    _greetings: dict[int, Message] = field(default_factory=dict)
    _line: frozenset[int] = frozenset()  # members that had greeted when this life began
    _began_s: float | None = None
    _now_s: float = 0.0
    _crew: dict[int, KnownWorker] = field(init=False)

    def __post_init__(self) -> None:
        self._crew = {rank: KnownWorker() for rank in self.members}

    @property
    def serving(self) -> bool:
        return bool(self.vector)

    busy: ClassVar[bool] = False  # all its work is answers

    @property
    def least_clock(self) -> int:
        """The least clock of the counted workers; 0 without any."""
        return min((one.clock for one in self._crew.values() if one.counted), default=0)

    def here(self, rank: int) -> bool | None:
        return self._crew[rank].here

    def take(self, frames: Sequence[Any], now_s: float) -> tuple[int | None, list[Message]]:
        """Answer one message. Return its sender (None if unknown), and messages, each to the member ``rank``."""
        rank: int | None = None
        number, self._now_s = 0, now_s
        try:
            message = decode(frames)
            if message.kind >= Kind.WELCOME:
                raise Refused(Refusal.DIRECTION)
            if message.rank not in self._crew:
                self._enlist(message)
            rank, number = message.rank, message.number
            return rank, self._answer(message, now_s)
        except Refused as refused:
            self.counts[refused.reason.value] += 1
            if rank is None:
                return None, []
            reason = list(Refusal).index(refused.reason)
            return rank, [Message(kind=Kind.REFUSED, rank=rank, number=number, life=self.life, extra=reason)]

    def tick(self, now_s: float) -> list[Message]:
        """Return the messages due by time: members fall silent, waits end. Call it a few times per second."""
        out: list[Message] = []
        self._now_s = now_s
        silence_s = self._bounded(self.patience.silence_s)
        if not self.serving and self._began_s is not None:
            holds = any(one.version for one in self._greetings.values())
            limit_s = silence_s if holds else self._bounded(self.patience.join_s)
            if now_s - self._began_s > limit_s:
                for member in self._crew.values():
                    if member.here is None:
                        self._lose(member)
        for rank, member in self._crew.items():
            if member.here and now_s - member.heard_s > silence_s:
                out += self._leave(rank)
        if not self.serving:
            return out + self._ask()
        for rank, member in self._crew.items():
            if member.parked and now_s > member.parked[1]:
                out.append(self._missing(rank, member.parked[0]))
                member.parked = None
        return out + self._wake()

    def _enlist(self, m: Message) -> None:
        """Add a worker that joins after the start of the run."""
        if not self.growing or m.kind is not Kind.HELLO or m.rank >= MOST_ENTRIES:
            raise Refused(Refusal.RANK)
        self._crew[m.rank] = KnownWorker()

    def _bury(self, rank: int) -> list[Message]:
        """Mark a member as failed: no worker waits for it, and its messages in flight are not accepted."""
        if rank not in self._crew and not (self.growing and rank < MOST_ENTRIES):
            raise Refused(Refusal.RANK)
        member = self._crew.setdefault(rank, KnownWorker())
        already, member.buried = member.buried, True
        # In no copy yet, so its samples come again: a later merge may not contain it, too.
        self.movements.open.pop(rank, None)
        return [] if already else self._leave(rank)

    def _bounded(self, most_s: float) -> float:
        """Return the longest wait for a silent member, so that no waiting worker times out before its answer."""
        return min([most_s, *(one.waits_s / 2 for one in self._crew.values() if one.here)])

    def _answer(self, m: Message, now_s: float) -> list[Message]:
        self._check(m)
        member = self._crew[m.rank]
        member.heard_s = now_s
        if member.buried and not (m.kind is Kind.BURY and m.extra == m.rank):
            raise Refused(Refusal.RANK)
        if m.kind is Kind.LEAVE:
            member.left, member.parked = True, None
            return self._leave(m.rank) if not self.serving else self._wake()
        if m.kind is Kind.HELLO:
            return self._greet(m, now_s)
        if m.life != self.life:
            return [self._to(m, Kind.WHO)]
        if m.kind is Kind.OFFER:
            return self._seed(m)
        if not self.serving or member.here is None:
            return [self._to(m, Kind.WHO)]
        if not member.buried and (not member.here or (member.left and m.kind not in _LEAVING)):
            member.here, member.left = True, False
            self.counts["returned"] += 1
        if m.kind in CHANGING:
            return self._change(m, member, now_s)
        if m.kind in (Kind.ASK, Kind.KEEP):
            return [self._copy(m, Kind.KEPT, self.movements.kept(self.vector, m.vector))]
        if m.kind in (Kind.PING, Kind.MEET):
            member.met = max(member.met, m.clock)
            member.through = m.extra if m.kind is Kind.PING else member.through
        if m.kind is Kind.BURY:
            out = self._bury(m.extra)
            one = self._crew[m.extra]
            entry = Entry(m.extra, False, one.sequence, one.clock)
            return [replace(self._to(m, Kind.BURIED), entries=(entry,)), *out]
        if m.kind is Kind.PING:
            held = member.parked[0] if member.parked else self.movements.open.get(m.rank)
            parked = held.number if held else 0
            return [self._to(m, Kind.PONG, sequence=member.sequence, extra=parked), *self._wake()]
        member.parked = (m, now_s + m.value)
        return self._wake()

    def _check(self, m: Message) -> None:
        about = (m.table, m.dtype, m.elements)
        if (m.kind is Kind.HELLO or m.vector) and self._table is not None and about != self._table:
            raise Refused(Refusal.TABLE)
        if m.kind is Kind.HELLO and not m.elements:
            raise Refused(Refusal.TABLE)
        check_numbers(m, len(self._crew))

    def _greet(self, m: Message, now_s: float) -> list[Message]:
        member = self._crew[m.rank]
        self._table = m.table, m.dtype, m.elements
        gone = [one for entry in m.entries for one in self._bury(entry.rank)]
        if member.here is False:
            self.counts["returned"] += 1
        member.here, member.left = True, bool(m.extra)
        member.waits_s = m.value or math.inf
        member.clock = max(member.clock, m.clock)
        if self.serving:
            return [self._welcome(m), *gone]
        self._began_s = now_s if self._began_s is None else self._began_s
        self._greetings[m.rank] = m
        return [*gone, *([self._to(m, Kind.WANT)] if self._asked == m.rank else self._ask())]

    def _ask(self) -> list[Message]:
        """Ask for the newest copy, once all members have greeted or are given up."""
        if self._asked is not None or any(one.here is None for one in self._crew.values()):
            return []
        present = [one for rank, one in self._greetings.items() if self._crew[rank].here]
        if not present:
            return []
        newest = max(present, key=lambda one: (one.version, -one.rank))
        self._asked = newest.rank
        return [self._to(newest, Kind.WANT)]

    def _seed(self, m: Message) -> list[Message]:
        strange = not self.growing and any(one.rank not in self._crew for one in m.entries)
        if self.serving or m.rank != self._asked or strange:
            raise Refused(Refusal.UNASKED)
        self.vector, self.version = m.vector, m.version
        for entry in m.entries:
            if entry.rank not in self._crew:  # it may have failed; if not, it greets
                self._crew[entry.rank] = KnownWorker(here=False)
            self._crew[entry.rank].sequence = entry.sequence
            self._crew[entry.rank].clock = max(self._crew[entry.rank].clock, entry.clock)
        if m.extra and m.version:  # the copy is the mean of a step
            self.rounds.restore(Done(m.version - 1, m.vector, m.entries))
        self.counts["restored"] = int(m.version > 0)
        greeted, self._greetings = self._greetings, {}
        self._line = frozenset(rank for rank in greeted if self._crew[rank].here)
        return [self._welcome(greeted[rank]) for rank in self._line]

    def _welcome(self, m: Message) -> Message:
        """Report which of its updates are in the copy, and whether its own copy is not an ancestor of this one."""
        member = self._crew[m.rank]
        if member.sequence < m.sequence:  # the copy with the rest was absent when the state was restored
            self.counts["lost"] += m.sequence - member.sequence
            member.sequence = m.sequence
        stray = m.rank not in self._line and m.version > 0
        return self._to(m, Kind.WELCOME, sequence=member.sequence, extra=int(stray))

    def _change(self, m: Message, member: KnownWorker, now_s: float) -> list[Message]:
        if m.sequence > member.sequence + 1:
            self.counts["gaps"] += 1
            return [self._to(m, Kind.GAP, sequence=member.sequence + 1)]
        if m.sequence <= member.sequence:
            self.counts["repeated"] += 1
            return self._again(m, member, now_s)
        if m.kind is Kind.GRADIENT:
            return self._contribute(m, member)
        if m.kind is Kind.MOVEMENT:
            self.movements.add(m, now_s)  # counted as applied when its merge closes: until then the worker keeps it
            return self._wake()
        before = self.vector
        change = m.vector if m.kind is Kind.PUSH else vectors.difference(m.vector, before, m.value)
        after = vectors.add(before, m.value if m.kind is Kind.PUSH else 1.0, change)
        if after is None:
            raise Refused(Refusal.VALUE)
        self.vector, self.version = after, self.version + 1
        self._advance(m, member)
        self.counts["applied"] += 1
        if _asks(m):
            return self._then_pull(m, member, now_s)
        if m.kind is Kind.PUSH:
            reply = self._to(m, Kind.APPLIED, sequence=m.sequence)
        else:
            reply = member.answer = self._copy(m, Kind.BEFORE, before)
        return [reply, *self._wake()]

    def _then_pull(self, m: Message, member: KnownWorker, now_s: float) -> list[Message]:
        # Park the pull before the push wakes others. Then all that wait for one clock get the same copy, and no update
        # of a later step comes in between.
        pull = replace(m, kind=Kind.PULL, clock=m.extra - 1, vector=(), elements=0)
        member.parked = (pull, now_s + m.version / 1e3)
        return self._wake()

    def _again(self, m: Message, member: KnownWorker, now_s: float) -> list[Message]:
        """Answer an update that is in the copy already, because its answer was lost."""
        if _asks(m):
            return self._then_pull(m, member, now_s)
        if m.kind is Kind.MOVEMENT:
            return [self._copy(m, Kind.COPY, self.vector)]
        if m.kind is not Kind.EXCHANGE:
            return [self._to(m, Kind.APPLIED, sequence=m.sequence)]
        if member.answer is not None and member.answer.sequence == m.sequence:
            return [member.answer]
        return [self._copy(m, Kind.COPY, self.vector)]

    def _contribute(self, m: Message, member: KnownWorker) -> list[Message]:
        if m.clock > self.rounds.newest + 1:
            raise Refused(Refusal.STEP)
        late = m.clock <= self.rounds.newest or m.rank in self.rounds.given
        complete = not late and self.rounds.add(m.rank, m.value, m.vector, m.extra)
        self._advance(m, member)
        self.counts["late"] += late
        if complete:
            self._close()
        self.counts["applied"] += 1
        return [self._to(m, Kind.APPLIED, sequence=m.sequence), *self._wake()]

    def _close(self) -> None:
        self.vector = self.rounds.close(self._entries())
        self.version = self.rounds.newest + 1

    def _merged(self) -> list[Message]:
        if not self.movements.ready(self._now_s, all_here=self._nobody_comes(set(self.movements.open))):
            return []
        given, after = self.movements.close(self.vector)
        if after is None:
            self.counts[Refusal.VALUE.value] += len(given)
            return [self._to(one, Kind.REFUSED, extra=list(Refusal).index(Refusal.VALUE)) for one in given]
        self.vector, self.version = after, self.version + 1
        for one in given:
            self._advance(one, self._crew[one.rank])
        self.counts["applied"] += len(given)
        return [self._copy(one, Kind.COPY, self.vector) for one in given]

    def _nobody_comes(self, given: set[int]) -> bool:
        """Return whether there are contributions, but a quorum cannot come: the other members have left or finished."""
        if not given:
            return False
        epochs = max(self._crew[rank].through for rank in given)
        coming = (rank for rank, one in self._crew.items() if one.counted and not one.meeting and one.through <= epochs)
        return given.issuperset(coming)

    def _advance(self, m: Message, member: KnownWorker) -> None:
        member.sequence, member.answer = m.sequence, None
        clock = m.clock if m.kind is not Kind.GRADIENT else m.clock + 1
        member.clock = clock if m.rank == FOLLOWER else max(member.clock, clock)

    def _wake(self) -> list[Message]:
        if self._nobody_comes(self.rounds.given):
            self._close()
        out = self._merged()
        for member in self._crew.values():
            if member.parked is None:
                continue
            reply = self._now(member.parked[0], member)
            if reply is not None:
                member.parked = None
                out.append(reply)
        return out

    def _now(self, m: Message, member: KnownWorker) -> Message | None:
        waits = self.movements.open.get(m.rank)  # it is here, but in no copy yet
        if max(member.sequence, waits.sequence if waits else 0) < m.sequence:  # an earlier message of it was lost
            return self._to(m, Kind.GAP, sequence=member.sequence + 1)
        if m.kind is Kind.PULL:
            least = least_clock_for(m.rank, self._crew)
            return self._copy(m, Kind.COPY, self.vector) if least >= m.clock else None
        if m.kind is Kind.FOLLOW:
            clock, epochs = followed(m.rank, self._crew)
            found = self._copy(m, Kind.FOLLOWED, self.vector)
            return None if clock < m.clock and epochs == m.extra > 0 else replace(found, clock=clock, extra=epochs)
        if m.kind is Kind.MEET:
            late = any(one.here and one.met < m.clock for one in self._crew.values())
            return None if late else self._copy(m, Kind.COPY, self.vector)
        if m.clock > self.rounds.newest:
            return None
        done = self.rounds.find(m.clock)
        newest = self.rounds.newest
        if done is None:
            return self._to(m, Kind.GONE, clock=m.clock, extra=newest)
        return Message(
            kind=Kind.MEAN,
            rank=m.rank,
            number=m.number,
            clock=m.clock,
            version=m.clock + 1,
            life=self.life,
            value=float(m.rank in done.ranks),
            extra=newest,
            table=self._known[0],
            dtype=self._known[1],
            elements=self._known[2],
            entries=done.entries,
            vector=done.mean,
        )

    def _leave(self, rank: int) -> list[Message]:
        self._lose(self._crew[rank])
        if self._asked == rank and not self.serving:
            self._asked = None
        return self._wake() if self.serving else self._ask()

    def _lose(self, member: KnownWorker) -> None:
        if member.here is not False:
            self.counts["left"] += 1
        member.here, member.parked = False, None

    @property
    def _known(self) -> tuple[int, int, int]:
        assert self._table is not None  # there is a vector, so a member has greeted
        return self._table

    def _entries(self) -> tuple[Entry, ...]:
        return tuple(Entry(rank, one.counted, one.sequence, one.clock) for rank, one in self._crew.items())

    def _missing(self, rank: int, m: Message) -> Message:
        """Name the members that ``rank`` waits for: a lower clock, not at the meeting, or no gradient in the step."""
        behind = [entry for entry in self._entries() if self._behind(entry, m)]
        return Message(
            kind=Kind.MISSING, rank=rank, number=m.number, clock=m.clock, life=self.life, entries=tuple(behind)
        )

    def _behind(self, entry: Entry, m: Message) -> bool:
        if m.kind is Kind.MEET:
            member = self._crew[entry.rank]
            return bool(member.here) and member.met < m.clock
        return entry.here and (entry.clock < m.clock if m.kind in _CLOCKED else entry.rank not in self.rounds.given)

    def _copy(self, m: Message, kind: Kind, vector: Vector) -> Message:
        table, dtype, elements = self._known
        return Message(
            kind=kind,
            rank=m.rank,
            number=m.number,
            sequence=m.sequence,
            clock=self.least_clock,
            version=self.version,
            life=self.life,
            extra=int(self.rounds.newest >= 0 and kind is Kind.COPY),
            table=table,
            dtype=dtype,
            elements=elements,
            entries=self._entries(),
            vector=vector,
        )

    def _to(self, m: Message, kind: Kind, *, sequence: int = 0, clock: int = 0, extra: int = 0) -> Message:
        return Message(
            kind=kind, rank=m.rank, number=m.number, sequence=sequence, clock=clock, life=self.life, extra=extra
        )
