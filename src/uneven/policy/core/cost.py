"""The cost Γ(x): the seconds that a worker needs for a batch of x samples."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Cost(Protocol):
    """A monotone function from batch size to seconds."""

    def seconds(self, samples: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Affine:
    """The line Γ(x) = overhead + x · per_sample (specification of LB-BSP, §1.5)."""

    overhead_s: float
    per_sample_s: float

    def seconds(self, samples: int) -> float:
        return self.overhead_s + self.per_sample_s * samples
