"""Click logs in files, read once and row by row, on demand.

Rows are counted when a log is opened. Workers lease them from a common counter, so each row is parsed once, in one
worker's reader processes. For text, the offset of every 256th line is kept; of Parquet, a worker decodes the row groups
it needs. Each process unpacks a gzip file from its start, which is slow only if rows are requested out of order.
"""

import gzip
import os
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from uneven.embedding.pure.columns import Columns, LogRows, Wholes, as_floats, as_ids, in_order, is_header, read_text
from uneven.errors import ConfigError, DataError, UnevenError
from uneven.runtime.npy import load_array, load_arrays

_STEP = 256  # lines per known offset
_BLOCK_BYTES = 1 << 22
_PACKED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

_Path = str | Path
LogBatch = tuple[Tensor, Tensor, Tensor]
"""ids of shape (n, fields), numbers of shape (n, numbers), clicked of shape (n,)."""


class ClickLog:
    """A map-style data set of the rows of some files, in their order.

    ``session.loader(log, 128, shuffle=False, collate_fn=log.collate, num_workers=1, …)``: torch's reader processes
    parse, and hold at most ``prefetch_factor`` batches each.

    Args:
        files: one path or several: text with fields separated by tabs, or by commas in ``.csv``, optionally gzipped,
            with or without a header line; ``.parquet`` (needs pyarrow); or ``.npz`` of :func:`write_log`.
        columns: of the files; Criteo's by default. For Parquet, indices into its schema.
        index: folder that caches line offsets for the next run; None for no cache.

    Raises:
        ConfigError: no file is given.
        DataError: a file cannot be read, or all are empty.
    """

    def __init__(
        self, files: _Path | Iterable[_Path], *, columns: Columns | None = None, index: _Path | None = None
    ) -> None:
        self.columns = columns or Columns()
        several = isinstance(files, Iterable) and not isinstance(files, str) and not hasattr(files, "columns")
        given: list[Any] = list(files) if several else [files]  # type: ignore[arg-type]
        if wrong := [type(one).__name__ for one in given if not isinstance(one, str | os.PathLike)]:
            raise ConfigError(f"ClickLog got a {wrong[0]}: give paths of files; frame.to_parquet(path) writes a frame")
        paths = [Path(one) for one in given]
        if not paths:
            raise ConfigError("ClickLog: give at least one file")
        self._files = [_opened(one, self.columns, None if index is None else Path(index)) for one in paths]
        named = [one for one in self._files if one.names]
        for one in named:
            for ours, first in zip(one.names, named[0].names, strict=True):
                if ours != first:
                    raise DataError(
                        f"{one.path} has {ours!r} but {named[0].path} has {first!r}: give all files the same columns"
                    )
        self._ends = list(accumulate(one.rows for one in self._files))
        if not self._ends[-1]:
            raise DataError(f"ClickLog: no rows in {', '.join(map(str, paths))}: name files that have some")

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> LogBatch:
        ids, numbers, clicked = self.__getitems__([index])
        return ids[0], numbers[0], clicked[0]

    def __getitems__(self, indices: Sequence[int]) -> LogBatch:
        """Return a batch, not necessarily of adjacent rows: ids (n, fields), numbers (n, numbers), clicks (n,).

        Raises:
            DataError: a row is malformed.
            IndexError: a row does not exist.
        """
        found = []
        for file, start, stop in self._runs([range(len(self))[one] for one in indices]):
            with _readable(self._files[file].path):
                found.append(self._files[file].read(start, stop))
        ids, numbers, clicked = (np.concatenate(one) for one in zip(*found, strict=True))
        return torch.from_numpy(ids), torch.from_numpy(numbers), torch.from_numpy(clicked)

    @staticmethod
    def collate(batch: LogBatch) -> LogBatch:
        """Return the batch: :meth:`__getitems__` has collated it."""
        return batch

    def _runs(self, indices: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield file, first and end row of each run of adjacent rows."""
        files = [bisect_right(self._ends, one) for one in indices]
        pairs = list(zip(indices, files, strict=True))
        for (file, _), run in groupby(enumerate(pairs), lambda one: (one[1][1], one[1][0] - one[0])):
            rows = [index for _, (index, _) in run]
            before = self._ends[file] - self._files[file].rows
            yield file, rows[0] - before, rows[-1] + 1 - before


def write_log(samples: Iterable[tuple[Any, Any, Any]], folder: str | Path, *, rows: int = 1 << 16) -> list[Path]:
    """Write samples to files that a :class:`ClickLog` reads; call it on one worker.

    Args:
        samples: ids, numbers and click of one row each.
        folder: where the files are written.
        rows: per file.

    Returns:
        The files, in order.

    Raises:
        DataError: there are no samples, or one holds other values than integer ids and numbers.
    """
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    kept: list[tuple[Any, Any, Any]] = []

    def write() -> None:
        try:
            ids, numbers, clicked = map(np.array, zip(*kept, strict=True))
            found = LogRows(as_ids(ids, "int"), as_floats(numbers), as_floats(clicked, labels=True))
        except ValueError as error:
            raise DataError(f"write_log: {len(kept)} samples from {len(made) * rows} on: {error}") from error
        made.append(where / f"rows-{len(made):06d}.npz")
        np.savez(made[-1], **found._asdict())
        kept.clear()

    for one in samples:
        kept.append(one)
        if len(kept) == rows:
            write()
    if kept:
        write()
    if not made:
        raise DataError("write_log: no samples to write: give at least one batch")
    return made


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, LookupError, NotImplementedError, zlib.error, BadZipFile) as error:
        if isinstance(error, UnevenError):
            raise
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


class _LogFile(ABC):
    """A log file; ``names`` are those of its selected columns, if any."""

    path: Path
    rows: int
    names: tuple[str, ...] = ()

    @abstractmethod
    def read(self, start: int, stop: int) -> LogRows:
        """Return the rows from ``start`` to before ``stop``."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}


def _opened(path: Path, columns: Columns, index: Path | None) -> _LogFile:
    with _readable(path):
        if path.is_dir():
            raise DataError(f"{path} is a folder: give the paths of the files in it")
        with path.open("rb") as file:
            head = file.read(4)
        if path.suffix == ".parquet" or head == b"PAR1":
            return _ParquetFile(path, columns)
        if head == b"PK\3\4":
            return _ArrayFile(path)
        if path.suffix == ".npz":
            raise DataError(f"{path} was not written by write_log")
        return _TextFile(path, columns, index, packed=head[:2] == b"\x1f\x8b")


class _TextFile(_LogFile):
    def __init__(self, path: Path, columns: Columns, index: Path | None, packed: bool) -> None:
        self.path = path
        self._columns = columns
        self._packed = packed
        self._divider = b"," if ".csv" in path.name.lower() else b"\t"
        self._held: tuple[int, IO[bytes], int, bytes] | None = None
        with self._open() as file:
            first = next((one for one in file if one.strip(b"\r\n\xef\xbb\xbf")), b"")
            begin = file.tell() - len(first)
            for start, what in _PACKED.items():
                if first.startswith(start):
                    raise DataError(f"{path} is compressed with {what}: decompress it, or compress it with gzip")
            if b"\0" in first:
                raise DataError(f"{path} is not UTF-8 text: extract an archive, or write arrays with write_log")
            if first.startswith(b"\xef\xbb\xbf"):
                begin = begin + 3
                first = first[3:]
            line = first.removesuffix(b"\n").removesuffix(b"\r")
            fields = line.split(self._divider)
            self._width = len(fields)
            if first and self._width < columns.needed:
                raise DataError(
                    f"{path}: {self._width} fields separated by {self._divider.decode()!r}, but columns= asks for "
                    f"column {columns.needed - 1} (counted from 0)"
                )
            broken = b"\r" in line or line.count(b'"') % 2  # not a header: reading it as a row reports the error
            if first and not broken and is_header(fields, columns):
                begin += len(first)
                if not fields[-1].isdigit():
                    self.names = tuple(fields[place].decode(errors="replace") for place in columns.every)
            found = _kept_places(path, file, begin, index)
        self.rows = int(found[-1])
        self._places = found[:-1]

    def read(self, start: int, stop: int) -> LogRows:
        first, last = start // _STEP, -(-stop // _STEP)
        text = self._text(int(self._places[first]), int(self._places[last]))
        lines = [line for one in text.split(b"\n") if (line := one.removesuffix(b"\r"))]
        lines = lines[start - first * _STEP : stop - first * _STEP]
        if len(lines) < stop - start:
            raise DataError(f"{self.path} became shorter after it was opened: do not change a log while it is read")
        return read_text(lines, self._columns, self.path, start, self._width, self._divider)

    def _open(self) -> Any:
        return gzip.open(self.path) if self._packed else self.path.open("rb")

    def _text(self, begin: int, end: int) -> bytes:
        if not self._packed:
            with self._open() as file:
                file.seek(begin)
                return file.read(end - begin)
        # Popped, so that no other thread uses it. A forked process must reopen it: the parent shares the file offset.
        held = self.__dict__.pop("_held", None)
        process, file, at, text = held if held and held[0] == os.getpid() else (os.getpid(), self._open(), 0, b"")
        if not at <= begin <= at + len(text):
            file.seek(begin)
            at, text = begin, b""
        text = text[begin - at :]
        text += file.read(max(0, end - begin - len(text)))
        self._held = process, file, begin, text  # the next batch begins within the same step
        return text[: end - begin]


def _kept_places(path: Path, file: IO[bytes], begin: int, index: Path | None) -> Wholes:
    if index is None:
        return _places(file, begin)
    stat = path.stat()
    # another name if the file has changed
    name = zlib.crc32(f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns} {begin}".encode())
    kept = index / f"{path.name}.{name:08x}.npy"
    if kept.exists():
        with _readable(kept):
            return load_array(kept)
    found = _places(file, begin)
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{id(found):x}.part")
    with part.open("wb") as out:
        np.save(out, found)
    part.replace(kept)
    return found


def _places(file: IO[bytes], begin: int) -> Wholes:
    """Return the offset of every 256th line, that of the end, and the number of lines; empty lines do not count."""
    file.seek(begin)
    found, lines, at, rest, block = [], 0, begin, b"", b"-"
    while block:
        block = file.read(_BLOCK_BYTES)
        text = rest + (block or b"\n")  # the last line may lack its end
        whole, rest = text[: text.rfind(b"\n") + 1], text[text.rfind(b"\n") + 1 :]
        letters = np.frombuffer(whole, np.uint8)
        ends = np.flatnonzero(letters == 10)
        begins = np.concatenate([[0], ends + 1])[: len(ends)]
        begins = begins[(ends - begins > 1) | ((ends > begins) & (letters[begins] != 13))]
        found += (at + begins[-lines % _STEP :: _STEP]).tolist()  # counts on across blocks
        lines, at = lines + len(begins), at + len(whole)
    return np.array([*found, at, lines], np.int64)


class _ArrayFile(_LogFile):
    """A file of :func:`write_log`, loaded on first use and kept until its last row is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: LogRows | None = None
        try:
            self.rows = len(load_arrays(path, ["clicked"])["clicked"])
        except KeyError as error:
            raise DataError(
                f"{path} was not written by write_log: extract a zip, and write arrays with write_log"
            ) from error

    def read(self, start: int, stop: int) -> LogRows:
        held = self._held or LogRows(**load_arrays(self.path, LogRows._fields))
        shapes = held.ids.shape, held.numbers.shape, held.clicked.shape
        if [len(one) for one in shapes] != [2, 2, 1] or {one[0] for one in shapes} != {self.rows}:
            raise DataError(f"{self.path}: its arrays have the shapes {shapes}, not a row per sample: write it again")
        self._held = None if stop == self.rows else held
        ids, numbers, clicked = (one[start:stop] for one in held)
        return LogRows(as_ids(ids, "int"), as_floats(numbers), as_floats(clicked, labels=True))


class _ParquetFile(_LogFile):
    def __init__(self, path: Path, columns: Columns) -> None:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise ConfigError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow") from error
        self.path = path
        self._columns = columns
        with ParquetFile(path) as opened:
            groups = [opened.metadata.row_group(place).num_rows for place in range(opened.num_row_groups)]
            schema = opened.schema_arrow
        if columns.needed > len(schema):
            raise DataError(
                f"{path}: {len(schema)} columns, but columns= asks for column {columns.needed - 1} (counted from 0)"
            )
        self._names = list(schema.names)
        wanted = schema.empty_table().select([*columns.every])
        self.names = tuple(wanted.column_names)
        if twice := next((one for one in wanted.column_names if self._names.count(one) > 1), None):
            raise DataError(f"{path}: {self._names.count(twice)} columns have the name {twice!r}: rename them")
        self._rows_of(wanted)  # raises for a column type that does not convert
        self._ends = list(accumulate(groups))
        self.rows = self._ends[-1] if groups else 0
        self._held: tuple[int, LogRows] | None = None

    def read(self, start: int, stop: int) -> LogRows:
        parts = []
        while start < stop:
            group = bisect_right(self._ends, start)
            before = self._ends[group - 1] if group else 0
            end = min(stop, self._ends[group])
            parts.append([one[start - before : end - before] for one in self._group(group)])
            start = end
        return LogRows(*(np.concatenate(one) for one in zip(*parts, strict=True)))

    def _group(self, group: int) -> LogRows:
        held = self._held
        if held is None or held[0] != group:
            from pyarrow.parquet import ParquetFile

            with ParquetFile(self.path) as opened:
                table = opened.read_row_group(group, columns=list(self.names))
            self._held = held = group, self._rows_of(table.select(self.names))
        return held[1]

    def _rows_of(self, table: Any) -> LogRows:
        def read(place: int, convert: Callable[[Any], Any], values: Callable[[Any], Any] = _values) -> Any:
            name = self._names[place]
            try:
                return convert(values(table.column(name)))
            except ValueError as error:
                raise DataError(f"{self.path}: column {name!r}: {error}") from error

        c, rows = self._columns, table.num_rows
        ids = [read(place, partial(as_ids, kind=c.kind), partial(_values, exact=True)) for place in c.ids]
        numbers = [read(place, as_floats) for place in c.numbers]
        clicked = np.full(rows, np.nan, np.float32)
        if c.clicked is not None:
            clicked = read(c.clicked, partial(as_floats, labels=True))
        sequences = [
            read(place, partial(in_order, most=most, kind=c.kind), _lists) for place, most in c.sequences.items()
        ]
        every = np.concatenate([_stacked(ids, np.int64, rows), *sequences], 1)
        return LogRows(every, _stacked(numbers, np.float32, rows), clicked)


def _values(column: Any, exact: bool = False) -> Any:
    """Return a column as numbers or bytes (n,); nulls become NaN or empty, or 0 if ``exact`` integers are wanted."""
    import pyarrow as pa

    is_a = pa.types
    if is_a.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if is_a.is_floating(kind):
        return column.to_numpy()
    if is_a.is_integer(kind) or is_a.is_decimal(kind) or is_a.is_boolean(kind):
        column = column.cast(pa.int64()).fill_null(0) if exact else column.cast(pa.float64(), safe=False)
        return column.to_numpy()
    try:
        texts = [one or b"" for one in column.cast(pa.large_binary()).to_pylist()]
    except NotImplementedError:
        raise ValueError(f"has type {kind}: cast it to integers, floats or text") from None
    if any(b"\0" in one for one in texts):
        raise ValueError("has the character NUL in a text: remove it")
    return np.array(texts, np.bytes_)


def _lists(column: Any) -> list[Any]:
    """Return a column of lists, or of ids in text with spaces, as lists."""
    if hasattr(column.type, "value_field"):  # of all types of lists
        each = [one or [] for one in column.to_pylist()]
        return [[x.encode() if isinstance(x, str) else x for x in one] for one in each]
    texts = _values(column)
    if texts.dtype.kind != "S":
        raise ValueError(f"has type {column.type}: give lists, or text with spaces")
    return [one.split() for one in texts.tolist()]


def _stacked(columns: list[Any], dtype: Any, rows: int) -> Any:
    return np.stack(columns, 1) if columns else np.zeros((rows, 0), dtype)
