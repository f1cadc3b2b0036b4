"""Block momentum. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uneven.merge.base import Kept, Merge

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockMomentum(Merge):
    """Treat the mean movement of a block as a gradient: Δ = μ Δ + η G, x̃ += Δ; the next block starts at x̃.

    G is the mean, weighted by samples, of the replicas less the point where the block started. With ``nesterov``
    the next block starts at x̃ + μ Δ instead. The starting points are then those of SGD with momentum μ, rate η and
    gradient −G as torch defines it, Nesterov or not. Δ starts at zero.

    What is done with blocks of unlike length, as those of a shadow, is ours. Δ is of S samples; a block of s takes the
    part r = min(1, s / S) of it: x̃ += A with A = μ r Δ + η G. Where s < S, the speed Δ / S goes the part r of the way
    to A / s, and S the part r to s; else Δ = A and S = s. So a short block is not carried on as far as a long one
    before it went, and an exchange without a step before it moves nothing.

    While all together have taken fewer than ``warmup_samples``, a block that ends leaves Δ at zero: at the start of a
    training, movement is fast and wears off, and what is carried on of it overshoots.

    It keeps x̃ (``copy``), Δ (``delta``), where the running block started (``start``), S (``block``; 0 before the first
    block has ended) and the samples of all blocks that have ended (``seen``).
    """

    momentum: float
    learning_rate: float = 1.0
    nesterov: bool = False
    warmup_samples: int = 0

    def begin(self, start: Tensor) -> Kept:
        """State before the first block has ended: Δ is zero, flat like ``start``."""
        return {"copy": start, "delta": start.new_zeros(start.shape), "start": start, "block": 0.0, "seen": 0.0}

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        """The next block; ``given``, shape (size,), is the mean of replicas after this one, of ``weight`` samples."""
        copy, old, start, usual = kept["copy"], kept["delta"], kept["start"], kept["block"]
        shared = start is copy
        part = min(1.0, weight / usual) if usual else 1.0
        delta: Tensor = given.sub_(start) if in_place else given - start
        delta.mul_(self.learning_rate).add_(old, alpha=self.momentum * part)
        copy = copy.add_(delta) if in_place else copy + delta
        block = float(weight)
        if part < 1.0:  # the speed, Δ / S, goes this part of the way to that of this block, and so does S
            fewer = 1.0 - part + part * part
            block = fewer * usual
            delta.add_(old, alpha=1.0 - part).mul_(fewer)
        seen = kept["seen"] + weight
        if seen < self.warmup_samples:
            delta.zero_()
        if in_place:
            delta = old.copy_(delta)
        if not self.nesterov:
            start = copy
        elif in_place and not shared:
            start = start.copy_(copy).add_(delta, alpha=self.momentum)
        else:
            start = copy.add(delta, alpha=self.momentum)
        return {"copy": copy, "delta": delta, "start": start, "block": block, "seen": seen}, start
