"""Cleanup of a killed run's temporary files by the next start of that run.

``multiprocessing`` keeps its fork server's socket in a private folder ``pymp-…`` and deletes it at the program's end,
but not after a kill. So the run directory records the folder and its process.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from multiprocessing import util
from pathlib import Path
from typing import Annotated

import psutil

from uneven.policy.core.plain import Range, read
from uneven.runtime.jobs.begun import write_json

NOTE = "temporary.json"


@dataclass(frozen=True, slots=True)
class _Note:
    folder: str
    process: Annotated[int, Range(1, 2**31 - 1)]
    started_s: float


def sweep(directory: Path) -> Path | None:
    """Delete and return the folder of the previous start if that was killed; record this process's folder."""
    # Only called while this process has locked the directory. If the note is invalid, nothing is deleted.
    note = directory / NOTE
    left = _left_behind(note)
    if left is not None:
        shutil.rmtree(left, ignore_errors=True)  # remaining files do no harm
    write_json(note, asdict(_Note(util.get_temp_dir(), os.getpid(), psutil.Process().create_time())))
    return left


def _left_behind(note: Path) -> Path | None:
    try:
        said = read(_Note, json.loads(note.read_bytes()))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    # The start time detects that another process has been given the same id.
    if psutil.pid_exists(said.process) and _started_s(said.process) == said.started_s:
        return None
    # The file may be forged or stale: delete only a real folder of ours that multiprocessing could have made.
    folder = Path(said.folder)
    ours = folder.name.startswith("pymp-") and folder.parent == Path(tempfile.gettempdir()) and not folder.is_symlink()
    return folder if ours and folder.is_dir() and folder.stat().st_uid == os.getuid() else None


def _started_s(process: int) -> float:
    try:
        return psutil.Process(process).create_time()
    except psutil.NoSuchProcess:
        return -1.0
