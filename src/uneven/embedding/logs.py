"""Click logs that are read once, from files, row by row where they are asked for.

A stream has no index by which workers could each take samples at their own pace. A log in files has one: rows are
counted where it is opened, and each worker reads and parses those that it has taken from the counter of all, in its
own reader processes. So each row is parsed once, fast trainers take more, and what was left of a pass when a state was
saved is read when the run goes on. Text is found by the place of every 256th line; of Parquet, which has row groups, a
worker decodes each group that it has rows of.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uneven.embedding.columns import Columns, LogRows, Wholes, as_ids, read_text
from uneven.errors import ConfigError, DataError
from uneven.npy import load_array, load_arrays

_STEP = 256
"""Lines from one known place to the next."""
_BLOCK_BYTES = 1 << 22

LogBatch = tuple[Tensor, Tensor, Tensor]
"""ids of shape (n, fields), numbers of shape (n, numbers), clicked of shape (n,)."""


class ClickLog:
    """A data set of the rows of some files, in their order.

    ``session.loader(log, 128, shuffle=False, collate_fn=log.collate, num_workers=1, …)``: torch's reader processes
    parse, and hold at most ``prefetch_factor`` batches each.

    Args:
        files: text whose fields tabs divide, ``.parquet`` (needs pyarrow), or ``.npz`` of :func:`write_log`.
        columns: what is in them; Criteo's by default. Of Parquet they are counted as in its schema.
        index: a folder in which the places of lines are kept for the next who opens it; None for nowhere.

    Raises:
        ConfigError: no file.
        DataError: one that cannot be read.
    """

    def __init__(
        self, files: Iterable[str | Path], *, columns: Columns | None = None, index: str | Path | None = None
    ) -> None:
        self.columns = columns or Columns()
        paths = [Path(one) for one in files]
        if not paths:
            raise ConfigError("ClickLog: give at least one file")
        self._files = [_opened(one, self.columns, None if index is None else Path(index)) for one in paths]
        self._ends = list(accumulate(len(one) for one in self._files))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> LogBatch:
        ids, numbers, clicked = self.__getitems__([index])
        return ids[0], numbers[0], clicked[0]

    def __getitems__(self, indices: Sequence[int]) -> LogBatch:
        """The rows of a batch, which need not be neighbours.

        Raises:
            DataError: one that is malformed.
        """
        found = [self._files[file].read(start, stop) for file, start, stop in self._runs(indices)]
        ids, numbers, clicked = (np.concatenate(one) for one in zip(*found, strict=True))
        return torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(clicked)

    @staticmethod
    def collate(batch: LogBatch) -> LogBatch:
        """It is one already."""
        return batch

    def _runs(self, indices: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """File, first row and the one after the last, of rows that are neighbours."""
        files = [bisect_right(self._ends, one) for one in indices]
        pairs = list(zip(indices, files, strict=True))
        for (file, _), run in groupby(enumerate(pairs), lambda one: (one[1][1], one[1][0] - one[0])):
            rows = [index for _, (index, _) in run]
            before = self._ends[file] - len(self._files[file])
            yield file, rows[0] - before, rows[-1] + 1 - before


def write_log(samples: Iterable[tuple[Any, Any, Any]], folder: str | Path, *, rows: int = 1 << 16) -> list[Path]:
    """Write whatever can be iterated down, once, as files that a :class:`ClickLog` reads; one worker does.

    Args:
        samples: ids, numbers, and whether it was clicked; of one row each.
        rows: in one file.

    Returns:
        The files, in their order.

    Raises:
        DataError: there is no sample.
    """
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    kept: list[tuple[Any, Any, Any]] = []

    def write() -> None:
        ids, numbers, clicked = zip(*kept, strict=True)
        made.append(where / f"rows-{len(made):06d}.npz")
        arrays = np.array(ids, np.int64), np.array(numbers, np.float32), np.array(clicked, np.float32)
        np.savez(made[-1], **dict(zip(LogRows._fields, arrays, strict=True)))  # type: ignore[arg-type]
        kept.clear()

    for one in samples:
        kept.append(one)
        if len(kept) == rows:
            write()
    if kept:
        write()
    if not made:
        raise DataError("write_log: there is no sample to write down")
    return made


class _LogFile(ABC):
    """One file, of so many rows."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    @abstractmethod
    def read(self, start: int, stop: int) -> LogRows:
        """These rows."""


def _opened(path: Path, columns: Columns, index: Path | None) -> _LogFile:
    try:
        if path.suffix == ".parquet":
            return _ParquetFile(path, columns)
        return _ArrayFile(path) if path.suffix == ".npz" else _TextFile(path, columns, index)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error


