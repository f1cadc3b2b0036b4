"""Send commands to a running search as notes in a folder of its directory, which only the same user can write.

This works from any machine that sees the directory, without a port.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, UnevenError
from uneven.runtime.jobs.begun import write_json
from uneven.runtime.system import lock

FOLDER = "control"
_ASK_EVERY_S = 0.05
VERBS = ("stop", "resume", "clone")


class SearchControl:
    """The search's side. `answer` is called with each note and returns the answer.

    Raises `ConfigError` if the folder belongs to another user.
    """

    def __init__(self, directory: Path, answer: Callable[[dict[str, Any]], str]) -> None:
        self._folder = directory / FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._folder.stat().st_uid != os.geteuid():
            raise ConfigError(f"{self._folder} belongs to another user: name another directory for the search")
        self._folder.chmod(0o700)  # it may have existed with another mode
        self._answer = answer

    def listen(self) -> int:
        notes = sorted(self._folder.glob("*.note"))
        for note in notes:
            write_json(note.with_suffix(".answer"), self._heard(note))
            # Deleted last: after a kill in between, the note is answered again.
            note.unlink()
        return len(notes)

    def _heard(self, note: Path) -> dict[str, str]:
        # The folder may have been writable by other users before this search.
        if note.lstat().st_uid != os.geteuid() or note.is_symlink():
            return {"refused": "only the user who runs a search may act on it"}
        try:
            asked = json.loads(note.read_bytes())
            if not isinstance(asked, dict) or asked.get("verb") not in VERBS:
                return {"refused": f"a note has one of {', '.join(VERBS)}"}
            return {"done": self._answer(asked)}
        except (UnevenError, ValueError, KeyError, TypeError) as error:
            return {"refused": str(error)}


def tell(directory: Path, verb: str, trial: int, changes: Mapping[str, Any] | None = None, within_s: float = 30) -> str:
    """Send the command "stop", "resume" or "clone" to the search of a directory, and return its answer.

    `changes` are a clone's changed settings; `within_s` limits the wait. Raises `ConfigError` if no search runs there,
    it rejects the command, or it does not answer in time.
    """
    if not running(directory):
        raise ConfigError(f"no search runs in {directory}: start it with its own command, then repeat this one")
    # Notes are answered in the order of their names, so the name starts with the time.
    note = directory / FOLDER / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.note"
    answer = note.with_suffix(".answer")
    until_s = time.monotonic() + within_s
    while not note.parent.is_dir() and time.monotonic() < until_s:  # the search holds its lock but is still starting
        time.sleep(_ASK_EVERY_S)
    try:
        write_json(note, {"verb": verb, "trial": trial, "changes": dict(changes or {})})
    except PermissionError as error:
        raise ConfigError(f"only the user who started the search in {directory} can control it") from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"the search in {directory} did not start to listen within {within_s:g} s: try again"
        ) from error
    while not answer.exists():
        if time.monotonic() > until_s:
            note.unlink(missing_ok=True)
            raise ConfigError(f"the search in {directory} did not answer within {within_s:g} s: try again")
        time.sleep(_ASK_EVERY_S)
    said: dict[str, str] = json.loads(answer.read_bytes())
    answer.unlink()
    if "refused" in said:
        raise ConfigError(said["refused"])
    return said["done"]


def running(directory: Path) -> bool:
    try:
        with (directory / "lock").open() as file:
            lock(file, shared=True)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
