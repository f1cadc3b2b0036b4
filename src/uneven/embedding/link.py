"""A worker's end of its conversation with one shard of tables. Pure: what to send, what to keep, what is answered.

A connection keeps the order of messages, so the answer to a ping shows what has become of everything sent before it:
what it does not name has been lost, and is sent again. The worker keeps each update until it hears that it is in the
rows. A shard that has been started again has the rows of its last checkpoint; updates that were in the rows and came
after that are lost, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from uneven.embedding.rows import Bags
from uneven.embedding.wire import Say, TableMessage

Answers = list[tuple[int, TableMessage]]
"""Number of a request, and what answers it."""


@dataclass(slots=True)
class TableLink:
    """The state of one conversation.

    Args:
        rank: this worker.
        text: describes what the shard holds.
        table: fingerprint of that.

    Attributes:
        life: of the shard that has welcomed this worker; 0 while none has.
        version: updates of all workers in its rows, as it said last.
        given: updates of this worker, all that were ever made.
        lost: of these, that a shard had taken into its rows and does not hold any more.
        restarts: how often it was found to have been started again.
        kept: updates of which it is not known that they are in the rows, by sequence number.
        waiting: requests that have not been answered, by number.
    """

    rank: int
    text: str
    table: int
    life: int = 0
    version: int = 0
    given: int = 0
    lost: int = 0
    restarts: int = 0
    kept: dict[int, TableMessage] = field(default_factory=dict)
    waiting: dict[int, TableMessage] = field(default_factory=dict)
    _numbers: int = 0
    _sequence: int = 0
    _last: int = 0  # life that has welcomed this worker last
    _applied: int = 0

    def request(
        self, kind: Say, bags: tuple[Bags, ...] = (), *, meeting: int = 0, text: str = "", halves: bool = False
    ) -> tuple[int, list[TableMessage]]:
        """A new request: its number, and what to send now, nothing while no shard has welcomed this worker."""
        message = self._new(kind, bags, meeting=meeting, text=text, halves=halves)
        self.waiting[message.number] = message
        return message.number, [message] if self.life else []

    def change(self, kind: Say, bags: tuple[Bags, ...], version: int) -> list[TableMessage]:
        """A new update, which nothing answers; what to send now.

        Args:
            version: of the rows that its lookup saw.
        """
        self._sequence += 1
        self.given += 1
        message = self._new(kind, bags, sequence=self._sequence, version=version)
        self.kept[self._sequence] = message
        return [message] if self.life else []

    def beat(self) -> TableMessage:
        """To be sent from time to time: a sign of life, whose answer shows what has been lost."""
        return self._new(Say.PING) if self.life else self._hello()

    def leave(self) -> TableMessage:
        """Nobody shall wait for this worker."""
        return self._new(Say.LEAVE)

    def forget(self, number: int) -> None:
        """Wait no more for an answer."""
        self.waiting.pop(number, None)

    def receive(self, m: TableMessage) -> tuple[list[TableMessage], Answers]:
        """Take a shard's message: what to send, and what has been answered."""
        if m.kind is Say.WHO:
            if m.life == self.life:
                return [], []
            self.life = 0
            return [self._hello()], []
        if m.kind is Say.WELCOME:
            return self._welcomed(m), []
        if m.kind is Say.REFUSED and not self.life:
            return [], [(number, m) for number in self._all()]
        if m.life != self.life:
            return [], []
        self.version = max(self.version, m.version)
        if m.kind is Say.PONG:
            self._note(m.sequence)
            return self._again(m.number), []
        if m.kind in (Say.POOLED, Say.FLUSHED):
            self._note(m.sequence)
        if self.waiting.pop(m.number, None) is None:
            return [], []
        return [], [(m.number, m)]

    def _welcomed(self, m: TableMessage) -> list[TableMessage]:
        again, before = self._last > 0, self._last
        self._last = self.life = m.life
        self.version = m.version
        if again and m.life != before:  # not an answer to one more greeting
            self.restarts += 1
            self.lost += max(0, self._applied - m.sequence)
        if not again or m.sequence < self._applied:  # count on from what it holds; what is kept here follows on that
            kept = list(self.kept.values())
            self._sequence = m.sequence + len(kept)
            self.kept = {m.sequence + place: one for place, one in enumerate(kept, 1)}
            self.kept = {sequence: replace(one, sequence=sequence) for sequence, one in self.kept.items()}
            self._applied = m.sequence
        self._note(m.sequence)
        return self._again(self._numbers + 1)

    def _note(self, sequence: int) -> None:
        """Updates up to this one are in the rows."""
        self._applied = max(self._applied, sequence)
        for one in [one for one in self.kept if one <= sequence]:
            del self.kept[one]

    def _again(self, before: int) -> list[TableMessage]:
        """Send again what was sent before the message ``before``, and has not arrived; in the order of its making."""
        lost = {one.number: one for one in (*self.kept.values(), *self.waiting.values()) if one.number < before}
        return [replace(lost[number], life=self.life) for number in sorted(lost)]

    def _all(self) -> list[int]:
        numbers = list(self.waiting)
        self.waiting.clear()
        return numbers

    def _new(self, kind: Say, bags: tuple[Bags, ...] = (), **more: Any) -> TableMessage:
        self._numbers += 1
        return TableMessage(
            kind=kind, rank=self.rank, number=self._numbers, life=self.life, table=self.table, bags=bags, **more
        )

    def _hello(self) -> TableMessage:
        return TableMessage(kind=Say.OPEN, rank=self.rank, table=self.table, text=self.text)
