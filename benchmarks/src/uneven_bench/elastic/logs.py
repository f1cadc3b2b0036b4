"""The log of each worker of ``uneven bench elastic``, a line for each step, and its reader."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uneven.errors import JournalError


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A step of a worker."""

    at_s: float  # the end of the optimizer's step, on the clock that all processes of a machine share
    number: int  # the steps of the parameters before it
    epoch: int
    ids: tuple[int, ...]  # the samples in its gradient, each as often as it is in it


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLog:
    """The log of one worker process."""

    pid: int
    parent: int  # its launcher or parent process
    # the start of all workers that it belongs to, if a system starts them all again; steps of a later life undo those
    # of an earlier one with the same number
    life: float
    began_s: float
    steps: tuple[LoggedStep, ...] = ()
    struck_s: float | None = None  # when it struck itself on an order; None if never
    inside: bool = False  # True if it was in an exchange then
    digest: str = ""  # of its final parameters; "" if it did not end


def line(told: Any) -> str:
    """Return a line of a log."""
    return json.dumps(told) + "\n"


def rows(lines: Iterable[str]) -> list[Any]:
    """Read a log. An incomplete last line is left out: its writer was killed, or is still writing."""
    return [json.loads(one) for one in lines if one.endswith("\n")]


def first_line(pid: int, parent: int, life: float, at_s: float) -> str:
    return line({"pid": pid, "parent": parent, "life": life, "at_s": at_s})


def step_line(step: LoggedStep) -> str:
    return line([step.at_s, step.number, step.epoch, step.ids])


def struck_line(at_s: float, inside: bool) -> str:
    return line({"struck_s": at_s, "inside": inside})


def last_line(digest: str) -> str:
    return line({"digest": digest})


def read(lines: Iterable[str]) -> WorkerLog | None:
    """Read a worker's log; None before its first line. Raises JournalError: an unknown line."""
    log: WorkerLog | None = None
    steps: list[LoggedStep] = []
    for told in rows(lines):
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
                raise JournalError(f"a worker's log holds the line {json.dumps(told)[:80]!r}, which no worker writes")
    return None if log is None else replace(log, steps=tuple(steps))


def history(logs: Sequence[WorkerLog]) -> list[LoggedStep]:
    """Return the final steps in order: of each number the last one from which its worker continued."""
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
