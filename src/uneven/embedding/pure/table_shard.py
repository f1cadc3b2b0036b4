"""One shard of tables: the answer to each message. Pure: sockets, clocks and kernels are passed in.

The first worker that connects sends the specification, and all others must send the same one. A gradient carries its
ids and is applied exactly once. The updates of a worker are numbered: the shard skips repeated ones and requests
missing ones.
"""

import json
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from uneven.embedding.pure.config import RowwiseAdagrad
from uneven.embedding.pure.narrow_rows import NarrowRows
from uneven.embedding.pure.row_cache import UNCOUNTED, Slots
from uneven.embedding.pure.row_optimizers import Bags, Floats, Ids, Kernels, finite
from uneven.embedding.pure.shard_tables import Holding, ShardSpec, StoredRows
from uneven.embedding.pure.table_wire import CHANGING, LAST_NUMBER, READER, READING, Say, TableMessage, decode
from uneven.errors import CheckpointError, ConfigError
from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.wire import Refusal, Refused

MOST_STALE = 4096  # the cap of the staleness histogram


class SavedNumbers(NamedTuple):
    """The numbers that a shard saves with its rows."""

    version: int  # lower bound of the updates in the rows, of all workers
    sequences: dict[int, int]  # last applied update of each worker
    save: int = 0  # the same in all shards' marks of one requested save; 0 for automatic ones


class RowFiles(Protocol):
    """The storage of a shard's rows; see :mod:`uneven.embedding.table_files`."""

    def disks(self, spec: ShardSpec) -> dict[int, StoredRows]: ...

    def saving(self, folder: str | None, holding: Holding, numbers: SavedNumbers) -> Generator[None, None, None]: ...

    def restore(self, holding: Holding) -> SavedNumbers | None: ...

    def load(self, folder: str, holding: Holding) -> None: ...

    def loaded(self, folder: str, holding: Holding, numbers: SavedNumbers) -> None: ...


class SharedWithWorkers(Protocol):
    """Memory that workers on the shard's machine read and write; see :mod:`uneven.embedding.shared_rows`."""

    fd: int

    def taken(self) -> list[list[bytes]]: ...

    def rows(self, group: int, rows: int, dim: int) -> Floats: ...

    @property
    def offer(self) -> str: ...

    def region(self, rank: int) -> npt.NDArray[np.uint8]: ...

    def note(self, rank: int, sequence: int, version: int) -> None: ...


@dataclass(slots=True)
class KnownTrainer:
    """A worker as the shard knows it."""

    here: bool | None = None  # has sent a message recently; None before its first one
    left: bool = False  # has sent LEAVE, and no request since
    sequence: int = 0  # its last applied update
    met: int = 0  # number of its last flush
    heard_s: float = 0.0
    parked: TableMessage | None = None  # its flush, which waits for the other workers


