"""Block momentum."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uneven.policy.merge.merge import Kept, Merge

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockMomentum(Merge):
    """Treat the mean movement of a block as a gradient: Δ = μ Δ + η G, x̃ += Δ; the next block starts at x̃.

    G is the mean of the replicas, weighted by samples, minus the starting point of the block. With ``nesterov`` the
    next block starts at x̃ + μ Δ instead. The starting points are then those of torch's SGD with momentum μ, rate η and
    gradient −G, Nesterov or not. Δ starts at zero, and stays zero until all workers have taken ``warmup_samples``.

    The rule for blocks of unequal length, such as those of a shadow, is ours. Δ is for S samples; a block of s uses the
    part r = min(1, s / S) of it: x̃ += A with A = μ r Δ + η G. If s < S, the speed Δ / S moves the part r of the way to
    A / s, and S the part r of the way to s; otherwise Δ = A and S = s. So a short block does not extend the momentum of
    a long one, and an exchange without a step moves nothing.
    """

    momentum: float
    learning_rate: float = 1.0
    nesterov: bool = False
    warmup_samples: int = 0

    def begin(self, start: "Tensor") -> Kept:
        """Return the state before the first block has ended: Δ is zero, flat like ``start``."""
        # x̃, Δ, the start of the current block, S, and the samples of all completed blocks.
        return {"copy": start, "delta": start.new_zeros(start.shape), "start": start, "block": 0.0, "seen": 0.0}

    def combine(self, kept: Kept, given: "Tensor", weight: float, *, in_place: bool = False) -> "tuple[Kept, Tensor]":
        """Return state and start of the next block; ``given`` (n,) is the mean replica after ``weight`` samples."""
        copy, old, start, usual = kept["copy"], kept["delta"], kept["start"], kept["block"]
        shared = start is copy  # without Nesterov they are one tensor, which must not be overwritten twice
        part = min(1.0, weight / usual) if usual else 1.0
        delta: Tensor = given.sub_(start) if in_place else given - start
        delta.mul_(self.learning_rate).add_(old, alpha=self.momentum * part)
        copy = copy.add_(delta) if in_place else copy + delta
        block = float(weight)
        if part < 1.0:  # speed Δ / S and length S move this part of the way to those of this block
            fewer = 1.0 - part + part * part
            block = fewer * usual
            delta.add_(old, alpha=1.0 - part).mul_(fewer)
        seen = kept["seen"] + weight
        if seen < self.warmup_samples:  # early movement is fast and decays: momentum from it overshoots
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
