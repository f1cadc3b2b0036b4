"""What workers write down that go at their own pace, and which samples are in an update that has arrived.

A worker's samples count once an update of its own that holds them has arrived where it is kept for all. Each writes
down which of its steps an update holds before that begins, and when it has arrived; of one that is lost in between,
the others say whether it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from uneven_bench.elastic.logs import LoggedStep, WorkerLog

GIVES, GAVE, LOST = "gives", "gave", "lost"


@dataclass(slots=True)
class UpdateLog:
    """What one worker wrote of its updates.

    Attributes:
        given: number of an update → how many steps the worker had taken when it began.
        arrived: numbers of those that it knows to have arrived.
        lost: worker → the last update of it that others have, as this one has heard.
    """

    pid: int
    worker: int
    since: int
    given: dict[int, int] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    lost: dict[int, int] = field(default_factory=dict)


def first_line(pid: int, worker: int, since: int) -> str:
    """Who writes, and how many steps its parameters had taken when it began."""
    return json.dumps([pid, worker, since])


def line(kind: str, *numbers: int) -> str:
    """Something that has happened: an update begins, after so many steps; it has arrived; a worker is lost."""
    return json.dumps([kind, *numbers])


def read(lines: Iterable[str]) -> UpdateLog | None:
    """A worker's updates; None before its first line. A last line that is not whole is left out."""
    whole = [json.loads(one) for one in lines if one.endswith("\n")]
    if not whole:
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
    """Workers of whom two others hold different updates to be the last that has arrived."""
    said: dict[int, set[int]] = {}
    for book in books:
        for worker, arrived in book.lost.items():
            said.setdefault(worker, set()).add(arrived)
    return sorted(worker for worker, those in said.items() if len(those) > 1)


def history(logs: Sequence[WorkerLog], books: Sequence[UpdateLog]) -> list[LoggedStep]:
    """The steps that are in updates which have arrived."""
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