@dataclass(slots=True)
class TableShard:
    """The state of one shard.

    Attributes:
        counts: numbers (in rows looked up or updated), busy_us, applied, repeated, gaps, lookups, rows, nonfinite,
            left, failed, served lookups and rows (of readers), and one count per reason of a rejection; statistics add
            those of :class:`uneven.embedding.pure.dynamic_ids.IdMap` and
            :class:`uneven.embedding.table_disk.DiskRows`.
    """

    life: int  # distinguishes this start of the shard from all others; not 0
    members: int  # number of workers; ranks are 0 to members − 1
    kernels: Kernels
    files: RowFiles
    patience: Patience = field(default_factory=Patience)
    clock: Callable[[], float] = lambda: 0.0  # returns seconds, to measure the shard's speed
    shared: SharedWithWorkers | None = None  # None where processes cannot share memory
    counts: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)  # of a gradient's lookup, in updates → count
    version: int = 0  # updates in the rows, plus the number of loads
    holding: Holding | None = None
    _began_s: float | None = None
    _saved_s: float = 0.0
    _saving: Generator[None, None, None] | None = None
    _next: TableMessage | None = None  # a save request that came during an automatic save
    _asked: TableMessage | None = None  # request of the current or last save; None if it was automatic
    _why_not: str = ""  # error of the last save, "" if it succeeded
    _failed: str = ""  # error of a disk that has lost rows: the only answer from then on
    _crew: dict[int, KnownTrainer] = field(init=False)

    def __post_init__(self) -> None:
        self._crew = {rank: KnownTrainer() for rank in range(self.members)}

    @property
    def busy(self) -> bool:
        return self._saving is not None or self._next is not None

    def take(self, frames: Sequence[Any], now_s: float) -> tuple[int | None, list[TableMessage]]:
        """Handle one message; return the sender's rank (None if the message is invalid), and the messages to send."""
        rank: int | None = None
        number = 0
        try:
            message = decode(frames, self._region)
            if message.kind >= Say.WELCOME:
                raise Refused(Refusal.DIRECTION)
            reads = message.rank >= READER
            rank, number = message.rank, message.number
            if not reads and rank not in self._crew:
                raise Refused(Refusal.RANK) from ConfigError(
                    f"table servers know the {self.members} workers of the start, and rank {rank} came later: start "
                    "all workers that use tables with `uneven run --nproc`"
                )
            if reads and message.kind not in READING:
                raise Refused(Refusal.READER)
            trainer = KnownTrainer() if reads else self._crew[rank]  # of a reader nothing is kept
            trainer.heard_s = now_s  # before its content is checked: an invalid request is a heartbeat, too
            if self._failed:
                raise OSError(self._failed)
            return rank, self._timed(message, trainer, now_s)
        except Refused as refused:
            self.counts[refused.reason.value] += 1
            text = refused.reason.value + (f": {refused.__cause__}" if refused.__cause__ else "")
        except OSError as error:
            self.counts["failed"] += 1
            way_out = "make room or give Table(path=) another disk, and load a checkpoint"
            text = self._failed = self._failed or f"the disk of its rows has failed: {error}; {way_out}"
        finally:
            if rank in self._crew and self.shared is not None:
                self.shared.note(rank, self._crew[rank].sequence, self.version)
        if rank is None:
            return None, []
        return rank, [TableMessage(kind=Say.REFUSED, rank=rank, number=number, life=self.life, text=text)]

    def _region(self, rank: int) -> npt.NDArray[np.uint8] | None:
        return None if self.shared is None else self.shared.region(rank)

    def _timed(self, m: TableMessage, trainer: KnownTrainer, now_s: float) -> list[TableMessage]:
        began_s = self.clock()
        answer = self._answer(m, trainer, now_s)
        if m.bags and m.rank < READER:
            self.counts["busy_us"] += round(1e6 * (self.clock() - began_s))
            self.counts["numbers"] += sum(one.width * len(one.ids) for one in m.bags if one.ids is not None)
        return answer

    def tick(self, now_s: float) -> list[TableMessage]:
        """Drop workers that are silent for too long, release the flushes that waited for them, and advance a save."""
        late = self._began_s is not None and now_s - self._began_s > self.patience.join_s
        for trainer in self._crew.values():
            silent = trainer.here and now_s - trainer.heard_s > self.patience.silence_s
            if silent or (late and trainer.here is None):
                self._lose(trainer)
        return self._wake() + self._save(now_s)

    def _answer(self, m: TableMessage, trainer: KnownTrainer, now_s: float) -> list[TableMessage]:
        if m.kind is Say.OPEN and m.rank >= READER:  # no answer before the first worker: the reader greets again
            return [] if self.holding is None else [self._to(m, Say.WELCOME, text=self.holding.spec.text)]
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
        trainer.left &= m.kind is Say.PING  # any real request brings the worker back
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
            given_up = self._give_up_saving()  # before the load, which would mix into the save
            return [*given_up, self._to(m, Say.DONE, text=self._load(m.text, self.holding))]
        if m.kind is Say.STATS:
            return [self._to(m, Say.TOLD, text=self._stats())]
        if m.kind is Say.NAMES:
            return [self._to(m, Say.NAMED, bags=_names(m.text, self.holding))]
        return [self._to(m, Say.PONG, sequence=trainer.sequence)]

    def _open(self, m: TableMessage, trainer: KnownTrainer, now_s: float) -> TableMessage:
        if self.holding is None:
            try:
                spec = ShardSpec.read(m.text)
                fixed = {} if self.shared is None else {"fixed": self.shared.rows}
                self.holding = Holding.of(spec, self.files.disks(spec), **fixed)
            except (ConfigError, MemoryError) as error:
                raise Refused(Refusal.SPEC) from error
            self._began_s = self._saved_s = now_s
            self._go_on(self.holding)
        if m.table != self.holding.spec.fingerprint:
            raise Refused(Refusal.TABLE)
        trainer.here = True
        trainer.left, trainer.met, trainer.parked = False, 0, None  # a new process counts its flushes from 1 again
        if self._saving is None and self._asked is not None and self._asked.rank == m.rank:
            self._asked = None  # it may be a new process, which numbers its requests from 1 again
        offered = "" if self.shared is None else self.shared.offer
        return self._to(m, Say.WELCOME, sequence=trainer.sequence, text=offered)

    def _go_on(self, holding: Holding) -> None:
        try:
            saved = self.files.restore(holding)
        except (CheckpointError, ConfigError):
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
            # The worker has sent its request again, in case it was lost.
            return [] if self._saving is not None else [self._to(m, Say.DONE, text=self._why_not)]
        if self._saving is not None and asked is None:  # automatic; the request follows when it has finished
            self._next = m
            return []
        if self._saving is not None:
            return [] if m is None else [self._to(m, Say.DONE, text="it is saving already; ask again later")]
        numbers = self._numbers()._replace(save=0 if m is None else m.meeting)
        self._saving, self._asked = self.files.saving(None if m is None else m.text, holding, numbers), m
        return []

    def _numbers(self) -> SavedNumbers:
        return SavedNumbers(self.version, {rank: one.sequence for rank, one in self._crew.items()})

    def _give_up_saving(self) -> list[TableMessage]:
        """Abort a save before rows are loaded: it would mix rows from before and after the load."""
        if self._saving is None:
            return []
        self._saving.close()
        self._saving, self._why_not = None, "tables were loaded meanwhile; save again"
        self.counts["not saved"] += 1
        return [] if self._asked is None else [self._to(self._asked, Say.DONE, text=self._why_not)]

    def _save(self, now_s: float) -> list[TableMessage]:
        """Write the next block of a save, or start one if it is due; one block per tick keeps the answers prompt."""
        if self.holding is None or self._failed:
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
        except (OSError, ValueError) as error:
            failed = str(error)
            self.counts["not saved"] += 1
        self._saving, self._why_not = None, failed
        return [] if self._asked is None else [self._to(self._asked, Say.DONE, text=failed)]

    def _load(self, folder: str, holding: Holding) -> str:
        try:
            self.files.load(folder, holding)
            self.version += 1  # marks earlier automatic saves as older
            self.files.loaded(folder, holding, self._numbers())
        except (CheckpointError, OSError, ValueError) as error:
            return str(error)
        return ""

    def _pooled(self, m: TableMessage, holding: Holding, trainer: KnownTrainer) -> TableMessage:
        answers, served = [], "served " * (m.rank >= READER)
        for one in m.bags:
            self._group(one, holding)
            assert one.ids is not None  # wire.decode has checked
            if m.kind is Say.SUMS and not isinstance(holding.spec.tables.optimizer, RowwiseAdagrad):
                raise Refused(Refusal.ROW)
            held, sums, found, _ = self._found(one, holding, m.kind)
            rows: Any = sums[:, None] if m.kind is Say.SUMS else held
            narrow = isinstance(rows, NarrowRows)
            values = rows.lookup(self.kernels, found) if narrow else self.kernels.lookup(rows, found)
            sent = self.kernels.narrowed(values, m.wire)
            answers.append(Bags(one.group, rows.shape[1], one.count, values=sent))
            self.counts[f"{served}rows"] += len(one.ids)
        self.counts[f"{served}lookups"] += 1
        return self._to(m, Say.POOLED, sequence=trainer.sequence, bags=tuple(answers))

    def _change(self, m: TableMessage, holding: Holding, trainer: KnownTrainer) -> list[TableMessage]:
        if m.sequence <= trainer.sequence:
            self.counts["repeated"] += 1
            return []
        if m.sequence > trainer.sequence + 1:
            self.counts["gaps"] += 1
            # number + 1: the worker resends everything older than that, so this update as well.
            return [replace(self._to(m, Say.PONG, sequence=trainer.sequence), number=min(m.number + 1, LAST_NUMBER))]
        trainer.sequence = m.sequence  # even if it is rejected below: it must not be sent again
        given = [self._given(one, holding) for one in m.bags]  # all are checked before any row changes
        optimizer = holding.spec.tables.optimizer
        for sent, values in zip(m.bags, given, strict=True):
            rows, sums, one, taken = self._found(sent, holding, m.kind)
            assert one.ids is not None
            if m.kind is Say.GRADIENT:
                if isinstance(rows, NarrowRows):
                    rows.update(self.kernels, sums, one, values, optimizer)
                else:
                    self.kernels.update(rows, sums, one, values, optimizer)
            else:
                rows[one.ids] = values
                holding.begin_sums(sums, one.ids, one.weights)
            if taken is not None:
                holding.disks[one.group].put(*taken, rows, sums)
        if m.kind is Say.GRADIENT:
            self.staleness[min(max(0, self.version - m.version), MOST_STALE)] += 1
            self.counts["lookups"] += m.lookups
            self.counts["rows"] += m.read
        self.version += 1
        self.counts["applied"] += 1
        return []

    def _given(self, one: Bags, holding: Holding) -> Any:
        """Return the values (bags, dim) float32; raise :class:`Refused` for NaN, also as a weight, or a missing row."""
        self._group(one, holding)
        assert one.values is not None
        values = self.kernels.whole(one.values)
        if not (finite(values) and (one.weights is None or finite(one.weights))):
            self.counts["nonfinite"] += 1
            raise Refused(Refusal.VALUE)
        return values

    def _group(self, one: Bags, holding: Holding) -> None:
        groups = holding.spec.groups
        if one.group >= len(groups) or groups[one.group].width != one.width:
            raise Refused(Refusal.ROW)
        assert one.ids is not None
        if one.ids.dtype == np.int64:
            if not groups[one.group].grows:
                raise Refused(Refusal.ROW)
        elif len(one.ids) and one.ids.view(np.uint32).max() >= groups[one.group].rows:  # or negative
            raise Refused(Refusal.ROW)

    def _found(self, one: Bags, holding: Holding, kind: Say) -> tuple[Any, Floats, Bags, tuple[Ids, Slots] | None]:
        """Return rows (n, dim), sums (n,), and the bags with their places there.

        If they are copies of rows on disk, also return their ids (n,) and slots (n,).
        """
        assert one.ids is not None
        if (disk := holding.disks.get(one.group)) is not None:
            ids, places = self.kernels.distinct(one.ids)
            weight = np.float32(1 if kind is Say.LOOKUP else UNCOUNTED)
            often = weight * np.bincount(places, minlength=len(ids)).astype(np.float32)
            rows, sums, slots = disk.take(ids, None if kind is Say.WRITE else often)
            return rows, sums, replace(one, ids=places), (ids, slots)
        if one.ids.dtype == np.int64:
            grown = holding.slots(one.group, one.ids.astype(np.int64, copy=False), counted=kind is Say.LOOKUP)
            one = replace(one, ids=grown)
        return holding.rows[one.group], holding.sums[one.group], one, None

    def _wake(self) -> list[TableMessage]:
        # A flush is complete when every worker that is present, or may still join, has reached it.
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
        for one in (*self.holding.maps, *self.holding.disks.values()) if self.holding is not None else ():
            counts.update(one.counts if one is not None else {})
        return json.dumps({"version": self.version, "counts": counts, "staleness": self.staleness})

    def _to(
        self, m: TableMessage, kind: Say, *, sequence: int = 0, text: str = "", bags: tuple[Bags, ...] = ()
    ) -> TableMessage:
        return TableMessage(
            kind=kind,
            rank=m.rank,
            number=m.number,
            sequence=sequence,
            life=self.life,
            version=self.version,
            meeting=m.meeting,
            text=text,
            bags=bags,
        )


def _names(text: str, holding: Holding) -> tuple[Bags]:
    """Return the ids that have rows; raise :class:`Refused` if the group does not grow."""
    if not (text.isdecimal() and len(text) < 9 and int(text) < len(holding.maps)):
        raise Refused(Refusal.ROW)
    found = holding.maps[int(text)]
    if found is None:
        raise Refused(Refusal.ROW)
    ids = found.ids[found.taken()]
    return (Bags(int(text), holding.spec.groups[int(text)].width, len(ids), ids, 1),)
