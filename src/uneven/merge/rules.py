"""The merges of ``uneven.core.actions`` on flat parameter vectors. What changes in place says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uneven.core.actions import BlockMomentum


def mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ_i w_i v_i / Σ_i w_i, of vectors of one shape; where nobody has any weight, all have the same.

    One vector is its own mean, bit by bit.
    """
    if len(vectors) == 1:
        return vectors[0]
    total = float(sum(weights))
    parts = [weight / total for weight in weights] if total > 0 else [1 / len(vectors)] * len(vectors)
    return torch.tensor(parts, dtype=vectors[0].dtype, device=vectors[0].device) @ torch.stack(list(vectors))


def pull(replica: Tensor, centre: Tensor, alpha: float) -> Tensor:
    """EASGD's d = α (x − x̃): the replica goes by −d, the centre by +d, so that their sum stays."""
    return alpha * (replica - centre)


def elastic(replica: Tensor, centre: Tensor, middle: Tensor, count: float, alpha: float, room: Tensor) -> Tensor:
    """All at once: the replica becomes x − α (x − x̃), and the centre, in place, x̃ + Σ_i α (x_i − x̃) = x̃ + α n (x̄ − x̃).

    Args:
        middle: x̄, the mean of ``count`` replicas, this one among them.
        room: memory for the result, of the replica's shape.

    Returns:
        What the replica becomes; the replica itself is left as it is.
    """
    drawn = torch.sub(centre, replica, out=room).mul_(alpha).add_(replica)
    centre.lerp_(middle, alpha * count)
    return drawn


def significant(change: Tensor, values: Tensor, threshold: float) -> Tensor:
    """Gaia's filter: true where the accumulated change exceeds ``threshold``, relative to the value itself."""
    return change.abs() > threshold * values.abs()


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What block momentum keeps: see :class:`uneven.core.actions.BlockMomentum`.

    Attributes:
        copy: x̃.
        delta: Δ.
        start: where the block that is running started.
        samples: S, what a block of everybody has; 0 before the first one has ended.
        seen: samples of all blocks that have ended.
    """

    copy: Tensor
    delta: Tensor
    start: Tensor
    samples: float = 0.0
    seen: float = 0.0

    @classmethod
    def first(cls, parameters: Tensor) -> Block:
        """Before the first block has ended: Δ is zero."""
        return cls(parameters, torch.zeros_like(parameters), parameters)

    def after(self, average: Tensor, rule: BlockMomentum, samples: float, into: Block | None = None) -> Block:
        """The block that follows, where ``average`` is the mean of the replicas at the end of this one.

        Args:
            samples: of everybody in this block.
            into: a block that is over, whose memory is used again; None for new memory.
        """
        part = min(1.0, samples / self.samples) if self.samples else 1.0
        old = None if into is None else into.delta
        delta = torch.sub(average, self.start, out=old).mul_(rule.learning_rate)
        delta.add_(self.delta, alpha=rule.momentum * part)
        copy = torch.add(self.copy, delta, out=None if into is None else into.copy)
        usual = float(samples)
        if part < 1.0:  # the speed, Δ / S, goes this part of the way to that of this block, and so does S
            fewer = 1.0 - part + part * part
            usual = fewer * self.samples
            delta.add_(self.delta, alpha=1.0 - part).mul_(fewer)
        seen = self.seen + samples
        if seen < rule.warmup_samples:
            delta.zero_()
        if not rule.nesterov:
            return Block(copy, delta, copy, usual, seen)
        old = None if into is None or into.start is into.copy else into.start
        return Block(copy, delta, torch.add(copy, delta, alpha=rule.momentum, out=old), usual, seen)
