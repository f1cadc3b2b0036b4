"""Loss weights: a batch's weight in the gradient if it is not its samples, but tokens, class weights or pairs.

If a worker's loss is a mean over c_i items, the gradient of one process is Σ_i (c_i / C) ḡ_i with C = Σ_i c_i. The
workers gather the counts during the forward pass and wait for them when the backward pass reaches the model's output.
If a worker is lost before the gradients are summed, all others know its count and so the smaller C.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from uneven.errors import TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.samples.order import Portion
from uneven.run.lines import Line
from uneven.run.samples.in_flight import InFlightBatches


class GatheredCounts:
    """The counts of all workers, gathered during the forward pass; all workers create one at the same time."""

    def __init__(self, count: float, line: Line) -> None:
        self._count = count
        self._members = line.members
        self._all = [torch.zeros(1, dtype=torch.float64) for _ in line.members]
        self._handle = line.gather(torch.tensor([count], dtype=torch.float64), self._all)
        self._counts: dict[int, float] = {}
        self._total = 0.0

    def settle(self) -> None:
        """Wait for all counts; raise :class:`TrainingError` if they add up to 0."""
        if self._counts:
            return
        there = self._handle.wait()  # the workers that were not lost
        self._counts = {one: it.item() for one, it in zip(self._members, self._all, strict=True)}
        self._total = sum(self._counts.values())
        if not self._total and set(self._members) <= set(there):
            raise TrainingError(
                "session.loss_mean: the counts of all workers add up to 0, so there is nothing to take a mean over: "
                "leave such batches out on all workers, or count at least one"
            )

    def part(self) -> float:
        """Return this worker's part of the total count; every worker must call it."""
        self.settle()
        return self._count / self._total if self._total else 0.0

    def there(self, members: tuple[int, ...]) -> float:
        self.settle()
        return sum(self._counts.get(one, 0.0) for one in members) / self._total if self._total else 1.0


class SummedCount:
    """The count of a batch in a gradient that is a sum: 1, or 0 for a batch that only pads."""

    def __init__(self, count: float) -> None:
        self._count = count

    def part(self) -> float:
        return self._count

    def there(self, members: tuple[int, ...]) -> float:
        """Return 1: a sum over fewer workers needs no correction."""
        return 1.0


CountsOfAll = GatheredCounts | SummedCount


@dataclass(frozen=True, slots=True)
class CountedTurn(BatchWeight):
    """The turn of a batch whose weight is not its number of samples."""

    counts: CountsOfAll = field(default_factory=lambda: SummedCount(1.0))

    @property
    def in_gradient(self) -> float:
        return self.counts.part()

    @property
    def of_exchanged(self) -> float:
        return self.weight if isinstance(self.counts, SummedCount) else 1.0

    def there(self, members: tuple[int, ...]) -> float | None:
        return self.counts.there(members)

    def counts_like(self, other: BatchWeight) -> bool:
        return self is other  # weights are unknown before the backward pass


class _AlikePasses:
    """Forward passes with the same count."""

    def __init__(self, count: float, share: Callable[[float], CountsOfAll]) -> None:
        self.count = count
        self._share = share
        self._made: tuple[BatchWeight, CountedTurn] | None = None

    def turn(self, of: BatchWeight) -> BatchWeight:
        """Return the turn of a pass on a batch whose turn by samples is ``of``."""
        if self._made is None:
            if of.weight == 0.0:  # a padded batch: other workers count its samples
                self.count = 0.0
            fields = of.iteration, of.epoch, of.samples, of.weight, of.exchanging
            self._made = of, CountedTurn(*fields, self._share(self.count))
        before, made = self._made
        if of is not before:
            raise TrainingError(
                f"forward passes on the batches of iterations {before.iteration} and {of.iteration} in one block of "
                "session.loss_mean or session.loss_sum: give each batch its own block, because each has its own count"
            )
        return made

    def end(self) -> None:
        """Leave the block; raise if there was no forward pass."""
        if self._made is None:
            raise TrainingError(
                "no forward pass of the model in a block of session.loss_mean or session.loss_sum: call the model that "
                "session.setup returned inside of it, with gradients enabled"
            )
        self._made[1].counts.part()  # other workers wait for this worker's count


class PassCounts:
    """The count of the newest forward pass; ``hands`` know its batch."""

    def __init__(self, hands: InFlightBatches) -> None:
        self._hands = hands
        self._block: _AlikePasses | None = None
        self._newest: tuple[int, float] | None = None  # iteration, count
        self._alone = self._passing = False

    def exchanged(self) -> None:
        self._hands.exchanged = True

    @property
    def turn(self) -> BatchWeight | None:
        turn = self._hands.turn
        if turn is None or self._block is None:
            return turn
        counted = self._block.turn(turn)
        self._newest = turn.iteration, self._block.count
        return counted

    @property
    def counted(self) -> bool:
        """True if forward passes are inside a block."""
        return self._alone or self._block is not None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Mark passes inside as single-process: this worker's gradients are the result."""
        self._refuse_passing()
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Mark that workers take different numbers of passes over their batches inside."""
        self._passing = True
        try:
            yield
        finally:
            self._passing = False

    def _refuse_passing(self) -> None:
        if self._passing:
            raise TrainingError(
                "session.loss_mean or session.loss_sum inside of session.microbatches: workers take different numbers "
                "of those. Put it around the loop, with the whole batch's count, and divide each pass's sum by it"
            )

    @contextmanager
    def block(self, count: float, share: Callable[[float], CountsOfAll]) -> Iterator[None]:
        """Give forward passes inside the count ``count``; ``share`` turns it into all workers' counts.
        Raises :class:`TrainingError` inside another block or inside passes, or without a forward pass inside."""
        self._refuse_passing()
        if self._block is not None:
            raise TrainingError("session.loss_mean or session.loss_sum inside of another such block")
        self._block = _AlikePasses(count, share)
        try:
            yield
            self._block.end()
        finally:
            self._block = None

    def of(self, part: Portion, rank: int) -> float:
        """Return the count of this worker's batch as far as it is known; by default its samples."""
        if self._newest is not None and self._newest[0] == part.iteration:
            return self._newest[1]
        return float(part.batch(rank))
