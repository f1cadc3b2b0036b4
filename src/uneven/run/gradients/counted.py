"""What a batch counts in the gradient where that is not its samples: tokens, the weights of classes, pairs.

A worker's loss is a mean over c_i things. The gradient of one process is Σ_i (c_i / C) ḡ_i, with C = Σ_i c_i, which
nobody knows alone. The counts of all are gathered from the forward pass on and waited for where the backward pass comes
to the model's output, so the forward pass hides it. Where a worker is lost before the gradients are added up, everybody
knows by how much C has become smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from uneven.core.turn import Turn
from uneven.data.hands import Hands
from uneven.data.order import Portion
from uneven.errors import TrainingError
from uneven.run.lines import Line


class GatheredCounts:
    """The counts of all workers, gathered beside the forward pass; all workers make one at the same time.

    Args:
        count: of this worker.
    """

    def __init__(self, count: float, line: Line) -> None:
        self._count = count
        self._members = line.members
        self._all = [torch.zeros(1, dtype=torch.float64) for _ in line.members]
        self._handle = line.gather(torch.tensor([count], dtype=torch.float64), self._all)
        self._counts: dict[int, float] = {}
        self._total = 0.0

    def settle(self) -> None:
        """Wait for all counts.

        Raises:
            TrainingError: they add up to 0.
        """
        if self._counts:
            return
        there = self._handle.wait()
        self._counts = {one: it.item() for one, it in zip(self._members, self._all, strict=True)}
        self._total = sum(self._counts.values())
        if not self._total and set(self._members) <= set(there):
            raise TrainingError(
                "session.weighted: the counts of all workers add up to 0, so there is nothing to take a mean over: "
                "leave such batches out on all workers, or count at least one"
            )

    def part(self) -> float:
        """Return this worker's part of the count of all batches; every worker must call it."""
        self.settle()
        return self._count / self._total if self._total else 0.0

    def there(self, members: tuple[int, ...]) -> float:
        """The part of these workers."""
        self.settle()
        return sum(self._counts.get(one, 0.0) for one in members) / self._total if self._total else 1.0


class Uncounted:
    """Where each batch counts by itself, and the gradient is a sum, not a mean.

    Args:
        count: of this worker: 1, or 0 for a batch that only fills up a last part.
    """

    def __init__(self, count: float) -> None:
        self._count = count

    def part(self) -> float:
        """Return the count of this worker's batch, independent of other workers."""
        return self._count

    def there(self, members: tuple[int, ...]) -> float:
        """A sum over fewer workers is just that."""
        return 1.0


CountsOfAll = GatheredCounts | Uncounted


@dataclass(frozen=True, slots=True)
class CountedTurn(Turn):
    """A batch that counts by something else than its samples.

    Attributes:
        counts: what all workers' batches count.
    """

    counts: CountsOfAll = field(default_factory=lambda: Uncounted(1.0))

    @property
    def in_gradient(self) -> float:
        return self.counts.part()

    def there(self, members: tuple[int, ...]) -> float | None:
        return self.counts.there(members)

    def counts_like(self, other: Turn) -> bool:
        """Nobody knows before the backward pass."""
        return self is other


class _AlikePasses:
    """Forward passes that count alike."""

    def __init__(self, count: float, share: Callable[[float], CountsOfAll]) -> None:
        self.count = count
        self._share = share
        self._made: tuple[Turn, CountedTurn] | None = None

    def turn(self, of: Turn) -> Turn:
        """That of a pass on a batch which would count as ``of`` says."""
        if self._made is None:
            if of.weight == 0.0:  # a batch that only fills up a last part: others count it
                self.count = 0.0
            fields = of.iteration, of.epoch, of.samples, of.weight, of.exchanging
            self._made = of, CountedTurn(*fields, self._share(self.count))
        before, made = self._made
        if of is not before:
            raise TrainingError(
                f"forward passes on the batches of iterations {before.iteration} and {of.iteration} in one block of "
                f"session.weighted or session.summed: each batch has a count of its own, so give each its block"
            )
        return made

    def end(self) -> None:
        """The block is left; others wait for this worker's count, so it has to have been given.

        Raises:
            TrainingError: there was no forward pass.
        """
        if self._made is None:
            raise TrainingError(
                "no forward pass of the model in a block of session.weighted or session.summed: call the model that "
                "session.setup returned inside of it, with gradients enabled"
            )
        self._made[1].counts.part()


class PassCounts:
    """Knows what the newest forward pass counts.

    Args:
        hands: know which batch it is on.
    """

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._block: _AlikePasses | None = None
        self._newest: tuple[int, float] | None = None  # iteration, count
        self._alone = self._passing = False

    def exchanged(self) -> None:
        """Gradients are exchanged at the end of each backward pass."""
        self._hands.exchanged = True

    @property
    def turn(self) -> Turn | None:
        """The turn of the newest forward pass."""
        turn = self._hands.turn
        if turn is None or self._block is None:
            return turn
        counted = self._block.turn(turn)
        self._newest = turn.iteration, self._block.count
        return counted

    @property
    def counted(self) -> bool:
        """Whether forward passes are inside of a block."""
        return self._alone or self._block is not None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block where this worker's gradients are those of all."""
        self._refuse_passing()
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Inside, workers take unequally many passes over their batches."""
        self._passing = True
        try:
            yield
        finally:
            self._passing = False

    def _refuse_passing(self) -> None:
        if self._passing:
            raise TrainingError(
                "session.weighted or session.summed inside of session.passes, of which workers take unequally many: "
                "put it around them, with the count of the whole batch, and divide each pass's sum by that count"
            )

    @contextmanager
    def block(self, count: float, share: Callable[[float], CountsOfAll]) -> Iterator[None]:
        """Forward passes inside count ``count``.

        Args:
            share: this worker's count → what gets to know those of all.

        Raises:
            TrainingError: it is inside of another one or of passes, or no pass is inside of it.
        """
        self._refuse_passing()
        if self._block is not None:
            raise TrainingError("session.weighted or session.summed inside of another such block")
        self._block = _AlikePasses(count, share)
        try:
            yield
            self._block.end()
        finally:
            self._block = None

    def of(self, part: Portion, rank: int) -> float:
        """What this worker's batch counts, as far as is known: by default its samples."""
        if self._newest is not None and self._newest[0] == part.iteration:
            return self._newest[1]
        return float(part.batch(rank))
