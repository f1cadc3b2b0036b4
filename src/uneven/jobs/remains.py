"""What Python leaves in the temporary directory when a run is killed, taken away by the next start of that run.

``multiprocessing`` keeps the socket of its fork server in a folder ``pymp-…`` and deletes it when the program ends, but
not when it is killed. The folder is this process's alone, so its name goes into the run directory with who uses it.
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

from uneven.core.plain import Range, read
from uneven.jobs.begun import write_json

NOTE = "temporary.json"


@dataclass(frozen=True, slots=True)
class _Note:
    folder: str
    process: Annotated[int, Range(1, 2**31 - 1)]
    started_s: float


def sweep(directory: Path) -> Path | None:
    """Delete the folder of the start before this one, if that was killed; note the folder of this process instead.

    Called where no other run can be in the directory. Where the note cannot be understood, nothing is deleted.

    Returns:
        What was deleted, or None.
    """
    note = directory / NOTE
    left = _left_behind(note)
    if left is not None:
        shutil.rmtree(left, ignore_errors=True)  # what cannot be deleted does no harm
    write_json(note, asdict(_Note(util.get_temp_dir(), os.getpid(), psutil.Process().create_time())))
    return left


def _left_behind(note: Path) -> Path | None:
    try:
        said = read(_Note, json.loads(note.read_bytes()))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if psutil.pid_exists(said.process) and _started_s(said.process) == said.started_s:
        return None
    folder = Path(said.folder)
    ours = folder.name.startswith("pymp-") and folder.parent == Path(tempfile.gettempdir()) and not folder.is_symlink()
    return folder if ours and folder.is_dir() and folder.stat().st_uid == os.getuid() else None


def _started_s(process: int) -> float:
    try:
        return psutil.Process(process).create_time()
    except psutil.NoSuchProcess:
        return -1.0
