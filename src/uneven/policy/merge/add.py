"""The sum of contributions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uneven.policy.merge.merge import Combined, Kept, Merge, Payload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Add(Merge):
    """Add contributions, scaled, to the parameter server; without a server, to every other replica."""

    scale: float = 1.0  #: factor of each contribution

    combined = Combined.SUM
    payloads = frozenset(Payload)
    whole = True

    def combine(self, kept: Kept, given: "Tensor", weight: float, *, in_place: bool = False) -> "tuple[Kept, Tensor]":
        """Return the copy in ``kept`` + scale · ``given``, as state and result, shapes (n,); ``weight`` has no effect.

        Memory is never reused, so ``in_place`` has no effect."""
        centre = kept["centre"] + self.scale * given
        return {"centre": centre}, centre

    def served(self, payload: Payload) -> float | None:
        return self.scale if payload is Payload.DELTA else None
