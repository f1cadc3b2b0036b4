"""An outer step on movements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uneven.policy.merge.merge import Kept, Merge, Payload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class OuterMovement(Merge):
    """Move the copy by η (G + μ V) with V = μ V + G, where G is the mean movement of the replicas.

    Unlike with :class:`~uneven.policy.merge.BlockMomentum`, starting points and contributors may differ.
    """

    momentum: float = 0.9
    learning_rate: float = 0.7

    payloads = frozenset({Payload.DELTA})

    def begin(self, start: Tensor) -> Kept:
        """Return a zero V, flat like ``start``."""
        return {"velocity": start.new_zeros(start.shape)}

    def served_step(self) -> tuple[float, float]:
        return self.momentum, self.learning_rate

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        """Return the movement of the copy; ``given``, shape (n,), is the mean movement."""
        velocity = self.momentum * kept["velocity"] + given
        return {"velocity": velocity}, self.learning_rate * (given + self.momentum * velocity)
