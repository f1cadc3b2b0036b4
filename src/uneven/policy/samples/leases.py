"""Who has which samples where each worker takes some when it wants them, and workers come and go.

Two texts that all can read hold it. The book of an epoch says what has been handed out; to take and to give back are
changes of it, each made as a whole or not at all. A worker's holding says what it has and has not given to the others
yet; nobody else writes that, so it costs no answer. When a worker is lost, both together say what comes again::

    book        0 ────────── next ─────── length        and what comes again, which goes first
    holding     │ held ──────────────│ of which these are in update 17, under way

An update under way counts where it has arrived. Whoever keeps what workers give to each other says that (a shard of
the parameter server: of the last update that it has taken from a worker that is gone, for ever).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from uneven.policy.core.plain import Count, read

Run = tuple[int, int]
"""Positions from the first up to, not including, the second."""

Cut = Callable[[int, int], Run]
"""What a worker takes of a run that is not empty, from its beginning; of the first position and the one behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLeases:
    """What has been handed out of one epoch.

    Attributes:
        next: the first position that never was.
        again: handed out before, to workers that are gone and had not given them to the others.
        taken: worker → how often it has taken some, and what came of the last time.
        gone: workers that get nothing more.
    """

    next: Count = 0
    again: tuple[Run, ...] = ()
    taken: dict[str, tuple[Count, Run]] = field(default_factory=dict)
    gone: tuple[Count, ...] = ()

    def take(self, worker: int, length: int, cut: Cut) -> tuple[SampleLeases, Run | None]:
        """What a worker gets, of ``length`` positions; what comes again goes first.

        Returns:
            The book after it, and None where nothing is left.
        """
        if worker in self.gone:
            return self, None
        whole, again = (self.again[0], self.again[1:]) if self.again else ((self.next, length), ())
        if whole[0] >= whole[1]:
            return self, None
        run = cut(*whole)
        rest = ((run[1], whole[1]),) if run[1] < whole[1] else ()
        times = self.taken.get(str(worker), (0, run))[0] + 1
        taken = {**self.taken, str(worker): (times, run)}
        if self.again:
            return replace(self, again=(*rest, *again), taken=taken), run
        return replace(self, next=run[1], taken=taken), run

    def leave(self, worker: int, undone: Iterable[Run]) -> SampleLeases:
        """A worker is gone; what it had and has not given to the others comes again. Twice is as once."""
        if worker in self.gone:
            return self
        again = tuple(run for run in merged([*self.again, *undone]) if run[0] < run[1])
        return replace(self, again=again, gone=(*self.gone, worker))

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def book_of(text: str) -> SampleLeases:
    """Inverse of :meth:`SampleLeases.text`; "" is a new one.

    Raises:
        ValueError: it is none.
    """
    return read(SampleLeases, json.loads(text)) if text else SampleLeases()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSamples:
    """What one worker has taken and not given to the others.

    Attributes:
        held: epoch → runs, in the order in which they were taken.
        times: epoch → how often it had taken some.
        update: number of the update under way, or of the last one.
        given: epoch → runs, all of them held, that are in it.
        first: what it had taken of epochs before this one concerns nobody any more.
        aside: it waits for the others elsewhere, or takes no part any more: nobody waits for what it holds.
    """

    held: dict[str, tuple[Run, ...]] = field(default_factory=dict)
    times: dict[str, Count] = field(default_factory=dict)
    update: Count = 0
    given: dict[str, tuple[Run, ...]] = field(default_factory=dict)
    first: Count = 0
    aside: bool = False

    def took(self, epoch: int, times: int, run: Run) -> HeldSamples:
        """It has taken some."""
        key = str(epoch)
        held = {**self.held, key: (*self.held.get(key, ()), run)}
        return replace(self, held=held, times={**self.times, key: times})

    def gives(self, update: int, runs: Mapping[int, Iterable[Run]]) -> HeldSamples:
        """An update begins with what was learnt from these."""
        return replace(self, update=update, given={str(epoch): tuple(those) for epoch, those in runs.items()})

    def gave(self) -> HeldSamples:
        """It has arrived."""
        held = {epoch: without(runs, self.given.get(epoch, ())) for epoch, runs in self.held.items()}
        return replace(self, held={epoch: runs for epoch, runs in held.items() if runs}, given={})

    def since(self, epoch: int) -> HeldSamples:
        """What it holds of epochs before this one concerns nobody any more."""
        held = {key: runs for key, runs in self.held.items() if int(key) >= epoch}
        times = {key: count for key, count in self.times.items() if int(key) >= epoch}
        return replace(self, held=held, times=times, first=max(epoch, self.first))

    def undone(self, epoch: int, worker: int, book: SampleLeases, arrived: int) -> tuple[Run, ...]:
        """What of an epoch has not been given to the others.

        Args:
            book: of the epoch; it may know of runs that the worker has not noted here any more.
            arrived: the last update of the worker's that others have.
        """
        if epoch < self.first:
            return ()
        mine = self.gave() if arrived >= self.update else self
        held = mine.held.get(str(epoch), ())
        times, run = book.taken.get(str(worker), (0, (0, 0)))
        return held if times <= self.times.get(str(epoch), 0) else (*held, run)

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def holding_of(text: str | None) -> HeldSamples:
    """Inverse of :meth:`HeldSamples.text`; "" or None is a new one.

    Raises:
        ValueError: it is none.
    """
    return read(HeldSamples, json.loads(text)) if text else HeldSamples()


def without(runs: Iterable[Run], those: Iterable[Run]) -> tuple[Run, ...]:
    """The positions of the first that are not in the second, in their order."""
    left = [run for run in runs if run[0] < run[1]]
    for first, end in those:
        cut = [((a, min(b, first)), (max(a, end), b)) for a, b in left]
        left = [run for parts in cut for run in parts if run[0] < run[1]]
    return tuple(left)


def merged(runs: Iterable[Run]) -> list[Run]:
    """The same positions in ascending order, in as few runs as there can be; empty ones are left out."""
    found: list[Run] = []
    for first, end in sorted(run for run in runs if run[0] < run[1]):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found
