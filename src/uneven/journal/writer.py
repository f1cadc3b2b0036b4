"""The writer of one rank's journal."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType

from uneven.errors import JournalError
from uneven.policy.core.records import Record, to_json

_log = logging.getLogger("uneven.journal")


class Writer:
    """A writer that appends records to one file.

    Records are passed to the operating system before :meth:`write` returns, so killing the process loses none; a crash
    of the machine loses those not yet on disk. A failed write (full disk, lost file server) never stops the training:
    the logger ``uneven.journal`` warns once, :attr:`lost` counts the records, and each later record is tried again.
    Only opening raises JournalError, before training starts.

    To append to an existing file, write a new RunRecord first: it begins another life of the run. Not thread-safe.
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
                "the journal %s could not be written (%s); training goes on, records are missing from here "
                "on until there is room again",
                self.path,
                why,
            )
        self.lost += count

    def close(self) -> None:
        """Close the file. Idempotent."""
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
