"""Plays plans on numbers: all workers step together, on a quadratic of their own, by plain SGD or with momentum.

The merges are written out here once more, from their definitions, so that the identities between policies are tests
of what the plans say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from uneven.policy.core.actions import Add, BlockMomentum, Elastic, Exchange, Mean, Payload, Via
from uneven.policy.core.views import SyncView
from uneven.policy.sync import SyncPolicy

Vector = NDArray[np.float64]


@dataclass
class Replicas:
    """Workers of unequal shares whose losses are ½ (x − target)ᵀ A (x − target), all different."""

    members: tuple[int, ...]
    shares: dict[int, int]
    sites: dict[int, str] = field(default_factory=dict)
    rate: float = 0.1
    momentum: float = 0.0
    x: dict[int, Vector] = field(default_factory=dict)
    centre: Vector = field(default_factory=lambda: np.zeros(3))
    block: dict[tuple[int, ...], tuple[Vector, Vector]] = field(default_factory=dict)
    velocity: dict[int, Vector] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)  # samples since the last exchange of parameters

    def __post_init__(self) -> None:
        draw = np.random.default_rng(3)
        self.target = {rank: draw.normal(size=3) for rank in self.members}
        self.slope = {rank: np.diag(draw.uniform(0.2, 1.5, size=3)) for rank in self.members}
        self.x = {rank: np.zeros(3) for rank in self.members}
        self.velocity = {rank: np.zeros(3) for rank in self.members}
        self.taken = dict.fromkeys(self.members, 0)

    def play(self, policy: SyncPolicy, steps: int) -> Replicas:
        for clock in range(steps):
            plans = {
                rank: policy.plan(SyncView(rank=rank, clock=clock, members=self.members, sites=self.sites))
                for rank in self.members
            }
            gradients = {rank: self.slope[rank] @ (self.x[rank] - self.target[rank]) for rank in self.members}
            before = {rank: self.x[rank].copy() for rank in self.members}
            everything = [one for rank in self.members for one in plans[rank].exchanges]
            for one in dict.fromkeys(one for one in everything if one.payload is Payload.GRADIENT):
                heard = one.members[: one.quorum.count if one.quorum else None]
                mean = self._mean(gradients, heard, self.shares)
                gradients.update(dict.fromkeys(one.members, mean))
            for rank in self.members:
                self.velocity[rank] = self.momentum * self.velocity[rank] + gradients[rank]
                self.x[rank] = self.x[rank] - self.rate * self.velocity[rank]
                self.taken[rank] += self.shares[rank]
            moved = {rank: self.x[rank] - before[rank] for rank in self.members}
            for one in dict.fromkeys(one for one in everything if one.payload is Payload.PARAMETERS):
                self._parameters(one)
            for one in dict.fromkeys(one for one in everything if one.payload is Payload.DELTA):
                assert isinstance(one.merge, Add)
                assert one.via is Via.SERVER
                self.centre = self.centre + one.merge.scale * sum(moved[rank] for rank in one.members)
                self.x = {rank: self.centre.copy() for rank in self.members}
        return self

    def _parameters(self, one: Exchange) -> None:
        if isinstance(one.merge, Elastic):
            centre = self.centre
            for rank in one.members:  # each on its own, one after the other, or all from the same centre
                pull = one.merge.alpha * (self.x[rank] - (self.centre if one.via is Via.SERVER else centre))
                self.x[rank], self.centre = self.x[rank] - pull, self.centre + pull
            return
        speakers = [party[0] for party in one.parties] or list(one.members)
        weights = {party[0]: sum(self.taken[rank] for rank in party) for party in one.parties} or self.taken
        by_samples = isinstance(one.merge, BlockMomentum) or (isinstance(one.merge, Mean) and one.merge.by_samples)
        mean = self._mean(self.x, speakers, weights if by_samples else dict.fromkeys(speakers, 1))
        if isinstance(one.merge, BlockMomentum):
            mean = self._block(one.members, one.merge, mean)
        for rank in one.members:
            self.x[rank], self.taken[rank] = mean.copy(), 0

    def _block(self, members: tuple[int, ...], merge: BlockMomentum, mean: Vector) -> Vector:
        copy, delta = self.block.get(members, (np.zeros(3), np.zeros(3)))
        start = copy + merge.momentum * delta if merge.nesterov else copy
        delta = merge.momentum * delta + merge.learning_rate * (mean - start)
        copy = copy + delta
        self.block[members] = copy, delta
        return copy + merge.momentum * delta if merge.nesterov else copy

    @staticmethod
    def _mean(of: dict[int, Vector], who: tuple[int, ...] | list[int], weights: dict[int, int]) -> Vector:
        total = sum(weights[rank] for rank in who)
        mean: Vector = sum((of[rank] * (weights[rank] / total) for rank in who), np.zeros(3))
        return mean

    @property
    def all(self) -> Vector:
        """The replicas, one row each."""
        return np.stack([self.x[rank] for rank in self.members])
