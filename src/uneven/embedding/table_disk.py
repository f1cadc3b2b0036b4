"""Rows on disk, and those of them in memory.

::

    record of a row    its numbers, then −G of Adagrad's sum G (−0.0 with SGD): (dim + 1) float32
    never written      a hole in the file, which reads as zeros: the sign of the last number tells the two apart

Each range of rows has a file without a name, which ends with the shard. So runs cannot share one, and a killed shard
leaves none: the next one loads a save. A row that was never written begins from its id.

A save first writes the changed rows in memory, then copies the written parts of the file. A row that leaves the memory
meanwhile gets into the file, so the save has each change from before it began. A piece of the file is copied in the
background, and writes wait for its end, so each saved row is of one time.
"""

import errno
import math
import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from uneven.embedding.pure.config import Table
from uneven.embedding.pure.dynamic_ids import begin_by_id
from uneven.embedding.pure.row_cache import RowCache, Slots, runs, slot_bytes
from uneven.embedding.pure.row_optimizers import Floats, Ids, zeros
from uneven.embedding.pure.shard_tables import ShardSpec, salt_of
from uneven.embedding.pure.sharding_plan import RowRange
from uneven.errors import CheckpointError, ConfigError, reason

_PAGE = 4096  # file systems share blocks of this size between a file and its copy
_PIECE_BYTES = 4 << 20
_BLOCK = 1 << 16  # rows
_NO_RANGES = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # the file system cannot copy ranges


