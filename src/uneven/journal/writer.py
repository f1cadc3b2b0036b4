"""The writer of one rank's journal."""

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from uneven.errors import JournalError
from uneven.journal.reader import rank_path, rank_paths
from uneven.policy.core.records import Record, SplitRecord, to_json

_log = logging.getLogger(__name__)

_open: Counter[Path] = Counter()


def writers_of(path: Path) -> int:
    """Return the number of this process's open writers of a journal."""
    return _open[path.resolve()]


class Writer:
    """A writer that appends records to the file ``path``.

    Records are passed to the operating system before :meth:`write` returns, so killing the process loses none. A crash
    of the machine loses those not yet on disk. A failed write (full disk, lost file server) never stops the training.
    The logger ``uneven.journal`` warns once, :attr:`lost` counts the records, and each later record is tried again.
    Only opening raises JournalError, before training starts.

    To append to an existing file, write a new RunRecord first: it begins another life of the run. Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: int | None = os.open(path, flags, 0o644)
            self._torn = _ends_in_mid_line(self._file)
        except OSError as error:
            raise JournalError(
                f"cannot write the journal {path} ({error.strerror}): choose a writable run directory "
                f"with free space, or make this one writable"
            ) from error
        self._counted = path.resolve()
        _open[self._counted] += 1

    def write(self, *records: Record) -> None:
        """Append records in one write; raise JournalError if the writer is closed."""
        if self._file is None:
            raise JournalError(f"the journal {self.path} is closed: open another Writer to append to it")
        lines = "".join([to_json(record) + "\n" for record in records]).encode()
        if self._torn:  # a previous write was incomplete; end its line, which readers then skip
            lines = b"\n" + lines
        try:
            written = os.write(self._file, lines)
        except OSError as error:
            self._lose(len(records), error.strerror or str(error))
        else:
            if written:
                self._torn = lines[written - 1 : written] != b"\n"
            if missing := lines.count(b"\n", written):
                self._lose(missing, "only part of the records could be written")

    def _lose(self, count: int, why: str) -> None:
        if not self.lost:
            _log.warning(
                "cannot write the journal %s (%s); training continues, records are missing until there is space",
                self.path,
                why,
            )
        self.lost += count

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            _open[self._counted] -= 1

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ends_in_mid_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


class BackgroundWriter:
    """A thread that passes records to ``writer``, a :class:`Writer`, every ``every_s`` seconds.

    :meth:`close` closes both.

    Killing the process loses the records of the last ``every_s`` seconds.
    """

    def __init__(self, writer: Writer, every_s: float = 0.5) -> None:
        self._writer = writer
        self._every_s = every_s
        self._records: deque[Record | Callable[[], Record]] = deque()
        self._closing = threading.Event()
        self._wanted = threading.Event()
        self._resting = False  # the thread sleeps until the next record instead of polling
        self._spent_s = 0.0
        self._thread = threading.Thread(target=self._run, name="uneven-journal", daemon=True)
        self._thread.start()

    def write(self, record: Record | Callable[[], Record]) -> None:
        """Queue a record, or a function that creates it in the thread; it is in the file within ``every_s`` seconds."""
        self._records.append(record)
        if self._resting:
            self._wanted.set()

    def take_spent_s(self) -> float:
        """Return the processor seconds spent on writing since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def close(self) -> None:
        """Write the rest and close the file. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            self._wanted.set()
            self._thread.join()
            self._writer.close()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            if not self._drain():
                self._rest()
        self._drain()

    def _rest(self) -> None:
        self._wanted.clear()
        self._resting = True
        if not (self._records or self._closing.is_set()):  # a record queued before the flag set no event
            self._wanted.wait()
        self._resting = False

    # In the loop it would cost more. After a step the caches hold the model, so encoding one record takes ten times as
    # long as one of several.
    def _drain(self) -> int:
        started_s = time.thread_time()
        taken = [self._records.popleft() for _ in range(len(self._records))]
        if taken:
            self._writer.write(*(record() if callable(record) else record for record in taken))
        self._spent_s += time.thread_time() - started_s
        return len(taken)


_HELD = 65_536  # lines buffered for all ranks together: thousands of files cannot stay open


class ManyWriters:
    """A writer that sorts the records of ``run`` into the files of their ranks, those without a rank into the first.

    Killing the process loses buffered lines. Not thread-safe. Raises JournalError if the run already has a journal.
    """

    def __init__(self, run: Path) -> None:
        if rank_paths(run):
            raise JournalError(f"{run} already has a journal: name another directory with --run-dir, or leave it out")
        self._run = run
        self._lines: dict[int, list[str]] = {}
        self._held = 0
        self._first: int | None = None

    def write(self, record: Record) -> None:
        """Add a record; raise JournalError if the disk is full or the directory is missing."""
        if isinstance(record, SplitRecord):
            rank = self._first or 0
        else:
            rank = record.rank
            if self._first is None:
                self._first = rank
        self._lines.setdefault(rank, []).append(to_json(record))
        self._held += 1
        if self._held >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Write buffered lines; raise JournalError if the disk is full or the directory is missing."""
        for rank, lines in self._lines.items():
            path = rank_path(self._run, rank)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n".join([*lines, ""]))
            except OSError as error:
                raise JournalError(
                    f"cannot write the journal {path} ({error.strerror}): choose a run directory with free space"
                ) from error
        self._lines.clear()
        self._held = 0

    def __enter__(self) -> "ManyWriters":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
