"""The order of samples in an epoch, and its division among workers while the split moves.

There is one permutation per epoch, from seed and epoch only, and a cursor that advances by the global batch. In each
iteration, rank i takes the samples from its offset (the sum of the shares before it) on. So the order does not depend
on the split, and every sample is used exactly once per epoch::

    order of the epoch   │ iteration 0           │ iteration 1           │ last part │
                         │ rank 0      │ r1 │ r2 │ rank 0 │ r1    │ r2   │ r0   │r1│2│
                         0                       X                      2X          length

The specification of LB-BSP recommends this form (§1.10); the paper says only that a worker draws x_i samples from the
sample input stream.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import Limits

if TYPE_CHECKING:
    from uneven.policy.samples.requeued import RequeuedSamples

# iteration → its shares, one per rank, adding up to the global batch
SplitSource = Callable[[int], tuple[int, ...]]


def epoch_order(*, length: int, seed: int, epoch: int, shuffle: bool = True) -> npt.NDArray[np.int64]:
    """Return the index of the sample at every position of an epoch: int64, shape (length,), sorted without
    ``shuffle``."""
    if not shuffle:
        return np.arange(length, dtype=np.int64)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(length).astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """The samples of all workers in one iteration: ``size`` consecutive positions of the epoch's order."""

    iteration: int  # counted over the whole run, from 0
    epoch: int
    start: int  # first position in the epoch's order that has never been drawn before
    size: int  # samples of all workers together; the global batch, or less in the last part of an epoch
    shares: tuple[int, ...]  # samples of each rank, adding up to `size`. In the last part some may be 0.
    members: tuple[int, ...] | None = None  # workers in the order of `shares`; None for 0, 1, 2, …
    again: tuple[tuple[int, int], ...] = ()  # runs of requeued positions, which come first; their workers have failed
    # cost of each rank's samples in mean samples, if known; see `policy.samples.sample_costs`
    works: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.start + self.size - sum(last - first for first, last in self.again)

    @property
    def before(self) -> "Cursor":
        """The place in the run at which this part is the next one."""
        return Cursor(self.epoch, self.start, self.iteration)

    def place(self, rank: int) -> int | None:
        """Return the position of ``rank`` in ``shares``; None if it joined after these samples were drawn."""
        if self.members is None:
            return rank
        return self.members.index(rank) if rank in self.members else None

    def batch(self, rank: int) -> int:
        """Return the samples of ``rank`` that count; 0 for a padded batch."""
        place = self.place(rank)
        return 0 if place is None else self.shares[place]

    def work(self, rank: int) -> int:
        """Return the cost of the samples of ``rank``; their number if costs are unknown."""
        if self.works is None:
            return self.batch(rank)
        place = self.place(rank)
        return 0 if place is None else self.works[place]

    def among(self, members: tuple[int, ...]) -> int:
        return sum(map(self.batch, members))

    def offset(self, rank: int) -> int:
        return sum(self.shares[: self.place(rank)])

    def positions(self, rank: int, padding: int = 1) -> list[int]:
        """Return the positions that ``rank`` computes; without samples, the first ``padding`` positions, repeated as
        needed."""
        if self.batch(rank) == 0:
            # A padded batch, because this rank's loop must run as often as the others'. Its weight is `batch(rank)`,
            # which is 0.
            every = self._all()
            return [every[i % self.size] for i in range(padding)]
        return [*self.span(rank)]

    def span(self, rank: int) -> Sequence[int]:
        """Return the positions of the samples of ``rank`` that count."""
        first = self.offset(rank)
        return self._all()[first : first + self.batch(rank)]

    def _all(self) -> Sequence[int]:
        fresh = range(self.start, self.end)
        return [*(one for run in self.again for one in range(*run)), *fresh] if self.again else fresh


Portions = tuple[Portion, ...]


class Cursor(NamedTuple):
    """The progress of a run: the next position of ``epoch`` and the next iteration."""

    # A tuple instead of a dataclass, because every step makes one.
    epoch: int = 0
    start: int = 0
    iteration: int = 0

    def after(self, part: Portion) -> "Cursor":
        return Cursor(part.epoch, part.end, part.iteration + 1)

    def next_epoch(self) -> "Cursor":
        return Cursor(epoch=self.epoch + 1, iteration=self.iteration)


