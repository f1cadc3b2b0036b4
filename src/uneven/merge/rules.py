"""The merges of ``uneven.core.actions`` on flat parameter vectors. Nothing is changed in place."""

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


def elastic(replica: Tensor, centre: Tensor, total: Tensor, count: float, alpha: float) -> tuple[Tensor, Tensor]:
    """All at once: what replica and centre become, x − α (x − x̃) and x̃ + Σ_i α (x_i − x̃).

    Args:
        total: Σ_i x_i over ``count`` replicas, this one among them.
    """
    return replica - pull(replica, centre, alpha), centre + alpha * (total - count * centre)


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
    """

    copy: Tensor
    delta: Tensor
    start: Tensor

    @classmethod
    def first(cls, parameters: Tensor) -> Block:
        """Before the first block has ended: Δ is zero."""
        return cls(parameters, torch.zeros_like(parameters), parameters)

    def after(self, average: Tensor, rule: BlockMomentum) -> Block:
        """The block that follows, where ``average`` is the mean of the replicas at the end of this one."""
        delta = rule.momentum * self.delta + rule.learning_rate * (average - self.start)
        copy = self.copy + delta
        return Block(copy, delta, copy + rule.momentum * delta if rule.nesterov else copy)
