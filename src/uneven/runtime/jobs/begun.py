"""The file ``code.json`` in a run's directory: the code that the run trains with, and when the run finished.

So a start can detect that a result belongs to other code, or that a run would continue with other code.
"""

import json
import logging
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from uneven.errors import CheckpointError, access
from uneven.policy.core.plain import Amount, read
from uneven.runtime.jobs.code import Code

_log = logging.getLogger(__name__)

FILE = "code.json"


class DefaultFolder(str):
    """A directory that the user has not named. If other code has finished a run there, the next name is used."""


@dataclass(slots=True)
class _CodeNote:
    """The file's content; ``finished_s`` is Unix time, 0 before the end. A later start may raise the ``limits``."""

    code: Code
    finished_s: Amount = 0.0
    limits: dict[str, Any] = field(default_factory=dict)

    def changed(self, code: Code, among: Collection[str]) -> str:
        pairs = [(self.code.get(one, {}), code.get(one, {})) for one in among]
        names = list(dict.fromkeys(name for a, b in pairs for name in {**a, **b} if a.get(name) != b.get(name)))
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.finished_s))
        return f"finished on {when}" if self.finished_s else "has not finished"


class LockedRun:
    """A run of some `kind`, such as "search", in a directory that this process has locked.

    ``trained`` are the names in ``code`` for which training has started. Raises CheckpointError if their code has
    changed, or if the file cannot be read or written.
    """

    def __init__(self, directory: Path, kind: str, code: Code, trained: Collection[str]) -> None:
        self._run = f"the {kind} in {directory}"
        self._path = directory / FILE
        self._note = (_read(directory) if trained else None) or _CodeNote(code)
        if changed := self._note.changed(code, trained):
            raise CheckpointError(
                f"{self._run} {self._note}, and its code has changed since ({changed}): name another directory to "
                f"begin a new one, or delete {self._path} to continue with the new code"
            )
        self._note.code = code
        self._write()

    def report_finished(self, **limits: Any) -> bool:
        """Return whether the run has finished with these limits; if so, print when."""
        finished = self._note.finished_s > 0 and self._note.limits == limits
        if finished:
            _say(f"{self._run} {self._note}; this is its result. To repeat it, delete the directory or name another")
        return finished

    def finish(self, **limits: Any) -> None:
        self._note.finished_s, self._note.limits = time.time(), limits
        self._write()

    def _write(self) -> None:
        with access(f"write {self._path}", CheckpointError):
            write_json(self._path, asdict(self._note))


def write_json(path: Path, what: object) -> None:
    """Write a JSON file atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(what, indent=1), encoding="utf-8")
    part.replace(path)  # a rename is atomic: a killed run leaves the old file or the new one


def folder_for(directory: str | Path, kind: str, code: Code) -> Path:
    """Choose the directory of a run: a default one becomes NAME-2, NAME-3 … if other code has finished a run there."""
    path, number, why = Path(directory), 1, ""
    while isinstance(directory, DefaultFolder) and (note := _read(path)) is not None and note.finished_s:
        if not (changed := note.changed(code, {**note.code, **code})):
            break
        why, number = f"the {kind} in {path} {note} with other code ({changed} changed)", number + 1
        path = Path(f"{directory}-{number}")
    if why:
        _say(f"{why}; this one uses {path}")
    return path


def _read(directory: Path) -> _CodeNote | None:
    path = directory / FILE
    try:
        with access(f"read {path}", CheckpointError):
            return read(_CodeNote, json.loads(path.read_bytes())) if path.exists() else None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path} ({error}): delete it if the code is the same as before") from error


def _say(text: str) -> None:
    _log.info(text)
