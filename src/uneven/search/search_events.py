"""Log the events of a search, one JSON line each, in a file that only grows."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from uneven.errors import CheckpointError, ConfigError, access, reason
from uneven.fleet.engine.fleet_state import locked
from uneven.policy.core.plain import Amount, Count, read
from uneven.runtime.jobs.begun import write_json
from uneven.search.pure.core import Happened, SearchCore

EVENTS = "events.jsonl"
ASKED = "search.json"


class _Event(TypedDict):
    event: str
    at_s: Amount
    trial: NotRequired[Count]
    why: NotRequired[str]
    lost: NotRequired[bool]
    t: NotRequired[Amount]
    params: NotRequired[dict[str, Any]]
    name: NotRequired[str]
    domain: NotRequired[dict[str, Any]]
    changes: NotRequired[dict[str, Any]]
    results: NotRequired[list[tuple[dict[str, Any], float]]]


class _Result(TypedDict):
    event: str
    at_s: Amount
    why: NotRequired[str]
    trial: Count
    t: Amount
    metric: float
    device: Count
    seconds: Amount
    move: NotRequired[str]
    beside: NotRequired[list[Count]]
    metrics: NotRequired[dict[str, float]]


class SearchLog:
    """The log of a search's directory, open for writing. Raises `ConfigError` if it cannot be written."""

    def __init__(self, directory: Path) -> None:
        path = directory / EVENTS
        with access(f"write {path}"):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        # A kill during a write leaves a partial last line; the next event must not be appended to it.
        os.ftruncate(self._file, len(_whole(path)))

    def write(self, event: Happened) -> None:
        line = json.dumps({**event, "at_s": round(time.time(), 3)}, separators=(",", ":")).encode() + b"\n"
        # A single call for the whole line, so that a kill leaves at most one partial line.
        if os.write(self._file, line) != len(line):
            raise CheckpointError(f"{EVENTS}: the disk is full; free some space, and start again")

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def kept(directory: Path, asked: dict[str, Any], core: SearchCore) -> Iterator[bool]:
    """Restore a core from the directory's log, then log its events. Yield whether the search is new.

    Raises `ConfigError` if the directory cannot be written or a search runs there. Raises `CheckpointError` if the
    search was started with something else or its events cannot be read.
    """
    with locked(directory):
        events = read_events(directory)
        if events:
            agree(directory, asked)
        else:
            write_json(directory / ASKED, asked)
        replay(core, events, directory)
        with closing(SearchLog(directory)) as log:
            # Only now, because replayed events are in the log already.
            core.note = log.write
            yield not events


def replay(core: SearchCore, events: Sequence[Happened], directory: Path) -> None:
    """Apply events to a new core. Raises `CheckpointError` if they do not follow from each other."""
    for number, event in enumerate(events, 1):
        try:
            core.apply(event)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{directory / EVENTS}, line {number}, does not follow from those before it "
                f"({type(error).__name__}: {error}): name another directory"
            ) from error


def read_events(directory: Path) -> list[Happened]:
    """Return every event except a partial last line. Raises `CheckpointError` if a line is not an event."""
    events = []
    for number, line in enumerate(_whole(directory / EVENTS).splitlines(), 1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or "event" not in event:
                raise CheckpointError(f"{directory / EVENTS}, line {number}, is not an event: name another directory")
            result = event["event"] == "report" or "metric" in event
            events.append({**event, **(read(_Result, event) if result else read(_Event, event))})
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{directory / EVENTS}, line {number}, cannot be read ({error}): name another directory"
            ) from error
    return events


def agree(directory: Path, asked: dict[str, Any]) -> None:
    """Check that the search of this directory has the same options. Raises `CheckpointError` if not."""
    before = asked_in(directory)
    for key in sorted({*before, *asked}):
        if before.get(key) != asked.get(key):
            raise CheckpointError(
                f"{directory} has a search with {key}={before.get(key)!r}, but {asked.get(key)!r} was given: give "
                "the same, or name another directory"
            )


def asked_in(directory: Path) -> dict[str, Any]:
    """Return the options of a directory's search. Raises `ConfigError` or `CheckpointError` if it cannot be read."""
    path = directory / ASKED
    try:
        asked: dict[str, Any] = read(dict[str, Any], json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise ConfigError(f"no search in {directory} (no {ASKED}): name the directory of one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {reason(error)}") from error
    return asked


def _whole(path: Path) -> bytes:
    text = path.read_bytes() if path.exists() else b""
    return text[: text.rfind(b"\n") + 1]
