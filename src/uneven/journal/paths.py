"""The paths of a run's files."""

from __future__ import annotations

import re
from pathlib import Path

from uneven.errors import JournalError, access

_NAME = re.compile(r"rank(\d{5,})\.jsonl")


def rank_path(run: Path, rank: int) -> Path:
    """Return the journal file of a rank: ``RUN/journal/rank00000.jsonl``."""
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
    none.
    """
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
