"""Appending records to one rank's journal."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType

from uneven.core.records import Record, to_json
from uneven.errors import JournalError

_log = logging.getLogger("uneven.journal")


class Writer:
    """Appends records to one file.

    Records are handed to the operating system before :meth:`write` returns, so killing the process loses
    none; a crash of the machine loses what its kernel had not yet put on disk. There is no buffer and no
    timer here; who has several records hands them over at once (:class:`uneven.journal.BackgroundWriter`).

    A write that fails (full disk, lost file server) never stops the training: the first failure is logged
    as a warning by the logger ``uneven.journal``, :attr:`lost` counts the records, and every later record
    is tried again. Only opening can raise, and that happens before training starts.

    Opening a file that exists appends to it; write a new RunRecord first, it begins another life of the
    same run. Not thread-safe.

    Args:
        path: usually :func:`uneven.journal.rank_path`; missing folders are made.

    Raises:
        JournalError: the folder or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: int | None = os.open(path, flags, 0o644)
            self._torn = _ends_in_mid_line(self._file)
        except OSError as error:
            raise JournalError(
                f"cannot write the journal {path} ({error.strerror}): choose a writable run directory "
                f"with free space, or make this one writable"
            ) from error

    def write(self, *records: Record) -> None:
        """Append records, all at once.

        Raises:
            JournalError: the writer is closed.
        """
        if self._file is None:
            raise JournalError(f"the journal {self.path} is closed: open another Writer to append to it")
        lines = "".join([to_json(record) + "\n" for record in records]).encode()
        if self._torn:  # somebody was stopped in mid-line; a reader skips that line if it ends here
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
                "the journal %s could not be written (%s); training goes on, records are missing from here "
                "on until there is room again",
                self.path,
                why,
            )
        self.lost += count

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _ends_in_mid_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
