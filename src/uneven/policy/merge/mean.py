"""The weighted mean."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uneven.policy.merge.merge import Kept, Merge, Payload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mean(Merge):
    """Replace replicas by the mean of the contributions, weighted by samples (or equally)."""

    by_samples: bool = True  #: weight by samples; False weights all equally

    payloads = frozenset(Payload)
    plain = True
    whole = True

    def combine(self, kept: Kept, given: "Tensor", weight: float, *, in_place: bool = False) -> "tuple[Kept, Tensor]":
        return kept, given
