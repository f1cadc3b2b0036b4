"""Which sample is used when, and by whom, while the split moves.

One permutation per epoch, from seed and epoch alone; a cursor that advances by the global batch; in each
iteration, rank i takes the samples from its offset (the sum of the shares before it) on. So the order of
the samples never depends on the split, and every sample is used exactly once an epoch::

    order of the epoch   │ iteration 0           │ iteration 1           │ last part │
                         │ rank 0      │ r1 │ r2 │ rank 0 │ r1    │ r2   │ r0   │r1│2│
                         0                       X                      2X          length

This is the shape that the specification of LB-BSP recommends (§1.10); the paper itself only says that a
worker draws x_i samples from the sample input stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import Limits

SplitSource = Callable[[int], tuple[int, ...]]
"""Iteration → the shares in force for it, one per rank, adding up to the global batch."""


def epoch_order(*, length: int, seed: int, epoch: int, shuffle: bool = True) -> npt.NDArray[np.int64]:
    """Index of the sample at every position of an epoch: int64, shape ``(length,)``.

    Without ``shuffle`` the samples come as they lie in the data set.
    """
    if not shuffle:
        return np.arange(length, dtype=np.int64)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(length).astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What everybody together takes in one iteration: ``size`` consecutive positions of the epoch's order.

    Attributes:
        iteration: counted over the whole run, from 0.
        start: first position in the epoch's order, of those that have never been drawn before.
        size: samples of everybody together; the global batch, or less in the last part of an epoch.
        shares: samples of each rank, adding up to ``size``. In the last part some may be 0.
        members: workers in the order of ``shares``; None where these are 0, 1, 2, …
        again: runs of earlier positions that come first, as workers that had them are gone.
        works: what each rank's samples cost where that is known, in those of a mean sample; see :mod:`.costs`.
    """

    iteration: int
    epoch: int
    start: int
    size: int
    shares: tuple[int, ...]
    members: tuple[int, ...] | None = None
    again: tuple[tuple[int, int], ...] = ()
    works: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.start + self.size - sum(last - first for first, last in self.again)

    @property
    def before(self) -> Cursor:
        """The place in the run at which this part is the next one."""
        return Cursor(self.epoch, self.start, self.iteration)

    def place(self, rank: int) -> int | None:
        """Position of ``rank`` in ``shares``; None if it has none, as it joined after these samples were drawn."""
        if self.members is None:
            return rank
        return self.members.index(rank) if rank in self.members else None

    def batch(self, rank: int) -> int:
        """Samples of ``rank`` that count; 0 if it only takes part."""
        place = self.place(rank)
        return 0 if place is None else self.shares[place]

    def work(self, rank: int) -> int:
        """What the samples of ``rank`` cost: each one, unless something else is known."""
        if self.works is None:
            return self.batch(rank)
        place = self.place(rank)
        return 0 if place is None else self.works[place]

    def among(self, members: tuple[int, ...]) -> int:
        """Samples that count where only these take part."""
        return sum(map(self.batch, members))

    def offset(self, rank: int) -> int:
        """Samples of this part that belong to the ranks before ``rank``."""
        return sum(self.shares[: self.place(rank)])

    def positions(self, rank: int, padding: int = 1) -> list[int]:
        """The positions that ``rank`` computes.

        A rank without a sample computes ``padding`` samples all the same, since its loop has to run as often
        as everybody's: the first ones of this part, over again if the part is smaller. Other ranks count
        them, so their weight here is :meth:`batch`, which is 0.
        """
        if self.batch(rank) == 0:
            every = self._all()
            return [every[i % self.size] for i in range(padding)]
        return [*self.span(rank)]

    def span(self, rank: int) -> Sequence[int]:
        """The positions of the samples of ``rank`` that count."""
        first = self.offset(rank)
        return self._all()[first : first + self.batch(rank)]

    def _all(self) -> Sequence[int]:
        fresh = range(self.start, self.end)
        return [*(one for run in self.again for one in range(*run)), *fresh] if self.again else fresh


Portions = tuple[Portion, ...]


class Cursor(NamedTuple):
    """How far a run has come: ``start`` samples of ``epoch`` and ``iteration`` iterations are behind it.

    A tuple, as one is made on every step.
    """

    epoch: int = 0
    start: int = 0
    iteration: int = 0

    def after(self, part: Portion) -> Cursor:
        """Behind ``part``."""
        return Cursor(part.epoch, part.end, part.iteration + 1)

    def next_epoch(self) -> Cursor:
        """At the beginning of the epoch after this one."""
        return Cursor(epoch=self.epoch + 1, iteration=self.iteration)


_AT_ONCE = 16
"""Parts that are cut together where the split stays as it is: one by one each would cost several times as much, for
right after a step the caches hold the model."""


def never() -> bool:
    """Whether the newest split is the last one: it is not; see :class:`EpochPlan`."""
    return False


