"""What a batch of one worker counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """What a batch of this worker counts in the gradient.

    Attributes:
        iteration, epoch: when it was handed out; the same on all ranks whose gradients are added up.
        samples: in the batch, also where it only fills up a last part and so counts nothing.
        weight: x_i / X.
        exchanging: whether gradients are exchanged in this iteration.
    """

    iteration: int
    epoch: int
    samples: int
    weight: float
    exchanging: bool = True

    @property
    def in_gradient(self) -> float:
        """What this worker's gradient counts in everybody's."""
        return self.weight

    def there(self, members: tuple[int, ...]) -> float | None:
        """Which part of what the batches of all workers count is that of these members, where some are lost before the
        gradients are added up; None where that is a matter of samples alone."""
        return None

    def counts_like(self, other: Turn) -> bool:
        """Whether a pass counts the same on either batch: equal weights, and both or neither exchange."""
        return (self.weight, self.exchanging) == (other.weight, other.exchanging)
