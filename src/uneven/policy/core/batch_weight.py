"""The weight of one worker's batch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchWeight:
    """The weight of this worker's batch in the gradient."""

    # iteration, epoch: when it was handed out; equal on all ranks whose gradients are added up
    iteration: int
    epoch: int
    samples: int  # in the batch, including those that only fill up a last part and have no weight
    weight: float  # x_i / X
    exchanging: bool = True  # whether gradients are exchanged in this iteration

    @property
    def in_gradient(self) -> float:
        """The weight of this worker's gradient in the sum over workers."""
        return self.weight

    @property
    def of_exchanged(self) -> float:
        """The factor of gradients that are equal on all workers already, before an exchange weights and adds them."""
        return 1.0

    def there(self, members: tuple[int, ...]) -> float | None:
        """Return the part of the total weight that these members hold, if others are lost before the gradients are
        added up. None if sample counts alone decide it."""
        return None

    def counts_like(self, other: "BatchWeight") -> bool:
        """Return whether both batches have equal weights, and exchange both or not at all."""
        return (self.weight, self.exchanging) == (other.weight, other.exchanging)
