"""Logs of the updates of workers at their own pace, and the samples in each update that has arrived.

A worker's samples count once an update that holds them has arrived at the server. Each worker logs the steps in an
update before its begin, and its arrival; if the worker is lost in between, the others log whether it has arrived.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from uneven_bench.elastic.logs import LoggedStep, WorkerLog, rows

GIVES, GAVE, LOST = "gives", "gave", "lost"


@dataclass(slots=True)
class UpdateLog:
    """One worker's log of its updates."""

    pid: int
    worker: int
    since: int
    given: dict[int, int] = field(default_factory=dict)  # number of an update → steps of the worker when it began
    arrived: set[int] = field(default_factory=set)  # numbers of updates that it knows to have arrived
    # lost worker → its last update that others have, as reported to this one
    lost: dict[int, int] = field(default_factory=dict)


def read(lines: Iterable[str]) -> UpdateLog | None:
    """Read a worker's updates; None before its first line, which has the first three fields. A line: an update begins,
    after a number of steps; it has arrived; a worker is lost."""
    if not (whole := rows(lines)):
        return None
    found = UpdateLog(*whole[0])
    for kind, *numbers in whole[1:]:
        if kind == GIVES:
            found.given[numbers[0]] = numbers[1]
        elif kind == GAVE:
            found.arrived.add(numbers[0])
        else:
            found.lost[numbers[0]] = numbers[1]
    return found


def disputed(books: Sequence[UpdateLog]) -> list[int]:
    """Return the lost workers for which two others log different last updates."""
    said: dict[int, set[int]] = {}
    for book in books:
        for worker, arrived in book.lost.items():
            said.setdefault(worker, set()).add(arrived)
    return sorted(worker for worker, those in said.items() if len(those) > 1)


def history(logs: Sequence[WorkerLog], books: Sequence[UpdateLog]) -> list[LoggedStep]:
    """Return the steps in updates that have arrived."""
    by_pid = {log.pid: log for log in logs}
    lost = {worker: arrived for book in books for worker, arrived in book.lost.items()}
    found: list[LoggedStep] = []
    for book in (one for one in books if one.pid in by_pid):
        before = book.since
        for update, upto in sorted(book.given.items()):
            if update in book.arrived or update <= lost.get(book.worker, -1):
                found += [step for step in by_pid[book.pid].steps if before <= step.number < upto]
            before = upto
    return sorted(found, key=lambda step: step.at_s)
