"""The readers of a run's journal: all records, or only new ones."""

import json
import logging
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from uneven.errors import JournalError, access
from uneven.journal.pure.completed import completed
from uneven.policy.core.records import Record, from_json, is_known

_log = logging.getLogger("uneven.journal")
_NAME = re.compile(r"rank(\d{5,})\.jsonl")


def rank_path(run: Path, rank: int) -> Path:
    """Return the journal file of ``rank`` in the directory ``run``: ``RUN/journal/rank00000.jsonl``."""
    return run / "journal" / f"rank{rank:05d}.jsonl"


def rank_paths(run: Path) -> dict[int, Path]:
    """Return the existing journal files by rank, ascending; empty before the run has started."""
    with access(f"look into {run / 'journal'} (is {run} a run directory?)", JournalError):
        try:
            found = [(_NAME.fullmatch(path.name), path) for path in (run / "journal").iterdir()]
        except FileNotFoundError:
            return {}
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def newest_run(root: Path = Path("runs"), started_by: str | None = None) -> Path:
    """Return the run below ``root`` with the newest journal or ``started_by`` file; raise JournalError if there is
    none."""
    newest: tuple[float, Path] | None = None
    with access(f"look for runs in {root.absolute()} (name a run directory)", JournalError):
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            files = list(rank_paths(folder).values()) if folder.is_dir() else []
            if started_by is not None and (folder / started_by).is_file():
                files.append(folder / started_by)
            written = [path.stat().st_mtime for path in files]
            if written and (newest is None or max(written) > newest[0]):
                newest = (max(written), folder)
    if newest is None:
        raise JournalError(
            f"no run in {root.absolute()}: name a run directory, or start a run with `uneven run script.py`"
        )
    return newest[1]


@dataclass(frozen=True, slots=True)
class Journal:
    """All records of a run."""

    run: Path  #: the run directory
    ranks: dict[int, tuple[Record, ...]]  #: as written; each life of a resumed run begins with a RunRecord
    unfinished: int = 0  #: number of skipped lines that a killed writer left incomplete

    def records(self) -> Iterator[Record]:
        """Yield all records, rank by rank."""
        for records in self.ranks.values():
            yield from records


def read(run: Path, most_bytes: float = math.inf) -> Journal:
    """Read a run, finished or not, into memory: about 0.2 kB per record. ``most_bytes`` is a limit for each rank's
    file: its first line and its end.

    Raises:
        JournalError: there is no journal, or a line is not a record of this schema (the message names file and line).
    """
    follower = Follower(run, most_bytes)
    ranks: dict[int, list[Record]] = {}
    for rank, record in follower.poll_ranks():
        ranks.setdefault(rank, []).append(record)
    if not ranks:
        raise JournalError(
            f"no journal in {run}: name a run directory, one with journal/rank00000.jsonl in it, "
            f"for instance one of those under runs/"
        )
    unfinished = follower.unfinished + follower.pending
    return Journal(run, completed(ranks), unfinished)


@dataclass(slots=True)
class _File:
    """The reading position in one file."""

    path: Path
    offset: int = 0
    line: int = 0
    rest: bytes = b""


@dataclass(slots=True)
class Follower:
    """A reader of new records. The run directory or a rank may appear later.

    A call costs a directory listing and one read per rank; an incomplete line is left for the next call.
    """

    run: Path  #: the run directory
    most_bytes: float = math.inf  #: limit for the first read of each file: its first line and its end
    unfinished: int = field(default=0, init=False)  #: skipped lines, left incomplete by a killed writer
    whole: bool = field(default=True, init=False)  #: False if the limit has left out lines
    unknown: set[str] = field(default_factory=set, init=False)  #: kinds of records that this version skips
    _files: dict[int, _File] = field(default_factory=dict, init=False)

    def poll(self) -> list[Record]:
        """Return new records, rank by rank, in the order of writing; raise JournalError for an invalid line or file."""
        return [record for _, record in self.poll_ranks()]

    def poll_ranks(self) -> Iterator[tuple[int, Record]]:
        """Yield the same, each with the rank of its file."""
        for rank, path in rank_paths(self.run).items():
            file = self._files.setdefault(rank, _File(path))
            for line in self._new_lines(file):
                record = self._record(file, line)
                if record is not None:
                    yield rank, record

    @property
    def pending(self) -> int:
        """The number of files whose last line is incomplete: being written, or left by a killed writer."""
        return sum(bool(file.rest) for file in self._files.values())

    def _new_lines(self, file: _File) -> list[bytes]:
        with access(f"read the journal {file.path}", JournalError), file.path.open("rb") as stream:
            stream.seek(file.offset)
            size = os.fstat(stream.fileno()).st_size  # read no further: a device such as /dev/full has no end
            if not file.offset and size > self.most_bytes:
                file.rest = stream.readline()
                stream.seek(-int(self.most_bytes), os.SEEK_END)
                stream.readline()  # the rest of a line
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
            try:
                kind = _kind(text)
            except ValueError:
                self.unfinished += 1  # a cut line is never valid JSON
                return None
            if kind is not None and not is_known(kind):
                if kind not in self.unknown:
                    _log.warning(
                        "%s: records of kind %r are skipped: a newer version of uneven wrote them", file.path, kind
                    )
                self.unknown.add(kind)
                return None
            raise JournalError(f"{file.path}, line {file.line}: {error}") from error


def _kind(text: str) -> str | None:
    try:
        row = json.loads(text)
    except RecursionError:  # valid, but not ours: our lines are not nested so deeply
        return None
    kind = row.get("kind") if isinstance(row, dict) else None
    return kind if isinstance(kind, str) else None
