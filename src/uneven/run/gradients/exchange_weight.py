"""The factor of this worker's gradients in the next exchange, among fixed workers or among those that are left."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.membership import Members
from uneven.policy.samples.requeued import RequeuedSamples
from uneven.run.lines.elastic_communicator import ElasticCommunicator

# Replaces weight zero while gradients of earlier passes wait in .grad. It is a power of two, so scaling them by its
# inverse is exact, and so small that the padded batch vanishes in rounding.
_TINY = 2.0**-40


@dataclass(kw_only=True)
class ExchangeWeight:
    """The weight of the current pass and of all gradients that wait; called as a :data:`.communicator.Weight`."""

    held: bool = False  # whether gradients of unsynchronised passes wait in .grad
    now: float = 0.0  # among the workers that began the exchange
    _passes: dict[int, BatchWeight] = field(default_factory=dict)  # by iteration, those in the next exchange

    def __call__(self) -> float:
        return self.now

    def of(self, turn: BatchWeight) -> float:
        """Return x_i / Σ x of a batch."""
        return turn.weight

    def count(self, turn: BatchWeight, exchanged: bool, parameters: Sequence[nn.Parameter]) -> None:
        """Scale the gradients of this pass, and those that already wait in ``.grad``, by this turn's weight."""
        weight = turn.in_gradient
        # The exchange multiplies all of .grad by one weight, so gradients that wait are rescaled to the new one.
        if self.held:
            weight = max(weight, _TINY)
            if weight != self.now:
                for one in parameters:
                    if one.grad is not None:
                        one.grad.mul_(self.now / weight)
        elif turn.exchanging and turn.of_exchanged != 1.0:
            for one in parameters:
                if one.grad is not None:
                    one.grad.mul_(turn.of_exchanged)
        self.now = weight
        if turn.exchanging:
            self._passes.setdefault(turn.iteration, turn)
            self.held |= not exchanged

    def landed(self) -> None:
        self.held = False
        self._passes.clear()


@dataclass(kw_only=True)
class RemainingWeight(ExchangeWeight):
    """The same among the current members, asked for again after a loss."""

    worker: int
    returned: RequeuedSamples  # how each iteration's samples were split
    rounds: ElasticCommunicator

    def __call__(self) -> float:
        # `.grad` may hold several batches (`no_sync`), split differently. After a loss the remaining samples of all
        # these batches are scaled by one factor, so that the result is the mean over them.
        there = sum(map(self._there, self._passes.values()))
        return self.now * len(self._passes) / there if there else self.now

    def of(self, turn: BatchWeight) -> float:
        return turn.weight / self._samples_there(turn)

    def _there(self, turn: BatchWeight) -> float:
        """Return the fraction of a batch's loss weight that belongs to current members."""
        counted = turn.there(self._members)
        return self._samples_there(turn) if counted is None else counted

    @property
    def _members(self) -> Members:
        at = self.rounds.at
        return self.rounds.membership.members if at is None or at.groups is None else self.rounds.mine(at.groups)

    def _samples_there(self, turn: BatchWeight) -> float:
        """Return the fraction of a batch's samples that belongs to current members."""
        part, at = self.returned.part(turn.iteration), self.rounds.at
        if part is None:
            return 1.0
        whole: float = part.size
        if at is not None and at.groups is not None:  # the whole is the samples of its group when the batch was made
            if not turn.weight:
                return 1.0
            whole = part.batch(self.worker) / turn.weight
        return max(1, part.among(self._members)) / max(1, whole)
