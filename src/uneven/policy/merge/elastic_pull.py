"""Elastic averaging."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uneven.policy.merge.merge import Combined, Kept, Merge, Payload

if TYPE_CHECKING:
    from torch import Tensor


def pull(replica: Any, centre: Any, alpha: float) -> Any:
    """Return EASGD's d = α (x − x̃), to subtract from the replica and add to the centre; all of one shape."""
    return alpha * (replica - centre)


@dataclass(frozen=True, slots=True)
class Elastic(Merge):
    """Pull replica and centre towards each other: d = α (x − x̃), x −= d, x̃ += d."""

    alpha: float  #: α, above 0 and at most 1

    combined = Combined.CENTRE
    whole = True

    def contribute(self, own: "Tensor", kept: Kept, *, in_place: bool = False) -> "Tensor":
        """Return d = α (x − x̃) for ``own`` and the centre in ``kept``, (n,); ``in_place`` reuses ``own``."""
        centre: Tensor = kept["centre"]
        # The same amount leaves the replica and enters the centre, so that their sum is constant.
        drawn: Tensor = own.sub_(centre).mul_(self.alpha) if in_place else pull(own, centre, self.alpha)
        return drawn

    def combine(self, kept: Kept, given: "Tensor", weight: float, *, in_place: bool = False) -> "tuple[Kept, Tensor]":
        """Return the centre in ``kept`` plus ``given``, (n,), as state and result; ``weight`` has no effect.

        ``in_place`` reuses the memory of the centre."""
        centre: Tensor = kept["centre"]
        # the sum of simultaneous pulls, all from the old centre
        centre = centre.add_(given) if in_place else centre + given
        return {"centre": centre}, centre

    def distance(self, apart: float) -> float:
        """Return ``apart`` / α: contributions are that part of the replicas' distances."""
        return apart / self.alpha

    def served(self, payload: Payload) -> float | None:
        return self.alpha if payload is Payload.PARAMETERS else None