class _TextFile(_LogFile):
    def __init__(self, path: Path, columns: Columns, index: Path | None) -> None:
        self._path, self._columns = path, columns
        stat = path.stat()
        kept = None
        if index is not None:
            name = zlib.crc32(f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns}".encode())
            kept = index / f"{path.name}.{name:08x}.npy"
        if kept is not None and kept.exists():
            found = load_array(kept)
        else:
            found = _places(path)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                part = kept.with_suffix(f".{id(self):x}.part")
                with part.open("wb") as file:
                    np.save(file, found)
                part.replace(kept)
        self.rows, self._places = int(found[-1]), found[:-1]

    def read(self, start: int, stop: int) -> LogRows:
        first, last = start // _STEP, -(-stop // _STEP)
        with self._path.open("rb") as file:
            file.seek(int(self._places[first]))
            text = file.read(int(self._places[last]) - int(self._places[first]))
        lines = text.split(b"\n")[start - first * _STEP : stop - first * _STEP]
        lines = [one.removesuffix(b"\r") for one in lines]
        return read_text(lines, self._columns, f"{self._path}, row {start}")


def _places(path: Path) -> Wholes:
    """Where every 256th line begins, where the text ends, and how many lines there are."""
    found, lines, at, last = [0], 0, 0, b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
            first = -lines % _STEP or _STEP  # the so many-th line end from here begins a new step
            found += (at + ends[first - 1 :: _STEP] + 1).tolist()
            lines, at, last = lines + len(ends), at + len(block), block[-1:]
    if last not in (b"", b"\n"):
        lines += 1
    if not lines % _STEP and lines and found[-1] >= at:
        found.pop()  # a step that begins where the text ends
    return np.array([*found, at, lines], np.int64)


class _ArrayFile(_LogFile):
    """One of :func:`write_log`; it is read when it is first needed, and kept while it is the one in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: LogRows | None = None
        self.rows = len(load_arrays(path, ["clicked"])["clicked"])

    def read(self, start: int, stop: int) -> LogRows:
        if self._held is None:
            self._held = LogRows(**load_arrays(self._path, LogRows._fields))
        ids, numbers, clicked = self._held
        found = LogRows(ids[start:stop], numbers[start:stop], clicked[start:stop])
        if stop == self.rows:
            self._held = None
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}


class _ParquetFile(_LogFile):
    def __init__(self, path: Path, columns: Columns) -> None:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise ConfigError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow") from error
        self._path, self._columns = path, columns
        opened = ParquetFile(path)
        groups = [opened.metadata.row_group(place).num_rows for place in range(opened.num_row_groups)]
        self._names = list(opened.schema_arrow.names)
        opened.close()
        self._ends = list(accumulate(groups))
        self.rows = self._ends[-1] if groups else 0
        self._held: tuple[int, LogRows] | None = None
        if (needed := max(columns.clicked, *columns.numbers, *columns.ids, 0)) >= len(self._names):
            raise DataError(f"{path}: {len(self._names)} columns, and one numbered {needed}, from 0, is asked for")

    def read(self, start: int, stop: int) -> LogRows:
        parts = []
        while start < stop:
            group = bisect_right(self._ends, start)
            before = self._ends[group - 1] if group else 0
            end = min(stop, self._ends[group])
            parts.append([one[start - before : end - before] for one in self._group(group)])
            start = end
        return LogRows(*(np.concatenate(one) for one in zip(*parts, strict=True)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def _group(self, group: int) -> LogRows:
        if self._held is None or self._held[0] != group:
            self._held = group, self._decoded(group)
        return self._held[1]

    def _decoded(self, group: int) -> LogRows:
        from pyarrow.parquet import ParquetFile

        c = self._columns
        wanted = [self._names[place] for place in (c.clicked, *c.numbers, *c.ids)]
        with ParquetFile(self._path) as opened:
            table = opened.read_row_group(group, columns=wanted)
        found = [table.column(name) for name in wanted]
        try:
            numbers = [one.fill_null(0).to_numpy().astype(np.float32) for one in found[: 1 + len(c.numbers)]]
            ids = [_column_ids(one, c.kind) for one in found[1 + len(c.numbers) :]]
        except ValueError as error:
            raise DataError(f"{self._path}, row group {group}: {error}") from error
        return LogRows(_beside(ids, np.int64, table), _beside(numbers[1:], np.float32, table), numbers[0])


def _column_ids(column: Any, kind: str) -> Wholes:
    import pyarrow

    if pyarrow.types.is_integer(column.type):
        return column.fill_null(0).to_numpy().astype(np.int64)
    texts = [(one or "").encode() for one in column.cast(pyarrow.string()).to_pylist()]
    return as_ids(np.array(texts), kind)


def _beside(columns: list[Any], dtype: Any, table: Any) -> Any:
    return np.stack(columns, 1) if columns else np.zeros((table.num_rows, 0), dtype)
