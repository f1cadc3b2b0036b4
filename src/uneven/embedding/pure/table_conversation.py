"""A worker's state of the connection to one shard: messages to send, updates to keep, requests to complete.

A connection preserves the order of messages, so the answer to a ping shows which earlier messages were lost; these are
sent again. The worker keeps each update until the shard confirms that it is applied. A restarted shard has the rows of
its last checkpoint; updates that were applied after it are lost, and counted.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from uneven.embedding.pure.row_optimizers import Bags
from uneven.embedding.pure.table_wire import WIRES, Say, TableMessage

Answers = list[tuple[int, TableMessage]]  # (request number, answer)


@dataclass(slots=True)
class TableLink:
    """The state of one connection."""

    rank: int
    text: str  # describes the rows of the shard
    table: int  # fingerprint of ``text``
    life: int = 0  # start of the shard that has welcomed this worker; 0 before
    version: int = 0  # updates of all workers in its rows, as last reported
    given: int = 0  # updates this worker has made in total
    lost: int = 0  # of these, applied by a shard and then lost in its restart
    restarts: int = 0  # observed restarts of the shard
    kept: dict[int, TableMessage] = field(default_factory=dict)  # updates not yet confirmed, by sequence number
    waiting: dict[int, TableMessage] = field(default_factory=dict)  # unanswered requests, by number
    sequence: int = 0  # of its last update
    _numbers: int = 0
    _last: int = 0  # life of the latest welcome
    _applied: int = 0

    def request(
        self, kind: Say, bags: tuple[Bags, ...] = (), *, meeting: int = 0, text: str = "", wire: str = WIRES[0]
    ) -> tuple[int, list[TableMessage]]:
        """Create a request; return its number, and the messages to send now (none before the shard's welcome)."""
        message = self._new(kind, bags, meeting=meeting, text=text, wire=wire)
        self.waiting[message.number] = message
        return message.number, [message] if self.life else []  # `_welcomed` sends it otherwise

    def change(self, kind: Say, bags: tuple[Bags, ...], version: int, **more: Any) -> list[TableMessage]:
        """Create an update of rows looked up at ``version``; return the messages to send now."""
        self.sequence += 1
        self.given += 1
        message = self._new(kind, bags, sequence=self.sequence, version=version, **more)
        self.kept[self.sequence] = message
        return [message] if self.life else []

    def beat(self) -> TableMessage:
        """Return a heartbeat, whose answer reveals lost messages."""
        return self._new(Say.PING) if self.life else self._hello()

    def leave(self) -> TableMessage:
        return self._new(Say.LEAVE)

    def forget(self, number: int) -> None:
        self.waiting.pop(number, None)

    def receive(self, m: TableMessage) -> tuple[list[TableMessage], Answers]:
        """Handle a shard's message; return messages to send, and answered requests."""
        if m.kind is Say.WHO:
            # It answers a message from before the welcome.
            if m.life == self.life:
                return [], []
            self.life = 0
            return [self._hello()], []
        if m.kind is Say.WELCOME:
            return self._welcomed(m), []
        if m.kind is Say.REFUSED and not self.life:
            return [], [(number, m) for number in self._all()]  # OPEN was rejected: no request will be answered
        if m.life != self.life:  # from before a restart
            return [], []
        self.version = max(self.version, m.version)
        if m.kind is Say.PONG:
            self.note(m.sequence)
            return self._again(m.number), []
        if m.kind in (Say.POOLED, Say.FLUSHED):
            self.note(m.sequence)
        if self.waiting.pop(m.number, None) is None:
            return [], []
        return [], [(m.number, m)]

    def _welcomed(self, m: TableMessage) -> list[TableMessage]:
        before = self._last
        self._last = self.life = m.life
        self.version = m.version
        new = m.life != before  # the same life again only answers a repeated greeting, perhaps late
        if new and before:
            self.restarts += 1
            self.lost += max(0, self._applied - m.sequence)
        if new and (not before or m.sequence < self._applied):
            # The shard accepts only consecutive updates: renumber the kept ones from its last one.
            kept = list(self.kept.values())
            self.sequence = m.sequence + len(kept)
            self.kept = {m.sequence + place: one for place, one in enumerate(kept, 1)}
            self.kept = {sequence: replace(one, sequence=sequence) for sequence, one in self.kept.items()}
            self._applied = m.sequence
        self.note(m.sequence)
        return self._again(self._numbers + 1)

    def note(self, sequence: int) -> None:
        """Drop the updates up to this one, which the shard has applied."""
        self._applied = max(self._applied, sequence)
        for one in [one for one in self.kept if one <= sequence]:
            del self.kept[one]

    def _again(self, before: int) -> list[TableMessage]:
        """Resend messages older than number ``before`` that are unconfirmed, in the order of their creation."""
        lost = {one.number: one for one in (*self.kept.values(), *self.waiting.values()) if one.number < before}
        return [self._renewed(lost[number]) for number in sorted(lost)]

    def _renewed(self, m: TableMessage) -> TableMessage:
        # Another life has other shared memory.
        return m if m.life == self.life else replace(m, life=self.life, place=None)

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