# Parts that are cut together while the split does not move. One by one, each costs several times as much, because right
# after a step the caches hold the model.
_AT_ONCE = 16


def never() -> bool:
    return False


class SampleBook(Protocol):
    """The record of who has which samples in an elastic run.

    * ``members``: return the workers that divide an iteration.
    * ``waiting``: return how many samples are requeued for an iteration.
    * ``counted``: return the samples of an iteration that count for all workers together.
    * ``changed``: divide iterations from ``border`` on among other members, and return this worker's border. The round
      under way decides about iterations up to ``exchanging``; ``donors`` give each newcomer the state of the run.
    """

    def members(self, iteration: int) -> tuple[int, ...]: ...
    def waiting(self, iteration: int) -> int: ...
    def counted(self, part: Portion) -> int: ...
    def changed(
        self, border: int, members: tuple[int, ...], exchanging: int, donors: Mapping[int, int] | None = None
    ) -> int: ...


@dataclass(slots=True, kw_only=True)
class EpochPlan:
    """The division of an epoch into parts.

    Attributes:
        lower: least samples of a rank that has any, except in a small last part; it may change between two passes.
        settled: returns whether no further split will be decided, so that later ones are known.
    """

    batch_size: int  # the global batch X
    workers: int
    split_for: SplitSource
    lower: int = 1
    drop_last: bool = False  # whether to leave out a last part smaller than the global batch
    settled: Callable[[], bool] = never
    changing: "RequeuedSamples | None" = None  # members and requeued samples of an elastic run; otherwise None

    def walk(self, cursor: Cursor, length: int, ends: npt.NDArray[np.int64] | None = None) -> Iterator[Portion]:
        """Yield the parts from ``cursor`` to the end of an epoch of ``length`` samples.

        ``ends``, shape (parts,), int64, has the positions after each part if they differ in size. Unless the split is
        settled, ``split_for`` is called once for each part, and only when that part is drawn.
        """
        while self._has_more(length - cursor.start):
            part = self.part(cursor, _until(cursor.start, length, ends) - cursor.start)
            if part is None:
                return
            yield part
            cursor = cursor.after(part)
            for later in self._alike(part, length) if ends is None else ():
                yield later
                cursor = cursor.after(later)

    def _has_more(self, fresh: int) -> bool:
        known = fresh + (0 if self.changing is None else self.changing.known())
        return known >= (self.batch_size if self.drop_last else 1)

    def _alike(self, part: Portion, length: int) -> list[Portion]:
        """Return the next parts that are known to have the same split."""
        count = min(_AT_ONCE, (length - part.end) // self.batch_size)
        last = part.iteration + count
        if count == 0 or self.changing is not None or not self.settled() or self.split_for(last) != part.shares:
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
        """Return the part at ``cursor`` with ``available`` samples left in the epoch; None if there is none."""
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
            iteration=iteration,
            epoch=cursor.epoch,
            start=cursor.start,
            size=size,
            shares=shares,
            members=members,
            again=changing.take(iteration, size),
        )
        changing.drawn(part)
        return part

    def _check(self, shares: tuple[int, ...], workers: int, iteration: int) -> None:
        if len(shares) != workers or min(shares) < 0 or sum(shares) != self.batch_size:
            raise ConfigError(
                f"split of iteration {iteration} is {shares}, adding up to {sum(shares)}: give {workers} shares of "
                f"at least 0 that add up to the global batch of {self.batch_size}"
            )


def _until(start: int, length: int, ends: npt.NDArray[np.int64] | None) -> int:
    if ends is None or start >= length:
        return length
    return int(ends[np.searchsorted(ends, start, side="right")])


def last_shares(shares: tuple[int, ...], size: int, lower: int) -> tuple[int, ...]:
    """Split the ``size`` samples of a last part in proportion to ``shares``, which sum to more.

    No rank gets more than its full share. If not all ranks can have ``lower`` samples, the ranks with the largest
    shares get at least that many and the others none. A rank gets fewer than ``lower`` only if that is impossible too.
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