class RowFile:
    """The records of a range of a table's rows, by their places in it."""

    def __init__(self, file: Any, spec: ShardSpec, part: RowRange) -> None:
        table = spec.tables.tables[part.table]
        self.rows = part.rows
        self.dim = table.embedding_dim
        self.record_bytes = 4 * (self.dim + 1)
        self.number: int = file.fileno()
        self._start = part.start
        self._spread = table.spread
        self._salt = salt_of(table, spec.tables.seed)
        self._first_sum = spec.tables.first_sum
        self._copying: list[Future[None]] = []

    def clear(self) -> None:
        os.ftruncate(self.number, 0)
        os.ftruncate(self.number, self.rows * self.record_bytes)

    def read(self, places: Slots, *, every: bool = True) -> tuple[Floats, Floats, Slots]:
        """Return rows (n, dim) and sums (n,) at ascending places (n,), and their indices (n,).

        Without ``every`` it leaves out the rows that were never written.
        """
        parts = [(start * self.record_bytes, many * self.record_bytes) for start, many in runs(places)]
        for start, many in parts if len(parts) > 1 else ():  # so that the disk reads all of them at the same time
            os.posix_fadvise(self.number, start, many, os.POSIX_FADV_WILLNEED)
        text = b"".join([os.pread(self.number, many, start) for start, many in parts])
        if len(text) != len(places) * self.record_bytes:
            raise OSError(errno.EIO, f"{len(text):,} bytes on disk of {len(places):,} rows")
        records = np.frombuffer(text, np.float32).reshape(-1, self.dim + 1)
        written = np.signbit(records[:, -1])
        if not every:
            records = records[written]
        rows, sums = records[:, :-1].copy(), -records[:, -1]
        if every and not written.all():
            rows[~written] = begin_by_id(places[~written] + self._start, self._salt, self.dim, self._spread)
            sums[~written] = self._first_sum
        return rows, sums, np.flatnonzero(written | every)

    def write(self, places: Slots, rows: Floats, sums: Floats) -> None:
        """Write rows (n, dim) and sums (n,) to ascending places (n,), neighbours together."""
        wait(self._copying)
        left = _records(rows, sums).data.cast("B")
        for start, many in runs(places):
            at, end = start * self.record_bytes, (start + many) * self.record_bytes
            while at < end:
                done = os.pwrite(self.number, left[: end - at], at)
                left, at = left[done:], at + done

    def copied(self, to: int, background: Executor) -> Iterator[None]:
        """Copy the written parts to another file, in pieces that cut no record and that file systems can share."""
        piece = math.lcm(self.record_bytes, _PAGE)
        piece *= max(1, _PIECE_BYTES // piece)
        end = self.rows * self.record_bytes
        os.ftruncate(to, end)
        for start in range(0, end, piece):
            self._copying = [background.submit(_copy, self.number, to, start, min(start + piece, end))]
            yield from _until(self._copying[0])
        self._copying = []

    def empty(self, start: int, stop: int) -> bool:
        """Return whether no row at the places ``start`` to ``stop`` was ever written."""
        return _data(self.number, start * self.record_bytes, stop * self.record_bytes) == stop * self.record_bytes


class DiskRows:
    """The rows of a group on disk.

    Attributes:
        counts: rows that were in memory (cached), read from disk, and written to it.

    Raises:
        ConfigError: too little memory, no such folder, too little room in it, or another system than Linux.
    """

    def __init__(self, spec: ShardSpec, number: int, folder: Path | None) -> None:
        if not hasattr(os, "copy_file_range"):
            raise ConfigError("tables on disk need servers on Linux: leave out Table(memory=)")
        group = spec.groups[number]
        needed, free = group.slots * slot_bytes(group.width), psutil.virtual_memory().available
        if needed > free:
            raise ConfigError(
                f"tables on disk need {needed / 1e9:,.1f} GB of memory on a server, and {free / 1e9:,.1f} GB are free: "
                "lower Table(memory=)"
            )
        self.counts = Counter[str]()
        self._cache = RowCache(group.slots)
        self._rows = zeros(group.slots, group.width)
        self._sums = np.zeros(group.slots, np.float32)
        self._bases = group.bases
        self._files = []
        for part in group.ranges:
            file = _opened(spec.tables.tables[part.table], part, folder)
            weakref.finalize(self, file.close)
            self._files.append(RowFile(file, spec, part))
        self.clear()

    def clear(self) -> None:
        """Make all rows unwritten."""
        self._cache.clear()
        for file in self._files:
            file.clear()

    def take(self, ids: Ids, often: Floats | None) -> tuple[Floats, Floats, Slots]:
        """Count lookups (n,) of distinct ids (n,); return copies of rows (n, dim) and sums (n,), slots (n,) to put.

        Without ``often``, return arrays to be filled.
        """
        slots = self._cache.find(ids)
        rows, sums = self._rows[slots], self._sums[slots]
        if often is None:
            return rows, sums, slots
        new = self._cache.see(ids, slots, often)
        missing = np.flatnonzero(slots < 0)
        self.counts["cached"] += len(ids) - len(missing)
        self.counts["read"] += len(missing)
        if len(missing):
            missing = missing[np.argsort(ids[missing])]
            self._make_room(new)
            for file, some, places in self._by_file(ids[missing]):
                rows[missing[some]], sums[missing[some]], _ = file.read(places)
            kept = missing[new[missing] >= 0]
            slots[kept] = new[kept]
            self._cache.place(ids[kept], new[kept])
            slots[self._cache.ids.reshape(-1)[slots] != ids] = -1  # a row of this batch has made room: it is on disk
            self._rows[new[kept]], self._sums[new[kept]] = rows[kept], sums[kept]
        return rows, sums, slots

    def put(self, ids: Ids, slots: Slots, rows: Floats, sums: Floats) -> None:
        """Set the rows (n, dim) and sums (n,) of distinct ids (n,): in their slots, or on disk."""
        there, out = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        self._rows[slots[there]], self._sums[slots[there]] = rows[there], sums[there]
        self._cache.changed[slots[there]] = True
        if len(out):
            out = out[np.argsort(ids[out])]
            self._write(ids[out], rows[out], sums[out])

    def load(self, ids: Ids, rows: Floats, sums: Floats, *, recent: bool) -> None:
        """Set saved rows (n, dim) and sums (n,) of distinct ids (n,); ``recent`` ones were in memory, and get there."""
        if recent:
            new = self._cache.see(ids, self._cache.find(ids), np.ones(len(ids), np.float32))
            self._make_room(new)
            self._cache.place(ids[new >= 0], new[new >= 0])
        self.put(ids, self._cache.find(ids), rows, sums)

    def saving(self, stem: Path, base: int, background: Executor) -> Iterator[None]:
        """Write the range that begins at row ``base`` of the group to ``stem``.newer and ``stem``.disk."""
        file = self._files[self._bases.index(base)]
        with stem.with_name(f"{stem.name}.newer").open("wb") as to:
            for start in range(0, len(self._cache.changed), _BLOCK):
                slots = start + np.flatnonzero(self._cache.changed[start : start + _BLOCK])
                places = self._cache.ids.reshape(-1)[slots] - base
                mine = (places >= 0) & (places < file.rows)
                slots, places = slots[mine], places[mine]
                records = _records(places.view(np.float32), self._rows[slots], self._sums[slots])
                yield from _until(background.submit(to.write, records.tobytes()))
        with stem.with_name(f"{stem.name}.disk").open("wb") as to:
            yield from file.copied(to.fileno(), background)

    def _make_room(self, slots: Slots) -> None:
        leaving, ids = self._cache.leaving(slots[slots >= 0])
        if len(ids):
            self._write(ids, self._rows[leaving], self._sums[leaving])

    def _write(self, ids: Ids, rows: Floats, sums: Floats) -> None:
        self.counts["written"] += len(ids)
        for file, some, places in self._by_file(ids):
            file.write(places, rows[some], sums[some])

    def _by_file(self, ids: Ids) -> Iterator[tuple[RowFile, slice, Slots]]:
        """Yield each range's file, the part of ascending ids (n,) in it, and their places in it."""
        cuts = [*np.searchsorted(ids, self._bases).tolist(), len(ids)]
        for file, base, low, high in zip(self._files, self._bases, cuts, cuts[1:], strict=False):
            if low < high:
                yield file, slice(low, high), ids[low:high].astype(np.int64) - base


def saved_rows(
    stem: Path, spec: ShardSpec, part: RowRange, low: int, high: int, *, every: bool
) -> Iterator[tuple[Slots, Floats, Floats, bool]]:
    """Yield the rows ``low`` to ``high`` of a saved range in blocks; later blocks replace earlier ones.

    A block has the numbers of its rows in the table (n,), rows (n, dim), sums (n,), and whether they were in memory.
    With ``every`` there are also the rows that were never written.
    """
    try:
        with (
            stem.with_name(f"{stem.name}.disk").open("rb") as disk,
            stem.with_name(f"{stem.name}.newer").open("rb") as newer,
        ):
            file = RowFile(disk, spec, part)
            if (size := os.fstat(file.number).st_size) != file.rows * file.record_bytes:
                raise CheckpointError(f"{disk.name} has {size:,} bytes, but {file.rows:,} rows of {file.dim} numbers")
            for start in range(low - part.start, high - part.start, _BLOCK):
                stop = min(start + _BLOCK, high - part.start)
                if every or not file.empty(start, stop):
                    rows, sums, some = file.read(np.arange(start, stop), every=every)
                    yield start + some + part.start, rows, sums, False
            while len(found := np.fromfile(newer, np.float32, _BLOCK * (file.dim + 2))):
                records = found.reshape(-1, file.dim + 2)
                numbers = records[:, 0].copy().view(np.int32).astype(np.int64) + part.start
                some = np.flatnonzero((numbers >= low) & (numbers < high))
                yield numbers[some], records[some, 1:-1], -records[some, -1], True
    except OSError as error:
        raise CheckpointError(f"cannot load {stem}: {reason(error)}") from error


def _opened(table: Table, part: RowRange, folder: Path | None) -> Any:
    where = table.path or str(folder or tempfile.gettempdir())
    needed = part.rows * 4 * (table.embedding_dim + 1)
    try:
        if (free := shutil.disk_usage(where).free) < needed:
            raise ConfigError(
                f"table {table.name!r}: its rows take up to {needed / 1e9:,.1f} GB on disk, and {where} has "
                f"{free / 1e9:,.1f} GB: give Table(path=) a folder on a larger disk"
            )
        return tempfile.TemporaryFile(dir=where, buffering=0)
    except OSError as error:
        raise ConfigError(
            f"table {table.name!r} cannot store rows in {where}: {reason(error)}; give Table(path=) a folder that "
            "exists on the servers' machine"
        ) from error


def _records(*columns: Floats) -> Floats:
    found: Floats = np.column_stack(columns)
    found[:, -1] = -np.abs(found[:, -1])  # its sign marks a written row
    return found


def _until(doing: Future[Any]) -> Iterator[None]:
    """Yield once; then, or if the generator is closed, wait for the end: files must not be closed before."""
    try:
        yield
    finally:
        wait([doing])
    doing.result()


def _data(number: int, at: int, stop: int) -> int:
    """Return the position of the next data of a file; ``stop`` if the rest up to there is a hole."""
    try:
        return min(stop, os.lseek(number, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return stop
        raise


def _copy(source: int, to: int, at: int, stop: int) -> None:
    while (at := _data(source, at, stop)) < stop:
        end = min(stop, os.lseek(source, at, os.SEEK_HOLE))
        while at < end:
            try:
                at += os.copy_file_range(source, to, end - at, at, at)
            except OSError as error:
                if error.errno not in _NO_RANGES:
                    raise
                at += os.pwrite(to, os.pread(source, end - at, at), at)
