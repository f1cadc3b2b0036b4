"""What workers write down where replicas are merged now and then, and which samples are in which merge. Pure.

Under such a policy the gradient of a step is that of one worker alone. Its samples count once a merge holds the step,
so each worker writes down its own steps, in its log, and the merges, in a file of its own; who is in a merge is what
the run believes. That the belief is right, the replay says: it comes to other parameters if anybody else was in one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from uneven_bench.elastic.logs import LoggedStep, WorkerLog


@dataclass(frozen=True, slots=True)
class LoggedMerge:
    """A merge that a worker has taken part in.

    Attributes:
        number: exchanges of the run before it.
        upto: how many steps the parameters had taken.
        workers: whose replicas are in it.
        digest: of what came of it.
    """

    number: int
    upto: int
    workers: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLog:
    """What one worker wrote of its merges.

    Attributes:
        since: number of its first merge.
        donor: the worker whose state it was given; −1 for none.
    """

    pid: int
    worker: int
    since: int
    donor: int
    merges: tuple[LoggedMerge, ...] = ()


def first_line(pid: int, worker: int, since: int, donor: int) -> str:
    """Who writes."""
    return json.dumps([pid, worker, since, donor])


def merge_line(merge: LoggedMerge) -> str:
    """A merge."""
    return json.dumps([merge.number, merge.upto, merge.workers, merge.digest])


def read(lines: Iterable[str]) -> MergeLog | None:
    """A worker's merges; None before its first line. A last line that is not whole is left out."""
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    if not whole:
        return None
    (pid, worker, since, donor), *rest = whole
    merges = (LoggedMerge(number, upto, tuple(workers), digest) for number, upto, workers, digest in rest)
    return MergeLog(pid=pid, worker=worker, since=since, donor=donor, merges=tuple(merges))


def held(books: Sequence[MergeLog], ended: Iterable[int]) -> dict[int, list[LoggedMerge]]:
    """Number → what workers that went on from it hold a merge to be; more than one where they disagree.

    Who dies right after a merge may have been in one that the others have made again without it.

    Args:
        ended: processes that came to their end.
    """
    through, found = set(ended), dict[int, list[LoggedMerge]]()
    for book in books:
        for merge in book.merges if book.pid in through else book.merges[:-1]:
            those = found.setdefault(merge.number, [])
            if merge not in those:
                those.append(merge)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class MergedSteps:
    """What is in one merge.

    Attributes:
        steps: worker → its steps since the merge before.
    """

    merge: LoggedMerge
    steps: Mapping[int, Sequence[LoggedStep]]


def merged(logs: Sequence[WorkerLog], books: Sequence[MergeLog]) -> list[MergedSteps]:
    """All merges that are in the model in the end, in order."""
    by_pid = {log.pid: log for log in logs}
    steps = {book.worker: by_pid[book.pid].steps for book in books if book.pid in by_pid}
    since, found = 0, []
    for those in held(books, (log.pid for log in logs if log.digest)).values():
        merge = those[0]
        own = {one: [step for step in steps[one] if since <= step.number < merge.upto] for one in merge.workers}
        found.append(MergedSteps(merge, own))
        since = merge.upto
    return found


def history(all_merged: Sequence[MergedSteps]) -> list[LoggedStep]:
    """The merges as steps of the run: which samples each holds, one for each epoch."""
    found: list[LoggedStep] = []
    for one in all_merged:
        epochs: dict[int, LoggedStep] = {}
        for step in (step for steps in one.steps.values() for step in steps):
            known = epochs.get(step.epoch, LoggedStep(0.0, one.merge.number, step.epoch, ()))
            epochs[step.epoch] = replace(known, at_s=max(known.at_s, step.at_s), ids=(*known.ids, *step.ids))
        found += epochs.values()
    return found
