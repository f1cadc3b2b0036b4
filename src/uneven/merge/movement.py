"""An outer step on movements. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uneven.merge.base import Kept, Merge, Payload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class OuterMovement(Merge):
    """The copy moves by η (G + μ V) with V = μ V + G, where G is the mean of what replicas have moved.

    Unlike :class:`~uneven.merge.BlockMomentum` it takes movements, so replicas need not have begun at one point, and
    who is not among the contributions of a merge can be among those of the next.
    """

    momentum: float = 0.9
    learning_rate: float = 0.7

    payloads = frozenset({Payload.DELTA})

    def begin(self, start: Tensor) -> Kept:
        """V is zero, flat like ``start``."""
        return {"velocity": start.new_zeros(start.shape)}

    def served_step(self) -> tuple[float, float]:
        return self.momentum, self.learning_rate

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        """What the copy moves by; ``given``, shape (size,), is the mean of the movements."""
        velocity = self.momentum * kept["velocity"] + given
        return {"velocity": velocity}, self.learning_rate * (given + self.momentum * velocity)
