"""Cost Γ(x): the seconds that a worker needs for a batch of x samples. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Cost(Protocol):
    """Anything monotone that says how long a batch takes."""

    def seconds(self, samples: int) -> float:
        """Local time for a batch of ``samples``, without waiting for anybody."""
        ...


@dataclass(frozen=True, slots=True)
class Affine:
    """Γ(x) = overhead + x · per_sample (specification of LB-BSP, §1.5)."""

    overhead_s: float
    per_sample_s: float

    def seconds(self, samples: int) -> float:
        """Local time for a batch of ``samples``."""
        return self.overhead_s + self.per_sample_s * samples
