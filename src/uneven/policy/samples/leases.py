"""Leases of samples that workers take asynchronously, while members change.

All workers can read two texts. The leases of an epoch are the samples that were handed out; workers take and return
samples by atomic changes of them. A worker's holding has the samples that it has taken and not passed on yet; only that
worker writes it, so it needs no answer. When a worker fails, both together determine the samples to requeue::

    leases      0 ────────── next ─────── length        and requeued samples, which go first
    holding     │ held ──────────────│ of which these are in update 17, under way

An update under way counts if it has arrived. The keeper of the updates knows that (a shard of the parameter server: the
last update that it has accepted from a failed worker, which is final).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from uneven.policy.core.plain import Count, read

Run = tuple[int, int]  # positions from the first up to, not including, the second

Cut = Callable[[int, int], Run]  # (first, end) of a run that is not empty → the run that a worker takes from its start


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLeases:
    """The samples of one epoch that were handed out."""

    next: Count = 0  # the first position that was never handed out
    again: tuple[Run, ...] = ()  # requeued runs of failed workers
    taken: dict[str, tuple[Count, Run]] = field(default_factory=dict)  # worker → how often it has taken, last run
    gone: tuple[Count, ...] = ()  # workers that no longer get samples

    def take(self, worker: int, length: int, cut: Cut) -> "tuple[SampleLeases, Run | None]":
        """Take a run for a worker, requeued ones first, from ``length`` positions; return the new leases and the run
        or None."""
        if worker in self.gone:
            return self, None
        whole, again = (self.again[0], self.again[1:]) if self.again else ((self.next, length), ())
        if whole[0] >= whole[1]:
            return self, None
        run = cut(*whole)
        rest = ((run[1], whole[1]),) if run[1] < whole[1] else ()
        # A failed worker may have taken this run and not noted it: `HeldSamples.undone` compares the counts.
        times = self.taken.get(str(worker), (0, run))[0] + 1
        taken = {**self.taken, str(worker): (times, run)}
        if self.again:
            return replace(self, again=(*rest, *again), taken=taken), run
        return replace(self, next=run[1], taken=taken), run

    def leave(self, worker: int, undone: Iterable[Run]) -> "SampleLeases":
        """Return the leases without a failed worker, whose undone runs are requeued. Idempotent."""
        if worker in self.gone:
            return self
        again = tuple(run for run in merged([*self.again, *undone]) if run[0] < run[1])
        return replace(self, again=again, gone=(*self.gone, worker))

    def text(self) -> str:
        return json.dumps(asdict(self))


def book_of(text: str) -> SampleLeases:
    """Return the leases of a text ("": new ones); raises ValueError if the text has none."""
    return read(SampleLeases, json.loads(text)) if text else SampleLeases()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSamples:
    """The samples that one worker has taken and not passed on."""

    held: dict[str, tuple[Run, ...]] = field(default_factory=dict)  # epoch → runs, in the order of taking
    times: dict[str, Count] = field(default_factory=dict)  # epoch → how often it had taken samples
    update: Count = 0  # number of the update under way, or of the last one
    given: dict[str, tuple[Run, ...]] = field(default_factory=dict)  # epoch → held runs that are in this update
    # The last update that this worker saw arrive, and its runs: the others may still lack it when this worker fails.
    arrived: Count = 0
    passed_on: dict[str, tuple[Run, ...]] = field(default_factory=dict)
    first: Count = 0  # first epoch whose samples still matter
    aside: Count = 0  # evaluations that it has come to, with the one (or the end) that it is on its way to

    def took(self, epoch: int, times: int, run: Run) -> "HeldSamples":
        key = str(epoch)
        held = {**self.held, key: (*self.held.get(key, ()), run)}
        return replace(self, held=held, times={**self.times, key: times})

    def gives(self, update: int, runs: Mapping[int, Iterable[Run]]) -> "HeldSamples":
        """Start an update with the steps made from these runs."""
        return replace(self, update=update, given={str(epoch): tuple(those) for epoch, those in runs.items()})

    def gave(self) -> "HeldSamples":
        if not self.given:
            return self
        held = {epoch: without(runs, self.given.get(epoch, ())) for epoch, runs in self.held.items()}
        left = {epoch: runs for epoch, runs in held.items() if runs}
        return replace(self, held=left, given={}, arrived=self.update, passed_on=self.given)

    def since(self, epoch: int) -> "HeldSamples":
        """Forget the samples of epochs before this one."""
        held = {key: runs for key, runs in self.held.items() if int(key) >= epoch}
        times = {key: count for key, count in self.times.items() if int(key) >= epoch}
        return replace(self, held=held, times=times, first=max(epoch, self.first))

    def undone(self, epoch: int, worker: int, book: SampleLeases, arrived: int | None = None) -> tuple[Run, ...]:
        """Return the runs of an epoch that are not in ``arrived``, the last update of this worker that others have. If
        it is None, return those that this worker has not seen arrive."""
        if epoch < self.first:
            return ()
        key = str(epoch)
        mine = self if arrived is None or arrived < self.update else self.gave()
        held = mine.held.get(key, ())
        if arrived is not None and arrived < self.arrived:
            held = (*self.passed_on.get(key, ()), *held)
        # The leases may have a run that the worker could not note here before it failed.
        times, run = book.taken.get(str(worker), (0, (0, 0)))
        return held if times <= self.times.get(key, 0) else (*held, run)

    def text(self) -> str:
        return json.dumps(asdict(self))


def holding_of(text: str | None) -> HeldSamples:
    """Return the holding of a text ("" or None: a new one); raises ValueError if it is not a holding."""
    return read(HeldSamples, json.loads(text)) if text else HeldSamples()


def without(runs: Iterable[Run], those: Iterable[Run]) -> tuple[Run, ...]:
    """Return the positions of ``runs`` that are not in ``those``, in their order."""
    left = [run for run in runs if run[0] < run[1]]
    for first, end in those:
        cut = [((a, min(b, first)), (max(a, end), b)) for a, b in left]
        left = [run for parts in cut for run in parts if run[0] < run[1]]
    return tuple(left)


def merged(runs: Iterable[Run]) -> list[Run]:
    """Return the same positions in ascending order, each once, in the fewest runs, without empty ones."""
    found: list[Run] = []
    for first, end in sorted(run for run in runs if run[0] < run[1]):
        if found and found[-1][1] >= first:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return found
