"""What each worker of ``uneven bench elastic`` writes down, a line for each step, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from uneven.errors import JournalError


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A step that a worker has taken.

    Attributes:
        at_s: when the optimizer had stepped, on the clock that all processes of a machine share.
        number: how many steps the parameters had taken before.
        ids: the samples whose gradient is in this step, each as often as it is.
    """

    at_s: float
    number: int
    epoch: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLog:
    """What one worker process wrote.

    Attributes:
        parent: its launcher, or whoever started it.
        life: which start of all workers it belongs to, where a system starts them all anew; steps of a later life
            undo those of an earlier one with the same number.
        struck_s: when it was hurt by itself, as it had been told; None if never.
        inside: whether it was in an exchange then.
        digest: of its parameters when it came to its end; "" if it never did.
    """

    pid: int
    parent: int
    life: float
    began_s: float
    steps: tuple[LoggedStep, ...] = ()
    struck_s: float | None = None
    inside: bool = False
    digest: str = ""


def first_line(pid: int, parent: int, life: float, at_s: float) -> str:
    """Who writes."""
    return json.dumps({"pid": pid, "parent": parent, "life": life, "at_s": at_s})


def step_line(step: LoggedStep) -> str:
    """A step."""
    return json.dumps([step.at_s, step.number, step.epoch, step.ids])


def struck_line(at_s: float, inside: bool) -> str:
    """The worker is about to be hurt."""
    return json.dumps({"struck_s": at_s, "inside": inside})


def last_line(digest: str) -> str:
    """The worker has come to its end."""
    return json.dumps({"digest": digest})


def read(lines: Iterable[str]) -> WorkerLog | None:
    """A worker's log; None before its first line. A last line that is not whole is left out.

    Raises:
        JournalError: a line is none of ours.
    """
    log: WorkerLog | None = None
    steps: list[LoggedStep] = []
    for line in lines:
        if not line.endswith("\n"):
            break  # its writer was killed, or is not done yet
        told = json.loads(line)
        match told:
            case {"pid": int(pid), "parent": int(parent), "life": int() | float() as life, "at_s": float(at_s)}:
                log = WorkerLog(pid=pid, parent=parent, life=life, began_s=at_s)
            case [float(at_s), int(number), int(epoch), [*ids]]:
                steps.append(LoggedStep(at_s, number, epoch, tuple(ids)))
            case {"struck_s": float(at_s), "inside": bool(inside)} if log is not None:
                log = replace(log, struck_s=at_s, inside=inside)
            case {"digest": str(digest)} if log is not None:
                log = replace(log, digest=digest)
            case _:
                raise JournalError(f"a worker's log holds the line {line.strip()[:80]!r}, which no worker writes")
    return None if log is None else replace(log, steps=tuple(steps))


def history(logs: Sequence[WorkerLog]) -> list[LoggedStep]:
    """The steps that are in the model in the end, in order: of each number the last one from which its worker went on.

    The worker that wrote a step may have died before the others took it again, or wake up and find that they have; then
    that is the last that it writes. A later life undoes everything from the step on from which it went on.
    """
    last: dict[int, LoggedStep] = {}
    for life in sorted({log.life for log in logs}):
        taken: dict[int, tuple[bool, float, LoggedStep]] = {}
        for log in (log for log in logs if log.life == life):
            for step in log.steps:
                went_on = bool(log.digest) or step.number < log.steps[-1].number
                this = went_on, step.at_s, step
                if step.number not in taken or this[:2] > taken[step.number][:2]:
                    taken[step.number] = this
        found = {number: step for number, (_, _, step) in taken.items()}
        if found:
            since = min(found)
            last = {number: step for number, step in last.items() if number < since} | found
    return [last[number] for number in sorted(last)]
