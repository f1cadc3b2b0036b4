"""Elastic averaging. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uneven.merge.base import Combined, Kept, Merge, Payload

if TYPE_CHECKING:
    from torch import Tensor


def pull(replica: Any, centre: Any, alpha: float) -> Any:
    """EASGD's d = α (x − x̃): the replica goes by −d, the centre by +d, so that their sum stays.

    Args:
        replica, centre: torch tensors or numpy arrays of one shape.
    """
    return alpha * (replica - centre)


@dataclass(frozen=True, slots=True)
class Elastic(Merge):
    """Pull replica and centre towards each other: d = α (x − x̃), x −= d, x̃ += d.

    All at once, every d is of the centre before: x̃ += Σ_i α (x_i − x̃).
    """

    alpha: float

    combined = Combined.CENTRE
    whole = True

    def contribute(self, own: Tensor, kept: Kept, *, in_place: bool = False) -> Tensor:
        """The pull towards the centre, d = α (x − x̃), flat like ``own``."""
        centre: Tensor = kept["centre"]
        drawn: Tensor = own.sub_(centre).mul_(self.alpha) if in_place else pull(own, centre, self.alpha)
        return drawn

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        """The new centre, x̃ + d, flat like ``given``."""
        centre: Tensor = kept["centre"]
        centre = centre.add_(given) if in_place else centre + given
        return {"centre": centre}, centre

    def distance(self, apart: float) -> float:
        """Contributions differ by α of what replicas do."""
        return apart / self.alpha

    def served(self, payload: Payload) -> float | None:
        return self.alpha if payload is Payload.PARAMETERS else None
