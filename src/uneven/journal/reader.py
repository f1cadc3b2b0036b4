"""Reading a run: all of it, or what is new."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from uneven.core.records import Record, from_json
from uneven.errors import JournalError, access
from uneven.journal.paths import rank_paths


@dataclass(frozen=True, slots=True)
class Journal:
    """Everything that a run wrote.

    Attributes:
        run: the run directory.
        ranks: rank → its records in the order of writing. A resumed run has several lives in one file,
            each begins with a RunRecord.
        unfinished: lines that a killed writer left incomplete, skipped.
    """

    run: Path
    ranks: dict[int, tuple[Record, ...]]
    unfinished: int = 0

    def records(self) -> Iterator[Record]:
        """All records, rank after rank."""
        for records in self.ranks.values():
            yield from records


def read(run: Path) -> Journal:
    """Read a run as it stands, finished or not. Holds all of it in memory, about 0.2 kB per record.

    Raises:
        JournalError: there is no journal, or a line is no record of this schema (file and line are named).
    """
    follower = Follower(run)
    ranks: dict[int, list[Record]] = {}
    for rank, record in follower.poll_ranks():
        ranks.setdefault(rank, []).append(record)
    if not ranks:
        raise JournalError(
            f"no journal in {run}: name a run directory, one with journal/rank00000.jsonl in it, "
            f"for instance one of those under runs/"
        )
    unfinished = follower.unfinished + follower.pending
    return Journal(run, {rank: tuple(records) for rank, records in ranks.items()}, unfinished)


@dataclass(slots=True)
class _File:
    """How far one file has been read."""

    path: Path
    offset: int = 0
    line: int = 0
    rest: bytes = b""


@dataclass(slots=True)
class Follower:
    """Reads what was written since the last look. A run directory or a rank may appear later.

    One look costs a directory listing and one read per rank; a line that is still being written is left
    for the next look.

    Args:
        run: the run directory.
        most_bytes: of each rank's file that the first look reads: its first line and its end. Quick, for a long run.

    Attributes:
        unfinished: lines that a killed writer left incomplete and a later life wrote after, skipped.
        whole: whether nothing was left out for that.
    """

    run: Path
    most_bytes: float = math.inf
    unfinished: int = field(default=0, init=False)
    whole: bool = field(default=True, init=False)
    _files: dict[int, _File] = field(default_factory=dict, init=False)

    def poll(self) -> list[Record]:
        """New records, rank after rank, in the order of writing within a rank.

        Raises:
            JournalError: a line is no record of this schema, or a file cannot be read.
        """
        return [record for _, record in self.poll_ranks()]

    def poll_ranks(self) -> Iterator[tuple[int, Record]]:
        """The same, each with the rank whose file it came from."""
        for rank, path in rank_paths(self.run).items():
            file = self._files.setdefault(rank, _File(path))
            for line in self._new_lines(file):
                record = self._record(file, line)
                if record is not None:
                    yield rank, record

    @property
    def pending(self) -> int:
        """Files whose last line has no end yet: being written now, or left by a killed writer."""
        return sum(bool(file.rest) for file in self._files.values())

    def _new_lines(self, file: _File) -> list[bytes]:
        with access(f"read the journal {file.path}", JournalError), file.path.open("rb") as stream:
            stream.seek(file.offset)
            size = os.fstat(stream.fileno()).st_size  # no further: a device such as /dev/full has no end
            if not file.offset and size > self.most_bytes:
                file.rest = stream.readline()
                stream.seek(-int(self.most_bytes), os.SEEK_END)
                stream.readline()
                self.whole = False
            new = stream.read(max(0, size - stream.tell()))
            file.offset = stream.tell()
        *lines, file.rest = (file.rest + new).split(b"\n")
        return lines

    def _record(self, file: _File, line: bytes) -> Record | None:
        file.line += 1
        if not line.strip():
            return None
        text = line.decode("utf-8-sig", "replace")
        try:
            return from_json(text)
        except JournalError as error:
            if _is_json(text):
                raise JournalError(f"{file.path}, line {file.line}: {error}") from error
            self.unfinished += 1  # half a line is never JSON, whatever it was cut out of
            return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:  # half a line of ours is not nested so deeply
        return True
    return True