class Changing(Protocol):
    """Where workers come and go; see :class:`uneven.policy.samples.requeued.RequeuedSamples`."""

    def start(self, cursor: Cursor) -> None: ...
    def members(self, iteration: int) -> tuple[int, ...]: ...
    def waiting(self, iteration: int) -> int: ...
    def goes_on(self) -> bool: ...
    def take(self, iteration: int, most: int) -> tuple[tuple[int, int], ...]: ...
    def drawn(self, part: Portion) -> None: ...
    def adopt(self, part: Portion) -> None: ...
    def left(self, cursor: Cursor, unused: Iterable[Portion]) -> list[list[int]]: ...
    def resume(self, cursor: Cursor, left: Iterable[Sequence[int]]) -> None: ...


@dataclass(slots=True, kw_only=True)
class EpochPlan:
    """Cuts an epoch into parts.

    Attributes:
        batch_size: the global batch X.
        lower: least samples of a rank that has any, if the last part allows it; it may change between two passes.
        drop_last: leave out a last part smaller than the global batch.
        settled: whether no split will be decided any more, so that those of later iterations are known.
        changing: where members come and go, who they are, and what comes again; else None.
    """

    batch_size: int
    workers: int
    split_for: SplitSource
    lower: int = 1
    drop_last: bool = False
    settled: Callable[[], bool] = never
    changing: Changing | None = None

    def walk(self, cursor: Cursor, length: int, ends: npt.NDArray[np.int64] | None = None) -> Iterator[Portion]:
        """The parts from ``cursor`` to the end of an epoch of ``length`` samples.

        ``ends`` are the positions behind each part where those are not all of the global batch's size.

        ``split_for`` is asked once for each part, when that part is drawn and not before, unless it is settled.
        """
        while cursor.start < length or self._goes_on():
            part = self.part(cursor, _until(cursor.start, length, ends) - cursor.start)
            if part is None:
                return
            yield part
            cursor = cursor.after(part)
            for later in self._alike(part, length) if ends is None else ():
                yield later
                cursor = cursor.after(later)

    def _goes_on(self) -> bool:
        return self.changing is not None and self.changing.goes_on()

    def _alike(self, part: Portion, length: int) -> list[Portion]:
        """The next parts, where they are known to be split as this one is."""
        count = min(_AT_ONCE, (length - part.end) // self.batch_size)
        last = part.iteration + count
        if count == 0 or not self.settled() or self.split_for(last) != part.shares:
            return []
        return [
            Portion(
                iteration=part.iteration + number,
                epoch=part.epoch,
                start=part.start + number * self.batch_size,
                size=part.size,
                shares=part.shares,
            )
            for number in range(1, count + 1)
        ]

    def part(self, cursor: Cursor, available: int) -> Portion | None:
        """The part at ``cursor`` with ``available`` samples left in the epoch; None if there is none.

        Raises:
            ConfigError: the shares in force do not fit the workers or the global batch.
        """
        changing, iteration = self.changing, cursor.iteration
        available += 0 if changing is None else changing.waiting(iteration)
        if available <= 0 or (self.drop_last and available < self.batch_size):
            return None
        shares = tuple(self.split_for(iteration))
        members = None if changing is None else changing.members(iteration)
        self._check(shares, self.workers if members is None else len(members), iteration)
        size = min(available, self.batch_size)
        if size < self.batch_size:
            shares = last_shares(shares, size, self.lower)
        if changing is None:
            return Portion(iteration=iteration, epoch=cursor.epoch, start=cursor.start, size=size, shares=shares)
        part = Portion(
            iteration=iteration, epoch=cursor.epoch, start=cursor.start, size=size, shares=shares, members=members,
            again=changing.take(iteration, size),
        )  # fmt: skip
        changing.drawn(part)
        return part

    def _check(self, shares: tuple[int, ...], workers: int, iteration: int) -> None:
        if len(shares) != workers or min(shares) < 0 or sum(shares) != self.batch_size:
            raise ConfigError(
                f"split of iteration {iteration} is {shares}, adding up to {sum(shares)}: it must hold "
                f"{workers} shares, none negative, adding up to the global batch of {self.batch_size}"
            )


def _until(start: int, length: int, ends: npt.NDArray[np.int64] | None) -> int:
    """The position up to which the part from ``start`` on may reach."""
    if ends is None or start >= length:
        return length
    return int(ends[np.searchsorted(ends, start, side="right")])


def last_shares(shares: tuple[int, ...], size: int, lower: int) -> tuple[int, ...]:
    """Split the ``size`` samples of a last part in the proportions of ``shares``.

    Nobody gets more than the full share. If not everybody can have ``lower`` samples, those with the largest
    shares get at least that many and the others none; only if that cannot be done either is somebody left
    with fewer than ``lower``.

    Args:
        shares: the split of a full iteration, one per rank.
        size: less than ``sum(shares)``.
    """
    lows = tuple(min(lower, share) for share in shares)
    if sum(lows) > size:
        by_share = sorted(range(len(shares)), key=lambda rank: (-shares[rank], rank))
        chosen = set(by_share[: size // lower])
        few = tuple(share if rank in chosen else 0 for rank, share in enumerate(shares))
        if sum(few) < size:
            return proportional(shares, size, Limits(lower=(0,) * len(shares), upper=shares))
        shares, lows = few, tuple(min(lower, share) for share in few)
    return proportional(shares, size, Limits(lower=lows, upper=shares))
