"""Logs of merges, for policies that merge replicas now and then, and the samples in each merge.

Under such a policy the gradient of a step is that of one worker. Its samples count once a merge holds the step, so each
worker logs its steps in one file and its merges in another. The logged contributors are the belief of the run; the
replay proves it, because a wrong contributor gives other parameters.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from uneven_bench.elastic.logs import LoggedStep, WorkerLog, rows


@dataclass(frozen=True, slots=True)
class LoggedMerge:
    """A merge in which a worker took part."""

    number: int  # exchanges of the run before it
    upto: int  # the steps of the parameters
    workers: tuple[int, ...]  # those whose replicas are in it
    digest: str  # of its result
    # the groups of these workers that merged among themselves; empty if all merged together
    groups: tuple[tuple[int, ...], ...] = ()
    group: tuple[int, ...] = ()  # the group of the writer

    def agrees(self, other: "LoggedMerge") -> bool:
        """Return whether two logs of a merge agree; results are equal within a group only."""
        same = (self.upto, self.workers, self.groups) == (other.upto, other.workers, other.groups)
        return same and (self.digest == other.digest or self.group != other.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLog:
    """One worker's log of its merges."""

    pid: int
    worker: int
    since: int  # number of its first merge
    donor: int  # the worker that sent it its state; −1 for none
    merges: tuple[LoggedMerge, ...] = ()


def read(lines: Iterable[str]) -> MergeLog | None:
    """Read a worker's merges; None before its first line, which has the other fields."""
    if not (whole := rows(lines)):
        return None
    (pid, worker, since, donor), *rest = whole
    merges = (
        LoggedMerge(number, upto, tuple(workers), digest, tuple(map(tuple, groups)), tuple(group))
        for number, upto, workers, digest, groups, group in rest
    )
    return MergeLog(pid=pid, worker=worker, since=since, donor=donor, merges=tuple(merges))


def held(books: Sequence[MergeLog], ended: Iterable[int]) -> dict[int, list[LoggedMerge]]:
    """Return by number the merges that workers which continued have logged; more than one if they disagree. ``ended``:
    processes that came to their end."""
    through, found = set(ended), dict[int, list[LoggedMerge]]()
    for book in books:
        for merge in book.merges if book.pid in through else book.merges[:-1]:
            those = found.setdefault(merge.number, [])
            if not any(map(merge.agrees, those)):
                those.append(merge)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class MergedSteps:
    """The contents of one merge."""

    merge: LoggedMerge
    steps: Mapping[int, Sequence[LoggedStep]]  # worker → its steps since the merge before


def merged(logs: Sequence[WorkerLog], books: Sequence[MergeLog]) -> list[MergedSteps]:
    """Return all merges in the final model, in order."""
    by_pid = {log.pid: log for log in logs}
    steps = {book.worker: by_pid[book.pid].steps for book in books if book.pid in by_pid}
    since, found = 0, []
    for those in held(books, (log.pid for log in logs if log.digest)).values():
        merge = those[0]
        own = {one: [step for step in steps[one] if since <= step.number < merge.upto] for one in merge.workers}
        found.append(MergedSteps(merge, own))
        since = merge.upto
    return found


def in_the_end(
    all_merged: Sequence[MergedSteps], books: Sequence[MergeLog], ended: Iterable[int]
) -> set[tuple[int, int]]:
    """Return worker and number of each step in the replica of any worker that ended.

    If workers merge in groups, a step is lost with the last worker that holds it.

    ``ended``: processes that came to their end.
    """
    holds: dict[int, frozenset[tuple[int, int]]] = {}
    for one in all_merged:
        for book in sorted(books, key=lambda book: book.worker):
            if book.donor >= 0 and book.since == one.merge.number:
                holds[book.worker] = holds.get(book.donor, frozenset())
        for group in one.merge.groups or (one.merge.workers,):
            own = {(worker, step.number) for worker in group for step in one.steps[worker]}
            together = frozenset(own).union(*(holds.get(worker, ()) for worker in group))
            holds.update(dict.fromkeys(group, together))
    through = set(ended)
    return set().union(*(holds.get(book.worker, ()) for book in books if book.pid in through))


def history(all_merged: Sequence[MergedSteps], kept: Collection[tuple[int, int]]) -> list[LoggedStep]:
    """Return the merges as steps of the run, with their samples, one for each epoch. ``kept``: worker and number of the
    steps that count."""
    found: list[LoggedStep] = []
    for one in all_merged:
        epochs: dict[int, LoggedStep] = {}
        for worker, step in ((worker, step) for worker, steps in one.steps.items() for step in steps):
            if (worker, step.number) not in kept:
                continue
            known = epochs.get(step.epoch, LoggedStep(0.0, one.merge.number, step.epoch, ()))
            epochs[step.epoch] = replace(known, at_s=max(known.at_s, step.at_s), ids=(*known.ids, *step.ids))
        found += epochs.values()
    return found
