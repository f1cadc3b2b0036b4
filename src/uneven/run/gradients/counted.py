"""What a batch counts in the gradient where that is not its samples: tokens, the weights of classes, pairs.

A worker's loss is a mean over c_i things. The gradient of one process is Σ_i (c_i / C) ḡ_i, with C = Σ_i c_i, which
nobody knows alone. The sum of the counts begins with the forward pass and is waited for where the backward pass comes
to the model's output, so the forward pass hides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from uneven.core.turn import Turn
from uneven.data.hands import Hands
from uneven.data.order import Portion
from uneven.errors import TrainingError

Shared = Callable[[float], Callable[[], float]]
"""This worker's count → what gives its part of everybody's, once that is known; all workers call it."""


@dataclass(frozen=True, slots=True)
class CountedTurn(Turn):
    """A batch that counts by something else than its samples.

    Attributes:
        part: gives its part of what all workers' batches count.
    """

    part: Callable[[], float] = float

    @property
    def in_gradient(self) -> float:
        """See :attr:`Turn.in_gradient`."""
        return self.part()

    def counts_like(self, other: Turn) -> bool:
        """Nobody knows before the backward pass."""
        return self is other


class _AlikePasses:
    """Forward passes that count alike."""

    def __init__(self, count: float, shared: Shared) -> None:
        self.count = count
        self._shared = shared
        self._made: tuple[Turn, CountedTurn] | None = None

    def turn(self, of: Turn) -> Turn:
        """That of a pass on a batch which would count as ``of`` says."""
        if self._made is None:
            if of.weight == 0.0:  # a batch that only fills up a last part: others count it
                self.count = 0.0
            fields = of.iteration, of.epoch, of.samples, of.weight, of.exchanging
            self._made = of, CountedTurn(*fields, self._shared(self.count))
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
        self._made[1].part()


class PassCounts:
    """Knows what the newest forward pass counts.

    Args:
        hands: know which batch it is on.
    """

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._block: _AlikePasses | None = None
        self._newest: tuple[int, float] | None = None  # iteration, count

    def exchanged(self) -> None:
        """Gradients are exchanged at the end of each backward pass."""
        self._hands.exchanged = True

    @property
    def turn(self) -> Turn | None:
        """Of the newest forward pass."""
        turn = self._hands.turn
        if turn is None or self._block is None:
            return turn
        counted = self._block.turn(turn)
        self._newest = turn.iteration, self._block.count
        return counted

    @contextmanager
    def block(self, count: float, shared: Shared) -> Iterator[None]:
        """Forward passes inside count ``count``.

        Raises:
            TrainingError: it is inside of another one, or no pass is inside of it.
        """
        if self._block is not None:
            raise TrainingError("session.weighted or session.summed inside of another such block")
        self._block = _AlikePasses(count, shared)
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
