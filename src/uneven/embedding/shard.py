"""One shard of tables: what it answers to each message. Pure: sockets, clocks and kernels are given to it.

A shard that starts knows no tables: the first worker that greets it says which rows are here, and all others must say
the same. Lookups leave nothing behind. A gradient brings its ids along, steps on their rows in place, and is applied
once: updates of a worker are numbered, a repeated one is passed over, and a missing one is asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from uneven.embedding.holding import Holding, ShardSpec
from uneven.embedding.rows import Bags, Kernels, finite
from uneven.embedding.wire import CHANGING, Say, TableMessage, decode
from uneven.errors import CheckpointError, ConfigError
from uneven.server.known import Patience
from uneven.server.wire import Refusal, Refused

MOST_STALE = 4096
"""Staler lookups are counted as so stale."""


class SavedNumbers(NamedTuple):
    """What a shard saves beside its rows.

    Attributes:
        version: updates of all workers that are in the rows at least.
        sequences: of each worker's last one.
    """

    version: int
    sequences: dict[int, int]


class RowFiles(Protocol):
    """Where rows are saved; see :mod:`uneven.embedding.files`."""

    def saving(self, folder: str | None, holding: Holding, numbers: SavedNumbers) -> Generator[None, None, None]: ...

    def restore(self, holding: Holding) -> SavedNumbers | None: ...

    def load(self, folder: str, holding: Holding) -> None: ...

    def loaded(self, folder: str, holding: Holding, numbers: SavedNumbers) -> None: ...


@dataclass(slots=True)
class KnownTrainer:
    """A worker as the shard knows it.

    Attributes:
        here: has been heard lately; None before it has greeted.
        left: has said that nobody shall wait for it, and asked for nothing since.
        sequence: of its last update in the rows.
        met: flushes of all that it has come to.
        parked: its flush, which waits for the others.
    """

    here: bool | None = None
    left: bool = False
    sequence: int = 0
    met: int = 0
    heard_s: float = 0.0
    parked: TableMessage | None = None


@dataclass(slots=True)
class TableShard:
    """The state of one shard.

    Args:
        life: distinguishes this start of the shard from every other; not 0.
        members: number of workers; ranks are 0 to members − 1.
        clock: seconds, by which its speed is known.

    Attributes:
        counts: numbers (of rows looked up or stepped on), busy_us (how long it took), applied, repeated, gaps, lookups,
            rows, nonfinite, left, and one count for each reason of a refusal; in what it tells also those of
            :class:`uneven.embedding.growing.IdMap`.
        version: updates in the rows, and how often they were loaded.
        staleness: updates that came between a lookup and its gradient → how often.
    """

    life: int
    members: int
    kernels: Kernels
    files: RowFiles
    patience: Patience = field(default_factory=Patience)
    clock: Callable[[], float] = lambda: 0.0
    counts: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    version: int = 0
    holding: Holding | None = None
    _began_s: float | None = None
    _saved_s: float = 0.0
    _saving: Generator[None, None, None] | None = None
    _next: TableMessage | None = None  # that asks for a save while it saves by itself
    _asked: TableMessage | None = None  # for what is being saved, or was last; None for the shard itself
    _why_not: str = ""  # of the save before, "" where it went well
    _crew: dict[int, KnownTrainer] = field(init=False)

    def __post_init__(self) -> None:
        self._crew = {rank: KnownTrainer() for rank in range(self.members)}

    @property
    def busy(self) -> bool:
        """Whether it is saving."""
        return self._saving is not None or self._next is not None

    def take(self, frames: Sequence[Any], now_s: float) -> tuple[int | None, list[TableMessage]]:
        """Answer one message: the worker that sent it (None if it was none), and messages to workers."""
        rank: int | None = None
        number = 0
        try:
            message = decode(frames)
            if message.kind >= Say.WELCOME:
                raise Refused(Refusal.DIRECTION)
            if message.rank not in self._crew:
                raise Refused(Refusal.RANK)
            rank, number = message.rank, message.number
            trainer = self._crew[rank]
            trainer.heard_s = now_s
            return rank, self._timed(message, trainer, now_s)
        except Refused as refused:
            self.counts[refused.reason.value] += 1
            if rank is None:
                return None, []
            text = refused.reason.value
            return rank, [TableMessage(kind=Say.REFUSED, rank=rank, number=number, life=self.life, text=text)]

    def _timed(self, m: TableMessage, trainer: KnownTrainer, now_s: float) -> list[TableMessage]:
        began_s = self.clock()
        answer = self._answer(m, trainer, now_s)
        if m.bags:
            self.counts["busy_us"] += round(1e6 * (self.clock() - began_s))
            self.counts["numbers"] += sum(one.width * len(one.ids) for one in m.bags if one.ids is not None)
        return answer

    def tick(self, now_s: float) -> list[TableMessage]:
        """What the passing of time brings: workers fall silent, and nobody waits for them."""
        late = self._began_s is not None and now_s - self._began_s > self.patience.join_s
        for trainer in self._crew.values():
            silent = trainer.here and now_s - trainer.heard_s > self.patience.silence_s
            if silent or (late and trainer.here is None):
                self._lose(trainer)
        return self._wake() + self._save(now_s)

    def _answer(self, m: TableMessage, trainer: KnownTrainer, now_s: float) -> list[TableMessage]:
        if m.kind is Say.OPEN:
            return [self._open(m, trainer, now_s)]
        if self.holding is None or m.life != self.life:
            return [self._to(m, Say.WHO)]
        if m.table != self.holding.spec.fingerprint:
            raise Refused(Refusal.TABLE)
        trainer.here = True
        if m.kind is Say.LEAVE:
            trainer.left = True
            return self._wake()
        trainer.left &= m.kind is Say.PING
        if m.kind in (Say.LOOKUP, Say.READ, Say.SUMS):
            return [self._pooled(m, self.holding, trainer)]
        if m.kind in CHANGING:
            return self._change(m, self.holding, trainer)
        if m.kind is Say.FLUSH:
            trainer.met, trainer.parked = max(trainer.met, m.meeting), m
            return self._wake()
        if m.kind is Say.SAVE:
            return self._begin_saving(m, self.holding)
        if m.kind is Say.LOAD:
            given_up = self._give_up_saving()
            return [*given_up, self._to(m, Say.DONE, text=self._load(m.text, self.holding))]
        if m.kind is Say.STATS:
            return [self._to(m, Say.TOLD, text=self._stats())]
        if m.kind is Say.NAMES:
            return [self._to(m, Say.NAMED, bags=_names(m.text, self.holding))]
        return [self._to(m, Say.PONG, sequence=trainer.sequence)]

    def _open(self, m: TableMessage, trainer: KnownTrainer, now_s: float) -> TableMessage:
        if self.holding is None:
            try:
                self.holding = Holding.of(ShardSpec.read(m.text))
            except (ConfigError, MemoryError):
                raise Refused(Refusal.SPEC) from None
            self._began_s = self._saved_s = now_s
            self._go_on(self.holding)
        if m.table != self.holding.spec.fingerprint:
            raise Refused(Refusal.TABLE)
        trainer.here = True
        if self._saving is None and self._asked is not None and self._asked.rank == m.rank:
            self._asked = None  # perhaps another process now, which counts its questions anew
        return self._to(m, Say.WELCOME, sequence=trainer.sequence)

    def _go_on(self, holding: Holding) -> None:
        """An earlier life may have written down what it held."""
        try:
            saved = self.files.restore(holding)
        except CheckpointError:
            self.counts["unreadable"] += 1
            return
        if saved is not None:
            self.version = saved.version
            self.counts["restored"] = 1
            for rank, sequence in saved.sequences.items():
                if rank in self._crew:
                    self._crew[rank].sequence = sequence

    def _begin_saving(self, m: TableMessage | None, holding: Holding) -> list[TableMessage]:
        asked = self._asked
        if m is not None and asked is not None and (m.rank, m.number, m.text) == (asked.rank, asked.number, asked.text):
            # Whoever waits asks again, in case the question was lost.
            return [] if self._saving is not None else [self._to(m, Say.DONE, text=self._why_not)]
        if self._saving is not None and asked is None:  # by itself; it does what it was asked for after that
            self._next = m
            return []
        if self._saving is not None:
            return [] if m is None else [self._to(m, Say.DONE, text="it is saving already; ask again later")]
        self._saving, self._asked = self.files.saving(None if m is None else m.text, holding, self._numbers()), m
        return []

    def _numbers(self) -> SavedNumbers:
        return SavedNumbers(self.version, {rank: one.sequence for rank, one in self._crew.items()})

    def _give_up_saving(self) -> list[TableMessage]:
        """Rows are about to be others, and rows from before and after in one save would be of no moment at all."""
        if self._saving is None:
            return []
        self._saving.close()
        self._saving, self._why_not = None, "tables were loaded meanwhile; save again"
        self.counts["not saved"] += 1
        return [] if self._asked is None else [self._to(self._asked, Say.DONE, text=self._why_not)]

    def _save(self, now_s: float) -> list[TableMessage]:
        """The next block, so that nobody waits for longer than that; and whether it is time again."""
        if self.holding is None:
            return []
        every_s = self.holding.spec.tables.save_every_s
        if self._saving is None and self._next is not None:
            self._begin_saving(self._next, self.holding)
            self._next = None
        if self._saving is None and every_s is not None and now_s - self._saved_s >= every_s:
            self._saved_s = now_s
            self._begin_saving(None, self.holding)
        if self._saving is None:
            return []
        failed = ""
        try:
            next(self._saving)
            return []
        except StopIteration:
            self.counts["saved"] += 1
        except OSError as error:
            failed = str(error)
            self.counts["not saved"] += 1
        self._saving, self._why_not = None, failed
        return [] if self._asked is None else [self._to(self._asked, Say.DONE, text=failed)]

    def _load(self, folder: str, holding: Holding) -> str:
        """Why rows cannot be had from there; "" where they have been."""
        try:
            self.files.load(folder, holding)
            self.version += 1  # what it had saved by itself is older
            self.files.loaded(folder, holding, self._numbers())
        except (CheckpointError, OSError) as error:
            return str(error)
        return ""

    def _pooled(self, m: TableMessage, holding: Holding, trainer: KnownTrainer) -> TableMessage:
        answers = []
        for one in m.bags:
            group = self._group(one, holding)
            assert one.ids is not None  # as the wire has seen
            rows = holding.sums[group][:, None] if m.kind is Say.SUMS else holding.rows[group]
            if not len(rows):  # SGD keeps no sums
                raise Refused(Refusal.ROW)
            values = self.kernels.lookup(rows, _found(one, holding, counted=m.kind is Say.LOOKUP))
            found = self.kernels.halved(values) if m.halves else values
            answers.append(Bags(one.group, rows.shape[1], one.count, values=found))
            self.counts["rows"] += len(one.ids)
        self.counts["lookups"] += 1
        return self._to(m, Say.POOLED, sequence=trainer.sequence, bags=tuple(answers))

    def _change(self, m: TableMessage, holding: Holding, trainer: KnownTrainer) -> list[TableMessage]:
        if m.sequence <= trainer.sequence:
            self.counts["repeated"] += 1
            return []
        if m.sequence > trainer.sequence + 1:
            self.counts["gaps"] += 1
            return [replace(self._to(m, Say.PONG, sequence=trainer.sequence), number=m.number + 1)]  # this one as well
        trainer.sequence = m.sequence  # whatever comes of it: it is not to be sent again
        given = [self._given(one, holding) for one in m.bags]
        optimizer = holding.spec.tables.optimizer
        for sent, (group, values) in zip(m.bags, given, strict=True):
            rows, sums, one = holding.rows[group], holding.sums[group], _found(sent, holding, counted=False)
            assert one.ids is not None
            if m.kind is Say.GRADIENT:
                self.kernels.update(rows, sums, one, values, optimizer)
            else:
                rows[one.ids] = values
                holding.begin_sums(group, one.ids, one.weights)
        if m.kind is Say.GRADIENT:
            self.staleness[min(max(0, self.version - m.version), MOST_STALE)] += 1
        self.version += 1
        self.counts["applied"] += 1
        return []

    def _given(self, one: Bags, holding: Holding) -> tuple[int, Any]:
        """The group and the float32 numbers of some bags.

        Raises:
            Refused: one is NaN or infinite, or a row is not there.
        """
        group = self._group(one, holding)
        assert one.values is not None
        values = one.values if one.values.dtype == np.float32 else self.kernels.whole(one.values)
        if not finite(values):
            self.counts["nonfinite"] += 1
            raise Refused(Refusal.VALUE)
        return group, values

    def _group(self, one: Bags, holding: Holding) -> int:
        groups = holding.spec.groups
        if one.group >= len(groups) or groups[one.group].width != one.width:
            raise Refused(Refusal.ROW)
        assert one.ids is not None
        if one.ids.dtype == np.int64:
            if not groups[one.group].grows:
                raise Refused(Refusal.ROW)
        elif len(one.ids) and one.ids.view(np.uint32).max() >= groups[one.group].rows:  # a negative one is among these
            raise Refused(Refusal.ROW)
        return one.group

    def _wake(self) -> list[TableMessage]:
        least = min((one.met for one in self._crew.values() if one.here is not False and not one.left), default=0)
        out = []
        for trainer in self._crew.values():
            if trainer.parked is not None and trainer.parked.meeting <= least:
                out.append(self._to(trainer.parked, Say.FLUSHED, sequence=trainer.sequence))
                trainer.parked = None
        return out

    def _lose(self, trainer: KnownTrainer) -> None:
        if trainer.here is not False:
            self.counts["left"] += 1
        trainer.here, trainer.parked = False, None

    def _stats(self) -> str:
        counts = Counter(self.counts)
        for one in self.holding.maps if self.holding is not None else ():
            counts.update(one.counts if one is not None else {})
        return json.dumps({"version": self.version, "counts": counts, "staleness": self.staleness})

    def _to(
        self, m: TableMessage, kind: Say, *, sequence: int = 0, text: str = "", bags: tuple[Bags, ...] = ()
    ) -> TableMessage:
        return TableMessage(
            kind=kind, rank=m.rank, number=m.number, sequence=sequence, life=self.life, version=self.version,
            meeting=m.meeting, text=text, bags=bags,
        )  # fmt: skip


def _found(one: Bags, holding: Holding, *, counted: bool) -> Bags:
    """The same bags with the places of their rows instead of ids of any size."""
    if one.ids is None or one.ids.dtype != np.int64:
        return one
    return replace(one, ids=holding.slots(one.group, one.ids.astype(np.int64, copy=False), counted=counted))


def _names(text: str, holding: Holding) -> tuple[Bags, Bags]:
    """Ids that have rows, and where these are.

    Raises:
        Refused: the group does not grow.
    """
    if not (text.isdecimal() and len(text) < 9 and int(text) < len(holding.maps)):
        raise Refused(Refusal.ROW)
    found = holding.maps[int(text)]
    if found is None:
        raise Refused(Refusal.ROW)
    slots, width = found.taken(), holding.spec.groups[int(text)].width
    ids = found.ids[slots]
    return Bags(int(text), width, len(ids), ids, 1), Bags(int(text), width, len(ids), slots, 1)
