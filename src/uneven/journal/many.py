"""A writer of the journals of all ranks in one process."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from uneven.errors import JournalError
from uneven.journal.paths import rank_path, rank_paths
from uneven.policy.core.records import Record, SplitRecord, to_json

_HELD = 65_536  # lines buffered for all ranks together: thousands of files cannot stay open


class ManyWriters:
    """A writer that sorts records into the files of their ranks; records without a rank go to the first rank.

    Killing the process loses buffered lines. Not thread-safe. Raises JournalError if the run already has a journal.
    """

    def __init__(self, run: Path) -> None:
        if rank_paths(run):
            raise JournalError(f"{run} holds a journal already: name another directory with --run-dir, or leave it out")
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

    def __enter__(self) -> ManyWriters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()
